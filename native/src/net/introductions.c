/* See introductions.h. */
#include "net/introductions.h"

#include "net/net.h"
#include "wire/proxy_header.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENDING_SHARE 4u /* of the places: for those that are ended, until that is told */

struct introduction {
    operation operation;
    net *net;
    introduction *older, *newer;
    int64_t since_us;
    int fd;
    listener_kind kind;
    bool ended;       /* its socket is shut down, the operation under way tells soon */
    uint32_t have;    /* of `bytes` */
    uint32_t skipped; /* of what is behind them in the header */
    proxy_header header;
    uint8_t bytes[PROXY_READ_BYTES_MAX];
    uint8_t rest[PROXY_HEADER_BYTES_MAX - PROXY_FIXED_BYTES]; /* TLVs */
};

typedef enum progress { GOES_ON, IS_READ, IS_WRONG } progress;

static void enter(introduction_list *l, introduction *i) {
    i->newer = NULL;
    i->older = l->newest;
    if (l->newest != NULL) l->newest->newer = i;
    else l->oldest = i;
    l->newest = i;
    l->count++;
}

static void leave(introduction *i) {
    introductions *all = &i->net->introductions;
    introduction_list *l = i->ended ? &all->ending : &all->waiting;
    if (i->older != NULL) i->older->newer = i->newer;
    else l->oldest = i->newer;
    if (i->newer != NULL) i->newer->older = i->older;
    else l->newest = i->older;
    l->count--;
}

/* What the next receive is for: never a byte behind the header. */
static uint32_t wanted(introduction *i, uint8_t **into) {
    uint32_t left = i->header.read_bytes - i->have;
    *into = left > 0 ? i->bytes + i->have : i->rest;
    return left > 0 ? left : i->header.length - i->header.read_bytes - i->skipped;
}

static progress judge(introduction *i) {
    switch (proxy_header_read(i->bytes, i->have, &i->header)) {
    case PROXY_MORE: return GOES_ON;
    case PROXY_WRONG: return IS_WRONG;
    case PROXY_WHOLE: break;
    }
    if (i->header.transport == PROXY_DATAGRAM) return IS_WRONG; /* of a connection that this one is not */
    return i->header.read_bytes + i->skipped == i->header.length ? IS_READ : GOES_ON;
}

static progress received(introduction *i, uint32_t length) {
    if (i->have < i->header.read_bytes) i->have += length;
    else i->skipped += length;
    return judge(i);
}

/* As much as is there: most often the header comes with the connection. */
static progress read_now(introduction *i) {
    for (;;) {
        uint8_t *into;
        ssize_t got;
        uint32_t length = wanted(i, &into);
        do got = recv(i->fd, into, length, MSG_DONTWAIT);
        while (got < 0 && errno == EINTR);
        if (got < 0 && errno == EAGAIN) return GOES_ON;
        progress result = got > 0 ? received(i, (uint32_t)got) : IS_WRONG;
        if (result != GOES_ON) return result;
    }
}

static void wait_for_more(introduction *i) {
    uint8_t *into;
    uint32_t length = wanted(i, &into);
    io_receive(&i->net->core->io, &i->operation, i->fd, into, length);
}

static void refuse(introduction *i) {
    i->net->core->counters.refused_introductions++;
    io_forget(&i->net->core->io, i->fd);
    close(i->fd);
    free(i);
}

static void finish(introduction *i) {
    const proxy_header *h = &i->header;
    struct sockaddr_storage from = {0};
    if (h->source_bytes == 4) {
        struct sockaddr_in *v4 = (void *)&from;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(h->source_port);
        memcpy(&v4->sin_addr, h->source, 4);
    } else if (h->source_bytes == 16) {
        struct sockaddr_in6 *v6 = (void *)&from;
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(h->source_port);
        memcpy(&v6->sin6_addr, h->source, 16);
    }
    io_forget(&i->net->core->io, i->fd); /* it may be closed before it is a connection: no look may outlive it */
    i->net->introductions.introduced(i->net, i->kind, i->fd, h->source_bytes > 0 ? &from : NULL);
    free(i);
}

/* Its receive completes soon, and is the last one. */
static void end(introduction *i) {
    leave(i);
    i->ended = true;
    enter(&i->net->introductions.ending, i);
    shutdown(i->fd, SHUT_RDWR);
}

bool introductions_take(net *n, listener_kind kind, int fd) {
    introductions *all = &n->introductions;
    struct sockaddr_storage peer = {0};
    socklen_t length = sizeof peer;
    if (all->proxies[kind].count == 0) return false;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0) { /* gone; what it sent may not count as its own */
        close(fd);
        return true;
    }
    if (!trusted_has(&all->proxies[kind], &peer)) return false;
    introduction *i = calloc(1, sizeof *i);
    if (i == NULL || n->stopping_status != 0) {
        free(i);
        close(fd);
        return true;
    }
    *i = (introduction){.net = n, .fd = fd, .kind = kind, .since_us = n->core->now_us};
    i->operation = operation_of(OPERATION_INTRODUCTION, i);
    i->header.read_bytes = PROXY_FIXED_BYTES;
    progress result = read_now(i);
    if (result == IS_READ) finish(i);
    else if (result == IS_WRONG) refuse(i);
    else {
        uint32_t places = n->options.introductions;
        if (all->waiting.count >= places - places / ENDING_SHARE) end(all->waiting.oldest);
        if (all->waiting.count + all->ending.count >= places) refuse(i); /* so many came in this turn */
        else {
            enter(&all->waiting, i);
            wait_for_more(i);
        }
    }
    return true;
}

void introduction_on_receive(introduction *i, int result) {
    if (!i->ended && (result == -EINTR || result == -EAGAIN)) {
        wait_for_more(i);
        return;
    }
    progress now = i->ended || result <= 0 ? IS_WRONG : received(i, (uint32_t)result);
    if (now == GOES_ON) now = read_now(i);
    if (now == GOES_ON) {
        wait_for_more(i);
        return;
    }
    leave(i);
    if (now == IS_READ) finish(i);
    else refuse(i);
}

void introductions_check(net *n) {
    introduction_list *l = &n->introductions.waiting;
    while (l->oldest != NULL && n->core->now_us - l->oldest->since_us > n->options.partial_frame_timeout_us)
        end(l->oldest);
}

void introductions_forgive(net *n, int64_t still_us) {
    for (introduction *i = n->introductions.waiting.oldest; i != NULL; i = i->newer) i->since_us += still_us;
}

bool introductions_give_way(net *n) {
    introductions *all = &n->introductions;
    if (all->ending.count == 0 && all->waiting.oldest != NULL) end(all->waiting.oldest);
    return all->ending.count > 0;
}

void introductions_end(net *n) {
    while (n->introductions.waiting.oldest != NULL) end(n->introductions.waiting.oldest);
}

static void free_list(introduction_list *l) {
    for (introduction *i = l->oldest, *next; i != NULL; i = next) {
        next = i->newer;
        close(i->fd);
        free(i);
    }
}

void introductions_close(net *n) {
    free_list(&n->introductions.waiting);
    free_list(&n->introductions.ending);
}
