/* io.h on io_uring. The address of an operation is the completion's user_data.
 *
 * Sockets are received from by plain calls (readiness.h): the kernel is asked once to tell when something comes, and
 * tells it for the life of the descriptor. An operation for each receive costs more than the call: it is set up, finds
 * nothing, and is put into the socket's queue, each time. docs/adr/0101-receives-by-plain-calls.md.
 *
 * Nor does each wait set up a timer: one is armed, and stays until it expires or an earlier one is needed. Who is woken
 * for nothing, as what it was armed for is later now, arms the next one. */
#include "io/io.h"

#include "base/clock.h"
#include "io/read_cached.h"
#include "io/readiness.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define RING_ENTRIES 1024u
#define PROBE_ROUNDS 4
#define PROBE_ROUND_US 500000
#define REAP_BATCH 256u
#define RECEIVES_PER_REAP 512u
#define REAP_ROUNDS_MAX 128 /* of so many at most: who comes later waits for the next turn */

/* user_data that is no address */
enum { DATA_NOTHING = 0, DATA_WATCH = 1 /* bit: of a descriptor and its life */, DATA_TIMER = 2 };
#define LIFE_MASK 0x7fffffffu

typedef struct ring {
    struct io_uring uring;
    readiness ready;
    int64_t timer_us; /* when the timer that is armed expires; 0: none is */
    struct __kernel_timespec timer;
} ring;

static ring *ring_of(const io *i) { return i->state; }

/* Accepts that complete many times came with this operation, in Linux 5.19. */
static bool accepts_many(struct io_uring *uring) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(uring);
    bool many = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_SOCKET);
    io_uring_free_probe(probe);
    return many;
}

static int init_uring(struct io_uring *uring) {
    struct io_uring_params parameters = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                                  IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQSIZE,
                                         .cq_entries = RING_ENTRIES * 8};
    int result = io_uring_queue_init_params(RING_ENTRIES, uring, &parameters);
    if (result == -EINVAL) { /* before Linux 6.1: without deferred task work */
        memset(&parameters, 0, sizeof parameters);
        parameters.flags = IORING_SETUP_CQSIZE;
        parameters.cq_entries = RING_ENTRIES * 8;
        result = io_uring_queue_init_params(RING_ENTRIES, uring, &parameters);
    }
    if (result == 0 && !accepts_many(uring)) {
        io_uring_queue_exit(uring);
        return -ENOSYS;
    }
    return result;
}

/* A free submission slot; submits what waits when the queue is full. Never NULL. */
static struct io_uring_sqe *free_slot(io *i) {
    ring *r = ring_of(i);
    struct io_uring_sqe *slot = io_uring_get_sqe(&r->uring);
    while (slot == NULL) {
        i->enters++;
        io_uring_submit(&r->uring);
        slot = io_uring_get_sqe(&r->uring);
    }
    return slot;
}

static struct io_uring_sqe *slot_for(io *i, operation *op) {
    struct io_uring_sqe *slot = free_slot(i);
    io_uring_sqe_set_data(slot, op);
    return slot;
}

static void ring_accept(io *i, operation *op, int fd) {
    io_uring_prep_multishot_accept(slot_for(i, op), fd, NULL, NULL, SOCK_CLOEXEC);
}

static void ring_cancel_accept(io *i, operation *op, int fd) {
    (void)fd;
    struct io_uring_sqe *slot = io_uring_get_sqe(&ring_of(i)->uring);
    if (slot == NULL) return; /* it ends when its socket is closed */
    io_uring_prep_cancel(slot, op, 0);
    slot->user_data = DATA_NOTHING;
}

/* ---- receives ---- */

static uint64_t watch_data(int fd, const descriptor_state *d) {
    return ((uint64_t)(d->life & LIFE_MASK) << 32 | (uint32_t)fd) << 1 | DATA_WATCH;
}

static void wait_for_input(io *i, operation *op) {
    descriptor_state *d = readiness_of(&ring_of(i)->ready, op->fd);
    d->in = op;
    if (d->member) return;
    struct io_uring_sqe *slot = free_slot(i);
    io_uring_prep_poll_multishot(slot, op->fd, POLLIN | POLLRDHUP); /* what is there already is an event, too */
    slot->user_data = watch_data(op->fd, d);
    d->member = true;
}

static void start_receive(io *i, operation *op, int fd, uint8_t verb, void *data, size_t length) {
    readiness *r = &ring_of(i)->ready;
    op->fd = fd;
    op->verb = verb;
    op->data = data;
    op->length = length;
    int result = readiness_make_room(r, fd);
    if (result != 0) readiness_fail(r, op, result);
    else if (readiness_of(r, fd)->no_input) wait_for_input(i, op);
    else io_queue_push(&r->tries, op);
}

static void ring_receive_provided(io *i, operation *op, int fd, buffer_set set) {
    op->set = (uint8_t)set;
    start_receive(i, op, fd, VERB_RECEIVE_PROVIDED, NULL, io_buffer_size(set));
}

