/* The floor of native/load/floor.c on io_uring: the least that a server of these frames can do with it.
 *
 * One ring for each thread. Requests are answered where they were received; the replies of a turn and the wait for the
 * next requests are one system call. Files are written and read by calls of their own: a buffered write through the
 * ring goes to a thread of the kernel on ext4.
 */
#include "floor_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "floor_answer.h"
#include "floor_threads.h"
#include "wire.h"

enum { ARRIVALS = 64 };
enum completion_kind { RECEIVED, SENT, NOT_SENT, ARRIVED, KINDS }; /* beside the peer, in its low bits */

typedef struct peer {
    struct worker *worker;
    struct peer *next_answered;
    uint8_t *in; /* a frame that has begun; while a send is waited for, whatever comes */
    size_t in_have, in_room;
    floor_reply out;
    size_t out_sent;
    int fd, slot;   /* slot: of the registered files; -1: in none */
    uint32_t turn;  /* of partitions */
    bool receiving; /* the kernel knows it */
    bool sending;   /* waited for: the replies stay where they are */
    bool answered;  /* in the list */
    bool sent;      /* quietly: the replies are gone, unless a completion says something else */
    bool ended;
} peer;

typedef struct worker {
    ring ring;
    floor_thread *thread;
    int arrivals[ARRIVALS]; /* descriptors */
    peer *answered;         /* those with replies of this turn */
    int slots[RING_SLOTS];  /* that are free */
    unsigned slots_free;
} worker;

static unsigned ring_features;

static uint64_t known_as(peer *p, enum completion_kind kind) { return (uint64_t)(uintptr_t)p | kind; }

static int file_of(const peer *p) { return p->slot >= 0 ? p->slot : p->fd; }

/* ---- requests ---- */

/* Answers whole frames; how much they were. False ends the connection. */
static bool answer_frames(peer *p, const uint8_t *data, size_t length, size_t *used) {
    *used = 0;
    while (length - *used >= REQUEST_HEAD) {
        const uint8_t *at = data + *used;
        size_t frame = 4 + (size_t)get_u32(at);
        if (frame < REQUEST_HEAD || frame > FLOOR_FRAME_MAX) return false;
        if (length - *used < frame) return true;
        if (p->sent) p->out.length = 0;
        p->sent = false;
        if (!floor_answer(&p->out, &p->turn, get_u32(at + 4), at + REQUEST_HEAD, frame - REQUEST_HEAD)) return false;
        *used += frame;
        if (p->answered) continue;
        p->answered = true;
        p->next_answered = p->worker->answered;
        p->worker->answered = p;
    }
    return true;
}

static bool keep(peer *p, const uint8_t *data, size_t length) {
    size_t wanted = p->in_have + length;
    if (wanted > FLOOR_FRAME_MAX) return false;
    if (wanted > p->in_room && !floor_grow(&p->in, &p->in_room, 2 * wanted)) return false;
    memcpy(p->in + p->in_have, data, length);
    p->in_have = wanted;
    return true;
}

static bool answer_kept(peer *p) {
    size_t used;
    if (p->in_have == 0) return true;
    if (!answer_frames(p, p->in, p->in_have, &used)) return false;
    p->in_have -= used;
    memmove(p->in, p->in + used, p->in_have);
    return true;
}

/* What has come. False ends the connection. */
static bool take(peer *p, const uint8_t *data, size_t length) {
    size_t used = 0;
    if (p->sending) return keep(p, data, length);
    if (p->in_have > 0) return keep(p, data, length) && answer_kept(p);
    return answer_frames(p, data, length, &used) && (used == length || keep(p, data + used, length - used));
}

/* ---- connections ---- */

static void receive(peer *p) {
    p->receiving = true;
    ring_receive(&p->worker->ring, file_of(p), p->slot >= 0, known_as(p, RECEIVED));
}

static void send_waited(peer *p) {
    p->sending = true;
    ring_send(&p->worker->ring, file_of(p), p->slot >= 0, false, p->out.data + p->out_sent, p->out.length - p->out_sent,
              known_as(p, SENT));
}

/* The kernel lets go of it. */
static void end(peer *p) {
    p->ended = true;
    shutdown(p->fd, SHUT_RDWR);
}

static void free_ended(peer *p) {
    worker *w = p->worker;
    int nothing = -1;
    if (!p->ended || p->receiving || p->sending || p->answered) return;
    if (p->slot >= 0) {
        io_uring_register_files_update(&w->ring.uring, (unsigned)p->slot, &nothing, 1);
        w->slots[w->slots_free++] = p->slot;
    }
    atomic_fetch_sub(&w->thread->peers, 1);
    close(p->fd);
    free(p->in);
    free(p->out.data);
    free(p);
}

