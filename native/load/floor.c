/* The least that a server of these frames can do, as the reference that others are measured against.
 *
 * epoll, recv, pwrite, 8-byte acknowledgement; polls are pread and send. No checks beyond memory safety, no checksums,
 * no index, no groups, no sync (`sync`: one fdatasync for each append). With `offsets` the first record of a poll says
 * its offset; the others never do. Connections are dealt evenly to the threads. A poll finds its records by arithmetic:
 * all records of one file have the size of the first one. What the server chooses a partition for goes round over six.
 */
#include "floor.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "floor_answer.h"
#include "floor_threads.h"
#include "wire.h"

enum { EVENTS_MAX = 256, BUFFER_START = 64 << 10 };

typedef struct peer {
    int fd;
    floor_thread *thread;
    uint8_t *in; /* one frame at least, grown to the announced length */
    size_t in_have, in_room;
    floor_reply out;
    size_t out_sent;
    uint32_t turn; /* of partitions */
} peer;

static void peer_close(peer *p) {
    atomic_fetch_sub(&p->thread->peers, 1);
    close(p->fd);
    free(p->in);
    free(p->out.data);
    free(p);
}

/* True when nothing is left to send, false when the socket is full; *broken on an error. */
static bool flush(peer *p, bool *broken) {
    while (p->out_sent < p->out.length) {
        ssize_t n = send(p->fd, p->out.data + p->out_sent, p->out.length - p->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        *broken = n < 0 && errno != EAGAIN;
        if (n < 0) return false;
        p->out_sent += (size_t)n;
    }
    return true;
}

/* Answers the whole frames that are in the buffer. False ends the connection. */
static bool serve_buffered(peer *p) {
    bool broken = false;
    while (flush(p, &broken) && p->in_have >= REQUEST_HEAD) {
        size_t frame = 4 + (size_t)get_u32(p->in);
        if (frame < REQUEST_HEAD || frame > FLOOR_FRAME_MAX || !floor_grow(&p->in, &p->in_room, frame)) return false;
        if (p->in_have < frame) return true;
        p->out.length = p->out_sent = 0;
        if (!floor_answer(&p->out, &p->turn, get_u32(p->in + 4), p->in + REQUEST_HEAD, frame - REQUEST_HEAD))
            return false;
        p->in_have -= frame;
        memmove(p->in, p->in + frame, p->in_have);
    }
    return !broken;
}

static bool serve(peer *p) {
    if (!serve_buffered(p)) /* room in the socket again */
        return false;
    while (p->out_sent == p->out.length && p->in_have < p->in_room) {
        ssize_t n = recv(p->fd, p->in + p->in_have, p->in_room - p->in_have, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return true;
        if (n <= 0) return false;
        bool drained = (size_t)n < p->in_room - p->in_have; /* saves the recv that would only say EAGAIN */
        p->in_have += (size_t)n;
        if (!serve_buffered(p)) return false;
        if (drained) return true;
    }
    return true;
}

static void open_epoll(floor_thread *t) {
    t->door = epoll_create1(EPOLL_CLOEXEC);
    if (t->door < 0) floor_fail("epoll_create1");
}

static void run(floor_thread *t) {
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int n = epoll_wait(t->door, events, EVENTS_MAX, -1);
        if (n < 0 && errno != EINTR) floor_fail("epoll_wait");
        for (int i = 0; i < n; i++)
            if (!serve(events[i].data.ptr)) peer_close(events[i].data.ptr);
    }
}

static void adopt(floor_thread *t, int fd) {
    peer *p = calloc(1, sizeof *p);
    if (p == NULL || !floor_grow(&p->in, &p->in_room, BUFFER_START) ||
        !floor_grow(&p->out.data, &p->out.room, BUFFER_START))
        floor_fail("out of memory");
    p->fd = fd;
    p->thread = t;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, .data.ptr = p};
    if (epoll_ctl(t->door, EPOLL_CTL_ADD, fd, &event) != 0) floor_fail("epoll_ctl");
}

void floor_run(const floor_options *options) {
    static const floor_kind kind = {.accept_flags = SOCK_NONBLOCK, .open = open_epoll, .run = run, .adopt = adopt};
    floor_answer_open(options);
    floor_deal(options, &kind);
}