static void ring_receive(io *i, operation *op, int fd, void *data, uint32_t length) {
    start_receive(i, op, fd, VERB_RECEIVE, data, length);
}

static void ring_forget(io *i, int fd) {
    readiness *r = &ring_of(i)->ready;
    if (!readiness_knows(r, fd)) return;
    const descriptor_state *d = readiness_of(r, fd);
    if (d->member) {
        struct io_uring_sqe *slot = free_slot(i);
        io_uring_prep_cancel64(slot, watch_data(fd, d), 0); /* unlike a poll-remove also while an event is under way */
        slot->user_data = DATA_NOTHING;
        slot->flags |= IOSQE_CQE_SKIP_SUCCESS;
    }
    readiness_forget(r, fd);
}

static void on_watch(readiness *r, const struct io_uring_cqe *at) {
    int fd = (int)(uint32_t)(at->user_data >> 1);
    descriptor_state *d = readiness_of(r, fd);
    if ((d->life & LIFE_MASK) != at->user_data >> 33) return; /* of one before it that had the number */
    if ((at->flags & IORING_CQE_F_MORE) == 0) d->member = false;
    if (at->res >= 0) {
        readiness_mark(r, fd, (uint32_t)at->res);
    } else if (d->in != NULL) {
        readiness_fail(r, d->in, at->res);
        d->in = NULL;
    }
}

static void try_receives(io *i, io_callback *callback, void *context) {
    readiness *r = &ring_of(i)->ready;
    const operation *last = r->tries.last; /* what is started meanwhile is tried after the next enter */
    for (unsigned n = 0; r->tries.first != NULL && n < RECEIVES_PER_REAP; n++) {
        operation *op = io_queue_pop(&r->tries);
        bool is_last = op == last;
        completion done = {.op = op, .result = op->result, .buffer = -1};
        if (op->verb == VERB_CANCELLED || readiness_receive(r, i, op, &done)) callback(context, &done);
        else wait_for_input(i, op);
        if (is_last) return;
    }
}

/* ---- the others ---- */

static void ring_send(io *i, operation *op, int fd, const void *data, size_t length) {
    io_uring_prep_send(slot_for(i, op), fd, data, length, MSG_NOSIGNAL);
}

static void ring_read(io *i, operation *op, int fd, void *data, uint32_t length, uint64_t position) {
    io_uring_prep_read(slot_for(i, op), fd, data, length, position);
}

static void ring_fdatasync(io *i, operation *op, int fd) {
    io_uring_prep_fsync(slot_for(i, op), fd, IORING_FSYNC_DATASYNC);
}

static void ring_poll(io *i, operation *op, int fd) { io_uring_prep_poll_add(slot_for(i, op), fd, POLLIN); }

static void ring_submit(io *i) {
    i->enters++;
    io_uring_submit_and_get_events(&ring_of(i)->uring);
}

static void ring_push(io *i) {
    struct io_uring *uring = &ring_of(i)->uring;
    if (io_uring_sq_ready(uring) == 0) return;
    i->enters++;
    io_uring_submit(uring);
}

static bool has_tries(const io *i) { return ring_of(i)->ready.tries.first != NULL; }

static void arm_timer(io *i, int64_t until_us) {
    ring *r = ring_of(i);
    if (r->timer_us != 0 && r->timer_us <= until_us) return;
    struct io_uring_sqe *slot = free_slot(i);
    bool moves = r->timer_us != 0;
    r->timer_us = until_us;
    r->timer = (struct __kernel_timespec){.tv_sec = until_us / 1000000, .tv_nsec = (until_us % 1000000) * 1000};
    if (moves) {
        io_uring_prep_timeout_update(slot, &r->timer, DATA_TIMER, IORING_TIMEOUT_ABS);
        slot->user_data = DATA_NOTHING; /* one that has expired meanwhile says so itself */
        slot->flags |= IOSQE_CQE_SKIP_SUCCESS;
    } else {
        io_uring_prep_timeout(slot, &r->timer, 0, IORING_TIMEOUT_ABS);
        slot->user_data = DATA_TIMER;
    }
}

static void ring_enter(io *i, int64_t timeout_us) {
    if (timeout_us == 0 || has_tries(i)) {
        ring_submit(i);
        return;
    }
    arm_timer(i, clock_monotonic_us() + timeout_us);
    i->enters++;
    io_uring_submit_and_wait(&ring_of(i)->uring, 1);
}