static void send_replies(worker *w) {
    bool quiet = (w->ring.features & RING_QUIET) != 0;
    for (peer *p = w->answered, *next; p != NULL; p = next) {
        next = p->next_answered;
        p->answered = false;
        p->out_sent = 0;
        if (p->ended) {
            free_ended(p);
        } else if (quiet) {
            p->sent = true;
            ring_send(&w->ring, file_of(p), p->slot >= 0, true, p->out.data, p->out.length, known_as(p, NOT_SENT));
        } else {
            send_waited(p);
        }
    }
    w->answered = NULL;
}

static void on_received(peer *p, const struct io_uring_cqe *completion) {
    ring *r = &p->worker->ring;
    p->receiving = (completion->flags & IORING_CQE_F_MORE) != 0;
    if (completion->res > 0 && !p->ended && !take(p, ring_received(r, completion), (size_t)completion->res)) end(p);
    ring_done_with(r, completion);
    if (completion->res <= 0 && completion->res != -ENOBUFS) p->ended = true;
    if (!p->receiving && !p->ended) receive(p);
}

/* Of a send that was waited for, or of a quiet one that has not sent everything: nothing of this peer came between. */
static void on_sent(peer *p, int result) {
    p->sending = p->sent = false;
    if (result > 0) p->out_sent += (size_t)result;
    else if (result != -EAGAIN && result != -EINTR && !p->ended) end(p);
    if (p->ended) return;
    if (p->out_sent < p->out.length) {
        send_waited(p);
        return;
    }
    p->out.length = p->out_sent = 0;
    if (!answer_kept(p)) end(p);
}

static void adopt_here(worker *w, int fd) {
    peer *p = calloc(1, sizeof *p);
    if (p == NULL) floor_fail("out of memory");
    *p = (peer){.worker = w, .fd = fd, .slot = -1};
    if (w->slots_free > 0) {
        int slot = w->slots[--w->slots_free];
        if (io_uring_register_files_update(&w->ring.uring, (unsigned)slot, &fd, 1) == 1) p->slot = slot;
        else w->slots_free++;
    }
    receive(p);
}

static void wait_for_arrivals(worker *w) {
    struct io_uring_sqe *entry = ring_next(&w->ring);
    io_uring_prep_read(entry, w->thread->inside, w->arrivals, sizeof w->arrivals, 0);
    io_uring_sqe_set_data64(entry, ARRIVED);
}

static void on_arrived(worker *w, int bytes) {
    for (int i = 0; i < bytes / (int)sizeof w->arrivals[0]; i++) adopt_here(w, w->arrivals[i]);
    wait_for_arrivals(w);
}

static void complete(worker *w, const struct io_uring_cqe *completion) {
    enum completion_kind kind = completion->user_data % KINDS;
    peer *p = (peer *)(uintptr_t)(completion->user_data - kind);
    switch (kind) {
    case ARRIVED: on_arrived(w, completion->res); return;
    case RECEIVED: on_received(p, completion); break;
    default: on_sent(p, completion->res); break;
    }
    free_ended(p);
}

/* ---- threads ---- */

static void open_pipe(floor_thread *t) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) floor_fail("pipe");
    t->inside = ends[0];
    t->door = ends[1];
}

static void adopt(floor_thread *t, int fd) {
    if (write(t->door, &fd, sizeof fd) != sizeof fd) floor_fail("pipe");
}

static _Noreturn void run(floor_thread *t) {
    worker *w = calloc(1, sizeof *w);
    if (w == NULL || (errno = -ring_open(&w->ring, ring_features)) != 0) floor_fail("io_uring");
    w->thread = t;
    if (io_uring_register_files_sparse(&w->ring.uring, RING_SLOTS) == 0)
        while (w->slots_free < RING_SLOTS) w->slots[w->slots_free] = (int)w->slots_free, w->slots_free++;
    wait_for_arrivals(w);
    for (;;) {
        struct io_uring_cqe *completion;
        unsigned head, count = 0;
        send_replies(w);
        io_uring_submit_and_wait(&w->ring.uring, 1);
        io_uring_for_each_cqe(&w->ring.uring, head, completion) {
            count++;
            complete(w, completion);
        }
        io_uring_cq_advance(&w->ring.uring, count);
    }
}

void floor_ring_run(const floor_options *options, unsigned features) {
    static const floor_kind kind = {.open = open_pipe, .run = run, .adopt = adopt};
    ring_features = features;
    floor_answer_open(options);
    floor_deal(options, &kind);
}
