/* See ring.h. */
#include "ring.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int provide_buffers(ring *r) {
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
        io_uring_buf_ring_add(r->buffers, ring_buffer(r, id), RECEIVE_BUFFER_SIZE, id,
                              io_uring_buf_ring_mask(RECEIVE_BUFFERS), id);
    io_uring_buf_ring_advance(r->buffers, RECEIVE_BUFFERS);
    r->free_buffers = RECEIVE_BUFFERS;
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

int ring_open(ring *r, uint8_t *memory) {
    memset(r, 0, sizeof *r);
    r->memory = memory;
    int result = init_uring(&r->uring);
    if (result != 0) return result;
    result = provide_buffers(r);
    if (result != 0) {
        io_uring_queue_exit(&r->uring);
        return result;
    }
    io_uring_register_ring_fd(&r->uring); /* saves a descriptor look-up per enter; harmless when refused */
    return 0;
}

void ring_close(ring *r) {
    io_uring_queue_exit(&r->uring);
    if (r->buffers != NULL) munmap(r->buffers, RECEIVE_BUFFERS * sizeof(struct io_uring_buf));
    r->buffers = NULL;
}

const char *ring_probe(void) {
    uint8_t *memory = mmap(NULL, RECEIVE_BUFFERS * RECEIVE_BUFFER_SIZE, PROT_READ | PROT_WRITE,
                           MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return "no memory for the receive buffers";
    ring r;
    int result = ring_open(&r, memory);
    if (result == 0) ring_close(&r);
    munmap(memory, RECEIVE_BUFFERS * RECEIVE_BUFFER_SIZE);
    switch (-result) {
    case 0: return NULL;
    case EPERM: case EACCES: return "io_uring is forbidden here (kernel.io_uring_disabled or a seccomp profile)";
    case ENOSYS: case EINVAL: return "this kernel lacks io_uring features that shardd needs (Linux 5.19 or newer)";
    case ENOMEM: return "io_uring needs more locked memory than RLIMIT_MEMLOCK allows";
    default: return "io_uring could not be set up";
    }
}

struct io_uring_sqe *ring_slot(ring *r, operation *op) {
    struct io_uring_sqe *slot = io_uring_get_sqe(&r->uring);
    while (slot == NULL) {
        r->enters++;
        io_uring_submit(&r->uring);
        slot = io_uring_get_sqe(&r->uring);
    }
    io_uring_sqe_set_data(slot, op);
    return slot;
}

void ring_enter(ring *r, int64_t timeout_us) {
    r->enters++;
    if (timeout_us == 0) {
        io_uring_submit_and_get_events(&r->uring);
        return;
    }
    struct io_uring_cqe *completion;
    struct __kernel_timespec limit = {.tv_sec = timeout_us / 1000000, .tv_nsec = (timeout_us % 1000000) * 1000};
    io_uring_submit_and_wait_timeout(&r->uring, &completion, 1, &limit, NULL);
}

uint8_t *ring_buffer(const ring *r, uint16_t id) {
    assert(id < RECEIVE_BUFFERS);
    return r->memory + (size_t)id * RECEIVE_BUFFER_SIZE;
}

void ring_buffer_return(ring *r, uint16_t id) {
    io_uring_buf_ring_add(r->buffers, ring_buffer(r, id), RECEIVE_BUFFER_SIZE, id,
                          io_uring_buf_ring_mask(RECEIVE_BUFFERS), 0);
    io_uring_buf_ring_advance(r->buffers, 1);
    r->free_buffers++;
}
