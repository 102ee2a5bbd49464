/* io.h on io_uring: set-up, submission slots, the provided receive buffers. The address of an operation is the
 * completion's user_data. */
#include "io/io.h"

#include "base/assert.h"
#include "io/read_cached.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define RING_ENTRIES 1024u
#define FIRST_GROUP 1 /* of the provided buffers, one group for each set */
#define REAP_BATCH 256u
#define REAP_ROUNDS_MAX 128 /* of so many at most: who comes later waits for the next turn */

typedef struct ring {
    struct io_uring uring;
    struct io_uring_buf_ring *buffers[BUFFER_SETS]; /* kernel's view of the provided buffers */
} ring;

static ring *ring_of(const io *i) { return i->state; }

static int provide_buffers(io *i, buffer_set set) {
    ring *r = ring_of(i);
    uint32_t count = io_buffers_count(set);
    void *table = mmap(NULL, count * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE,
                       -1, 0);
    if (table == MAP_FAILED) return -errno;
    struct io_uring_buf_reg registration = {
        .ring_addr = (uint64_t)(uintptr_t)table, .ring_entries = count, .bgid = (uint16_t)(FIRST_GROUP + set)};
    int result = io_uring_register_buf_ring(&r->uring, &registration, 0);
    if (result != 0) {
        munmap(table, count * sizeof(struct io_uring_buf));
        return result;
    }
    r->buffers[set] = table;
    io_uring_buf_ring_init(r->buffers[set]);
    for (uint32_t n = 0; n < count; n++) {
        int32_t id = io_first_buffer(set) + (int32_t)n;
        io_uring_buf_ring_add(r->buffers[set], io_buffer(i, id), io_buffer_size(set), (uint16_t)id,
                              io_uring_buf_ring_mask(count), (int)n);
    }
    io_uring_buf_ring_advance(r->buffers[set], (int)count);
    i->free_buffers[set] = count;
    return 0;
}

static void unmap_tables(ring *r) {
    for (buffer_set set = 0; set < BUFFER_SETS; set++)
        if (r->buffers[set] != NULL) munmap(r->buffers[set], io_buffers_count(set) * sizeof(struct io_uring_buf));
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
    if (result == 0 && !(uring->features & IORING_FEAT_EXT_ARG)) {
        io_uring_queue_exit(uring);
        return -ENOSYS;
    }
    return result;
}

/* A free submission slot for `op`; submits what waits when the queue is full. Never NULL. */
static struct io_uring_sqe *slot_for(io *i, operation *op) {
    ring *r = ring_of(i);
    struct io_uring_sqe *slot = io_uring_get_sqe(&r->uring);
    while (slot == NULL) {
        i->enters++;
        io_uring_submit(&r->uring);
        slot = io_uring_get_sqe(&r->uring);
    }
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
    io_uring_sqe_set_data(slot, NULL);
}

static void ring_receive_provided(io *i, operation *op, int fd, buffer_set set) {
    struct io_uring_sqe *slot = slot_for(i, op);
    io_uring_prep_recv(slot, fd, NULL, io_buffer_size(set), 0);
    slot->flags |= IOSQE_BUFFER_SELECT;
    slot->buf_group = (uint16_t)(FIRST_GROUP + set);
}

static void ring_receive(io *i, operation *op, int fd, void *data, uint32_t length) {
    io_uring_prep_recv(slot_for(i, op), fd, data, length, 0);
}

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

static void ring_forget(io *i, int fd) {
    (void)i;
    (void)fd;
}

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

static void ring_enter(io *i, int64_t timeout_us) {
    if (timeout_us == 0) {
        ring_submit(i);
        return;
    }
    i->enters++;
    struct io_uring_cqe *completion;
    struct __kernel_timespec limit = {.tv_sec = timeout_us / 1000000, .tv_nsec = (timeout_us % 1000000) * 1000};
    io_uring_submit_and_wait_timeout(&ring_of(i)->uring, &completion, 1, &limit, NULL);
}

/* Without a system call: completions wait, or work of the kernel that makes some. */
static bool ring_ready(io *i) {
    struct io_uring *uring = &ring_of(i)->uring;
    unsigned flags = IO_URING_READ_ONCE(*uring->sq.kflags);
    return io_uring_cq_ready(uring) > 0 || (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

static void ring_reap(io *i, io_callback *callback, void *context) {
    struct io_uring *uring = &ring_of(i)->uring;
    struct io_uring_cqe *batch[REAP_BATCH];
    unsigned count;
    /* The kernel finishes some twenty operations in one call: beside a crowd the others would wait for many turns. The
     * flag says that there are more, and the library then asks again. */
    for (unsigned round = 0; round < REAP_ROUNDS_MAX; round++) {
        count = io_uring_peek_batch_cqe(uring, batch, REAP_BATCH);
        if (count == 0) return;
        for (unsigned n = 0; n < count; n++) {
            const struct io_uring_cqe *at = batch[n];
            if (at->user_data == 0) continue; /* of a cancellation */
            completion done = {.op = io_uring_cqe_get_data(at),
                               .result = at->res,
                               .buffer = -1,
                               .more = (at->flags & IORING_CQE_F_MORE) != 0};
            if ((at->flags & IORING_CQE_F_BUFFER) != 0) {
                done.buffer = (int32_t)(at->flags >> IORING_CQE_BUFFER_SHIFT);
                i->free_buffers[io_buffer_set(done.buffer)]--;
            }
            callback(context, &done);
        }
        io_uring_cq_advance(uring, count);
    }
}

static void ring_buffer_return(io *i, int32_t id) {
    ASSERT(id >= 0 && id < (int32_t)BUFFERS_IN_ALL);
    buffer_set set = io_buffer_set(id);
    struct io_uring_buf_ring *buffers = ring_of(i)->buffers[set];
    io_uring_buf_ring_add(buffers, io_buffer(i, id), io_buffer_size(set), (uint16_t)id,
                          io_uring_buf_ring_mask(io_buffers_count(set)), 0);
    io_uring_buf_ring_advance(buffers, 1);
    i->free_buffers[set]++;
}

static void ring_close(io *i) {
    ring *r = ring_of(i);
    io_uring_queue_exit(&r->uring);
    unmap_tables(r);
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
        for (buffer_set set = 0; set < BUFFER_SETS && result == 0; set++) result = provide_buffers(i, set);
        if (result != 0) io_uring_queue_exit(&r->uring);
    }
    if (result != 0) {
        unmap_tables(r);
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

/* Set-up alone may be allowed: one request has to come back, too. 0 or -errno. */
static int round_trip(io *i) {
    struct io_uring *uring = &ring_of(i)->uring;
    struct io_uring_cqe *completion = NULL;
    struct __kernel_timespec limit = {.tv_sec = 1};
    io_uring_prep_nop(io_uring_get_sqe(uring));
    int result = io_uring_submit_and_wait_timeout(uring, &completion, 1, &limit, NULL);
    if (result < 0) return result;
    return completion != NULL ? completion->res : -EIO;
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
