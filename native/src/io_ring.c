/* io.h on io_uring: set-up, submission slots, the provided receive buffers. The address of an operation is the
 * completion's user_data. */
#include "io.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define RING_ENTRIES 1024u
#define RECEIVE_GROUP 1
#define REAP_BATCH 256u

typedef struct ring {
    struct io_uring uring;
    struct io_uring_buf_ring *buffers; /* kernel's view of the provided buffers */
} ring;

static ring *ring_of(const io *i) { return i->state; }

static int provide_buffers(io *i) {
    ring *r = ring_of(i);
    size_t bytes = RECEIVE_BUFFERS * sizeof(struct io_uring_buf);
    void *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    if (table == MAP_FAILED) return -errno;
    struct io_uring_buf_reg registration = {
        .ring_addr = (uint64_t)(uintptr_t)table, .ring_entries = RECEIVE_BUFFERS, .bgid = RECEIVE_GROUP};
    int result = io_uring_register_buf_ring(&r->uring, &registration, 0);
    if (result != 0) {
        munmap(table, bytes);
        return result;
    }
    r->buffers = table;
    io_uring_buf_ring_init(r->buffers);
    for (uint16_t id = 0; id < RECEIVE_BUFFERS; id++)
        io_uring_buf_ring_add(r->buffers, io_buffer(i, id), RECEIVE_BUFFER_SIZE, id,
                              io_uring_buf_ring_mask(RECEIVE_BUFFERS), id);
    io_uring_buf_ring_advance(r->buffers, RECEIVE_BUFFERS);
    i->free_buffers = RECEIVE_BUFFERS;
    return 0;
}

static int init_uring(struct io_uring *uring) {
    struct io_uring_params parameters = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                                  IORING_SETUP_CQSIZE,
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

static void ring_receive_provided(io *i, operation *op, int fd) {
    struct io_uring_sqe *slot = slot_for(i, op);
    io_uring_prep_recv(slot, fd, NULL, RECEIVE_BUFFER_SIZE, 0);
    slot->flags |= IOSQE_BUFFER_SELECT;
    slot->buf_group = RECEIVE_GROUP;
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

static void ring_submit(io *i) {
    i->enters++;
    io_uring_submit_and_get_events(&ring_of(i)->uring);
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

static void ring_reap(io *i, io_callback *callback, void *context) {
    struct io_uring *uring = &ring_of(i)->uring;
    struct io_uring_cqe *batch[REAP_BATCH];
    unsigned count;
    while ((count = io_uring_peek_batch_cqe(uring, batch, REAP_BATCH)) > 0) {
        for (unsigned n = 0; n < count; n++) {
            const struct io_uring_cqe *at = batch[n];
            if (at->user_data == 0) continue; /* of a cancellation */
            completion done = {.op = io_uring_cqe_get_data(at),
                               .result = at->res,
                               .buffer = -1,
                               .more = (at->flags & IORING_CQE_F_MORE) != 0};
            if ((at->flags & IORING_CQE_F_BUFFER) != 0) {
                done.buffer = (int32_t)(at->flags >> IORING_CQE_BUFFER_SHIFT);
                i->free_buffers--;
            }
            callback(context, &done);
        }
        io_uring_cq_advance(uring, count);
    }
}

static void ring_buffer_return(io *i, int32_t id) {
    assert(id >= 0 && id < (int32_t)RECEIVE_BUFFERS);
    ring *r = ring_of(i);
    io_uring_buf_ring_add(r->buffers, io_buffer(i, id), RECEIVE_BUFFER_SIZE, (uint16_t)id,
                          io_uring_buf_ring_mask(RECEIVE_BUFFERS), 0);
    io_uring_buf_ring_advance(r->buffers, 1);
    i->free_buffers++;
}

static void ring_close(io *i) {
    ring *r = ring_of(i);
    io_uring_queue_exit(&r->uring);
    if (r->buffers != NULL) munmap(r->buffers, RECEIVE_BUFFERS * sizeof(struct io_uring_buf));
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
    .read = ring_read,
    .fdatasync = ring_fdatasync,
    .poll = ring_poll,
    .submit = ring_submit,
    .enter = ring_enter,
    .reap = ring_reap,
    .buffer_return = ring_buffer_return,
};

int io_ring_open(io *i, uint8_t *memory) {
    ring *r = calloc(1, sizeof *r);
    if (r == NULL) return -ENOMEM;
    *i = (io){.calls = &ring_calls, .state = r, .memory = memory};
    int result = init_uring(&r->uring);
    if (result == 0) {
        result = provide_buffers(i);
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

const char *io_ring_probe(void) {
    uint8_t *memory = mmap(NULL, RECEIVE_BUFFERS * RECEIVE_BUFFER_SIZE, PROT_READ | PROT_WRITE,
                           MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return "no memory for the receive buffers";
    io i;
    int result = io_ring_open(&i, memory);
    if (result == 0) io_close(&i);
    munmap(memory, RECEIVE_BUFFERS * RECEIVE_BUFFER_SIZE);
    switch (-result) {
    case 0: return NULL;
    case EPERM: case EACCES: return "io_uring is forbidden here (kernel.io_uring_disabled or a seccomp profile)";
    case ENOSYS: case EINVAL: return "this kernel lacks io_uring features that shardd needs (Linux 5.19 or newer)";
    case ENOMEM: return "io_uring needs more locked memory than RLIMIT_MEMLOCK allows";
    default: return "io_uring could not be set up";
    }
}
