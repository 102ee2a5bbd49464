/* The least that a server of these frames can do, as the reference that others are measured against.
 *
 * epoll, recv, pwrite, 8-byte acknowledgement; polls are pread and send. No checks beyond memory safety, no checksums,
 * no index, no groups, no sync (`sync`: one fdatasync for each append). With `offsets` the first record of a poll says
 * its offset; the others never do. Connections are dealt evenly to the threads. A poll finds its records by arithmetic:
 * all records of one file have the size of the first one. What the server chooses a partition for goes round over six.
 */
#include "floor.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "floor_files.h"
#include "wire.h"

enum { EVENTS_MAX = 256, BUFFER_START = 64 << 10, FRAME_MAX = 1 << 30, REPLY_MAX = 1 << 30 };

typedef struct floor_thread {
    pthread_t thread;
    int epoll;
    int cpu; /* -1: not pinned */
    _Atomic uint32_t peers;
} floor_thread;

typedef struct peer {
    int fd;
    floor_thread *thread;
    uint8_t *in; /* one frame at least, grown to the announced length */
    size_t in_have, in_room;
    uint8_t *out;
    size_t out_sent, out_length, out_room;
    uint32_t turn; /* of partitions */
} peer;

static bool says_offsets;

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static bool grow(uint8_t **buffer, size_t *room, size_t wanted) {
    if (wanted <= *room) return true;
    uint8_t *larger = realloc(*buffer, wanted);
    if (larger == NULL) return false;
    *buffer = larger;
    *room = wanted;
    return true;
}

/* ---- one request ---- */

static bool answer_empty(peer *p, uint32_t length) {
    memset(p->out, 0, REPLY_HEAD + length);
    put_u32(p->out + 4, length);
    p->out_length = REPLY_HEAD + length;
    return true;
}

static bool answer_send(peer *p, const uint8_t *payload, size_t length) {
    if (length < 4) return false;
    size_t metadata = get_u32(payload);
    if (metadata < 2 * NUMERIC_IDENTIFIER + 6 || 4 + metadata > length) return false;
    uint32_t stream = get_u32(payload + 4 + 2);
    const uint8_t *partitioning = payload + 4 + 2 * NUMERIC_IDENTIFIER;
    uint64_t count = get_u32(payload + 4 + metadata - 4);
    size_t messages_at = 4 + metadata + INDEX_ENTRY * count;
    if (messages_at + RECORD_HEAD > length) return false;
    uint32_t partition = partitioning[0] == 2   ? get_u32(partitioning + 2)
                         : partitioning[0] == 1 ? p->turn++ % FLOOR_PARTITIONS_BALANCED
                                                : partitioning[2] % FLOOR_PARTITIONS_KEYED;
    floor_file *file = floor_file_get(stream, partition);
    return file != NULL && floor_file_append(file, payload + messages_at, length - messages_at) && answer_empty(p, 0);
}

static bool answer_poll(peer *p, const uint8_t *payload, size_t length) {
    if (length < 1 + 3 * NUMERIC_IDENTIFIER + 5 + 9 + 4 + 1) return false;
    uint32_t stream = get_u32(payload + 1 + NUMERIC_IDENTIFIER + 2);
    const uint8_t *at = payload + 1 + 3 * NUMERIC_IDENTIFIER;
    uint32_t partition = get_u32(at + 1);
    uint64_t offset = get_u64(at + 6);
    uint64_t count = get_u32(at + 14);
    floor_file *file = floor_file_get(stream, partition);
    if (file == NULL) return false;
    uint64_t records = floor_file_records(file);
    uint64_t left = offset < records ? records - offset : 0;
    if (count > left) count = left;
    uint64_t size = count * floor_file_record_bytes(file);
    if (size > REPLY_MAX || !grow(&p->out, &p->out_room, REPLY_HEAD + POLLED_HEAD + size)) return false;
    answer_empty(p, POLLED_HEAD);
    put_u32(p->out + 4, (uint32_t)(POLLED_HEAD + size));
    put_u32(p->out + REPLY_HEAD, partition);
    put_u64(p->out + REPLY_HEAD + 4, records == 0 ? 0 : records - 1);
    put_u32(p->out + REPLY_HEAD + 12, (uint32_t)count);
    p->out_length = REPLY_HEAD + POLLED_HEAD + size;
    uint8_t *into = p->out + REPLY_HEAD + POLLED_HEAD;
    if (!floor_file_read(file, offset, into, size)) return false;
    if (count > 0 && says_offsets) put_u64(into + RECORD_OFFSET_AT, offset);
    return true;
}