/* Without a system call: completions wait, or work of the kernel that makes some. */
static bool ring_ready(io *i) {
    struct io_uring *uring = &ring_of(i)->uring;
    unsigned flags = IO_URING_READ_ONCE(*uring->sq.kflags);
    return has_tries(i) || io_uring_cq_ready(uring) > 0 || (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

static void reap_completions(io *i, io_callback *callback, void *context) {
    ring *r = ring_of(i);
    struct io_uring_cqe *batch[REAP_BATCH];
    unsigned count;
    /* The kernel finishes some twenty operations in one call: beside a crowd the others would wait for many turns. The
     * flag says that there are more, and the library then asks again. */
    for (unsigned round = 0; round < REAP_ROUNDS_MAX; round++) {
        count = io_uring_peek_batch_cqe(&r->uring, batch, REAP_BATCH);
        if (count == 0) return;
        for (unsigned n = 0; n < count; n++) {
            const struct io_uring_cqe *at = batch[n];
            if ((at->user_data & DATA_WATCH) != 0) on_watch(&r->ready, at);
            else if (at->user_data == DATA_TIMER) r->timer_us = 0;
            else if (at->user_data != DATA_NOTHING)
                callback(context, &(completion){.op = io_uring_cqe_get_data(at),
                                                .result = at->res,
                                                .buffer = -1,
                                                .more = (at->flags & IORING_CQE_F_MORE) != 0});
        }
        io_uring_cq_advance(&r->uring, count);
    }
}

static void ring_reap(io *i, io_callback *callback, void *context) {
    reap_completions(i, callback, context);
    try_receives(i, callback, context);
}

static void ring_buffer_return(io *i, int32_t id) { readiness_buffer_return(&ring_of(i)->ready, i, id); }

static void ring_close(io *i) {
    ring *r = ring_of(i);
    io_uring_queue_exit(&r->uring);
    readiness_close(&r->ready);
    free(r);
    i->state = NULL;
}

static const io_calls ring_calls = {
    .close = ring_close,
    .accept = ring_accept,
    .cancel_accept = ring_cancel_accept,
    .receive_provided = ring_receive_provided,
    .receive = ring_receive,
    .send = ring_send,
    .read_cached = read_cached,
    .read = ring_read,
    .fdatasync = ring_fdatasync,
    .poll = ring_poll,
    .forget = ring_forget,
    .submit = ring_submit,
    .push = ring_push,
    .enter = ring_enter,
    .ready = ring_ready,
    .reap = ring_reap,
    .buffer_return = ring_buffer_return,
};

int io_ring_open(io *i, uint8_t *const memory[BUFFER_SETS]) {
    ring *r = calloc(1, sizeof *r);
    if (r == NULL) return -ENOMEM;
    *i = (io){.calls = &ring_calls, .state = r, .memory = {memory[0], memory[1]}};
    int result = init_uring(&r->uring);
    if (result == 0) {
        result = readiness_open(&r->ready, i);
        if (result != 0) io_uring_queue_exit(&r->uring);
    }
    if (result != 0) {
        free(r);
        i->state = NULL;
        return result;
    }
    io_uring_register_ring_fd(&r->uring); /* saves a descriptor look-up per enter; harmless when refused */
    return 0;
}

int io_open(io *i, io_engine which, uint8_t *const memory[BUFFER_SETS]) {
    return which == IO_ENGINE_EPOLL ? io_epoll_open(i, memory) : io_ring_open(i, memory);
}

static void count_completion(void *context, const completion *done) { *(int *)context += done->result > 0; }

/* Set-up alone may be allowed: what comes for a socket has to be told, too. 0 or -errno. */
static int round_trip(io *i) {
    int two[2], received = 0, result = 0;
    operation op = {0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two) != 0) return -errno;
    io_receive_provided(i, &op, two[0], BUFFERS_LOGGED_IN);
    for (int round = 0; round < PROBE_ROUNDS && received == 0 && result >= 0; round++) {
        io_reap(i, count_completion, &received);
        if (round == 0 && write(two[1], "", 1) != 1) result = -EIO; /* after the socket was found empty */
        else if (round == 0) result = io_uring_submit(&ring_of(i)->uring);
        else if (received == 0) io_enter(i, PROBE_ROUND_US);
    }
    close(two[0]);
    close(two[1]);
    return result < 0 ? result : received > 0 ? 0 : -EIO;
}

const char *io_ring_probe(void) {
    size_t first = io_buffers_bytes(BUFFERS_LOGGED_IN), bytes = first + io_buffers_bytes(BUFFERS_ANONYMOUS);
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return "no memory for the receive buffers";
    uint8_t *sets[BUFFER_SETS] = {memory, memory + first};
    io i;
    int result = io_ring_open(&i, sets);
    if (result == 0) {
        result = round_trip(&i);
        io_close(&i);
    }
    munmap(memory, bytes);
    switch (-result) {
    case 0: return NULL;
    case EPERM:
    case EACCES: return "io_uring is forbidden here (kernel.io_uring_disabled or a seccomp profile)";
    case ENOSYS:
    case EINVAL: return "this kernel lacks io_uring features that shardd needs (Linux 5.19 or newer)";
    case ENOMEM: return "io_uring needs more locked memory than RLIMIT_MEMLOCK allows";
    default: return "io_uring could not be set up";
    }
}