/* Prepares the reply in p->out; false ends the connection. */
static bool answer(peer *p, uint32_t code, const uint8_t *payload, size_t length) {
    p->out_sent = 0;
    switch (code) {
    case CODE_SEND: return answer_send(p, payload, length);
    case CODE_POLL: return answer_poll(p, payload, length);
    case CODE_LOGIN: return answer_empty(p, 4); /* user id 0 */
    case CODE_PING: return answer_empty(p, 0);
    case CODE_DELETE_STREAM:
        if (length < NUMERIC_IDENTIFIER) return false;
        floor_files_delete(get_u32(payload + 2));
        return answer_empty(p, 0);
    default: return false;
    }
}

/* ---- connections ---- */

static void peer_close(peer *p) {
    atomic_fetch_sub(&p->thread->peers, 1);
    close(p->fd);
    free(p->in);
    free(p->out);
    free(p);
}

/* True when nothing is left to send, false when the socket is full; *broken on an error. */
static bool flush(peer *p, bool *broken) {
    while (p->out_sent < p->out_length) {
        ssize_t n = send(p->fd, p->out + p->out_sent, p->out_length - p->out_sent, MSG_NOSIGNAL);
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
        if (frame < REQUEST_HEAD || frame > FRAME_MAX || !grow(&p->in, &p->in_room, frame)) return false;
        if (p->in_have < frame) return true;
        if (!answer(p, get_u32(p->in + 4), p->in + REQUEST_HEAD, frame - REQUEST_HEAD)) return false;
        p->in_have -= frame;
        memmove(p->in, p->in + frame, p->in_have);
    }
    return !broken;
}

static bool serve(peer *p) {
    if (!serve_buffered(p)) /* room in the socket again */
        return false;
    while (p->out_sent == p->out_length && p->in_have < p->in_room) {
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

static void *run(void *argument) {
    floor_thread *t = argument;
    if (t->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(t->cpu, &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
    }
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int n = epoll_wait(t->epoll, events, EVENTS_MAX, -1);
        if (n < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < n; i++)
            if (!serve(events[i].data.ptr)) peer_close(events[i].data.ptr);
    }
    return NULL;
}

static void adopt(int fd, floor_thread *t) {
    int one = 1;
    peer *p = calloc(1, sizeof *p);
    if (p == NULL || !grow(&p->in, &p->in_room, BUFFER_START) || !grow(&p->out, &p->out_room, BUFFER_START))
        fail("out of memory");
    p->fd = fd;
    p->thread = t;
    atomic_fetch_add(&t->peers, 1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, .data.ptr = p};
    if (epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

/* The thread with the fewest connections, the first of them: a single connection is always served by the first. */
static floor_thread *least_busy(floor_thread *threads, long count) {
    floor_thread *best = threads;
    for (long i = 1; i < count; i++)
        if (atomic_load(&threads[i].peers) < atomic_load(&best->peers)) best = &threads[i];
    return best;
}

void floor_run(const floor_options *options) {
    static floor_thread threads[FLOOR_THREADS_MAX];
    says_offsets = options->offsets;
    floor_files_open(options->directory, options->sync);
    for (long i = 0; i < options->threads; i++) {
        threads[i].cpu = options->cpus[i];
        threads[i].epoll = epoll_create1(EPOLL_CLOEXEC);
        if (threads[i].epoll < 0 || pthread_create(&threads[i].thread, NULL, run, &threads[i]) != 0) fail("thread");
    }
    for (;;) {
        int fd = accept4(options->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) adopt(fd, least_busy(threads, options->threads));
        else if (errno != EINTR && errno != ECONNABORTED) fail("accept4");
    }
}
