#include "floor_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* A connection's receive takes a whole buffer, or what it needs of a large one: then a few are enough. */
enum { ENTRIES = 1024, COMPLETIONS = 8192, GROUP = 0, BUFFERS = 256, BUFFER_BYTES = 4096 };
enum { INCREMENTAL_BUFFERS = 16, INCREMENTAL_BYTES = 32 << 10 };
enum { REGISTER_INCREMENTAL = 2, COMPLETION_KEEPS_BUFFER = 1 << 4 }; /* IOU_PBUF_RING_INC, IORING_CQE_F_BUF_MORE */
enum { PROBE_BYTES = 4 << 20 };

/* struct io_uring_buf_reg of newer headers */
struct buffer_registration {
    uint64_t ring_addr;
    uint32_t ring_entries;
    uint16_t bgid, flags;
    uint64_t reserved[3];
};

const char *const ring_feature_names[RING_FEATURES] = {"deferred", "multishot", "incremental", "quiet"};

static unsigned buffers_of(const ring *r) { return r->features & RING_INCREMENTAL ? INCREMENTAL_BUFFERS : BUFFERS; }

static size_t bytes_of(const ring *r) { return r->features & RING_INCREMENTAL ? INCREMENTAL_BYTES : BUFFER_BYTES; }

static void provide(ring *r, unsigned id) {
    io_uring_buf_ring_add(r->table, r->memory + id * bytes_of(r), (unsigned)bytes_of(r), (uint16_t)id,
                          io_uring_buf_ring_mask(buffers_of(r)), 0);
    io_uring_buf_ring_advance(r->table, 1);
}

static void *pages(size_t bytes) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_POPULATE, -1, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static int open_buffers(ring *r) {
    unsigned count = buffers_of(r);
    r->table = pages(count * sizeof(struct io_uring_buf));
    r->memory = pages(count * bytes_of(r));
    r->used = calloc(count, sizeof *r->used);
    if (r->table == NULL || r->memory == NULL || r->used == NULL) return -ENOMEM;
    struct buffer_registration registration = {.ring_addr = (uint64_t)(uintptr_t)r->table,
                                               .ring_entries = count,
                                               .bgid = GROUP,
                                               .flags = r->features & RING_INCREMENTAL ? REGISTER_INCREMENTAL : 0};
    int result = io_uring_register_buf_ring(&r->uring, (struct io_uring_buf_reg *)&registration, 0);
    if (result != 0) return result;
    io_uring_buf_ring_init(r->table);
    for (unsigned id = 0; id < count; id++) provide(r, id);
    return 0;
}

void ring_close(ring *r) {
    io_uring_queue_exit(&r->uring);
    if (r->table != NULL) munmap(r->table, buffers_of(r) * sizeof(struct io_uring_buf));
    if (r->memory != NULL) munmap(r->memory, buffers_of(r) * bytes_of(r));
    free(r->used);
}

int ring_open(ring *r, unsigned features) {
    unsigned deferred = features & RING_DEFERRED ? IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN : 0;
    struct io_uring_params parameters = {.flags = IORING_SETUP_CQSIZE | deferred, .cq_entries = COMPLETIONS};
    *r = (ring){.features = features};
    int result = io_uring_queue_init_params(ENTRIES, &r->uring, &parameters);
    if (result != 0) return result;
    result = open_buffers(r);
    if (result != 0) ring_close(r);
    else io_uring_register_ring_fd(&r->uring); /* saves looking it up; harmless when refused */
    return result;
}

struct io_uring_sqe *ring_next(ring *r) {
    struct io_uring_sqe *entry;
    while ((entry = io_uring_get_sqe(&r->uring)) == NULL) io_uring_submit(&r->uring);
    return entry;
}

void ring_receive(ring *r, int fd, bool direct, uint64_t user_data) {
    bool multishot = (r->features & RING_MULTISHOT) != 0;
    struct io_uring_sqe *entry = ring_next(r);
    io_uring_prep_recv(entry, fd, NULL, multishot ? 0 : bytes_of(r), 0);
    entry->ioprio |= multishot ? IORING_RECV_MULTISHOT : 0;
    entry->flags |= IOSQE_BUFFER_SELECT | (direct ? IOSQE_FIXED_FILE : 0);
    entry->buf_group = GROUP;
    io_uring_sqe_set_data64(entry, user_data);
}

void ring_send(ring *r, int fd, bool direct, bool quiet, const uint8_t *data, size_t length, uint64_t user_data) {
    struct io_uring_sqe *entry = ring_next(r);
    /* not waiting, and all of it: then it is a failure when the socket takes less, and failures are told */
    io_uring_prep_send(entry, fd, data, length, MSG_NOSIGNAL | (quiet ? MSG_DONTWAIT | MSG_WAITALL : 0));
    entry->flags |= (direct ? IOSQE_FIXED_FILE : 0) | (quiet ? IOSQE_CQE_SKIP_SUCCESS : 0);
    io_uring_sqe_set_data64(entry, user_data);
}

const uint8_t *ring_received(const ring *r, const struct io_uring_cqe *completion) {
    unsigned id = completion->flags >> IORING_CQE_BUFFER_SHIFT;
    return r->memory + id * bytes_of(r) + r->used[id];
}

void ring_done_with(ring *r, const struct io_uring_cqe *completion) {
    if ((completion->flags & IORING_CQE_F_BUFFER) == 0) return;
    unsigned id = completion->flags >> IORING_CQE_BUFFER_SHIFT;
    if (completion->flags & COMPLETION_KEEPS_BUFFER) {
        r->used[id] += (uint32_t)completion->res;
        return;
    }
    r->used[id] = 0;
    provide(r, id);
}

/* ---- what this kernel has ---- */

/* The next completion, within a second. */
static bool next_completion(ring *r, struct io_uring_cqe *next) {
    struct io_uring_cqe *completion = NULL;
    struct __kernel_timespec limit = {.tv_sec = 1};
    io_uring_submit(&r->uring);
    if (io_uring_wait_cqe_timeout(&r->uring, &completion, &limit) != 0 || completion == NULL) return false;
    *next = *completion;
    io_uring_cqe_seen(&r->uring, completion);
    return true;
}

/* Two receives of a byte. */
static bool receives(ring *r, int from, int to) {
    bool multishot = (r->features & RING_MULTISHOT) != 0;
    for (int turn = 0; turn < 2; turn++) {
        struct io_uring_cqe got;
        if (turn == 0 || !multishot) ring_receive(r, to, false, 1);
        if (write(from, "x", 1) != 1) return false;
        if (!next_completion(r, &got) || got.res != 1 || *ring_received(r, &got) != 'x') return false;
        if (multishot && (got.flags & IORING_CQE_F_MORE) == 0) return false;
        if ((r->features & RING_INCREMENTAL) != 0 && (got.flags & COMPLETION_KEEPS_BUFFER) == 0) return false;
        ring_done_with(r, &got);
    }
    return true;
}

/* Of two sends the one that fits says nothing, and the one that does not says how much of it was sent. */
static bool sends_quietly(ring *r, int from) {
    struct io_uring_cqe told;
    uint8_t *data = calloc(1, PROBE_BYTES);
    if (data == NULL) return false;
    ring_send(r, from, false, true, data, 1, 2);
    ring_send(r, from, false, true, data, PROBE_BYTES, 3);
    bool there = next_completion(r, &told);
    free(data);
    return there && told.user_data == 3 && told.res != -EINVAL && told.res < PROBE_BYTES;
}

/* 0: all of `features` work. */
static int try(unsigned features) {
    ring r;
    int ends[2], result = ring_open(&r, features);
    if (result != 0) return result;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        ring_close(&r);
        return -errno;
    }
    bool works = receives(&r, ends[0], ends[1]) && ((features & RING_QUIET) == 0 || sends_quietly(&r, ends[0]));
    ring_close(&r);
    close(ends[0]);
    close(ends[1]);
    return works ? 0 : -EINVAL;
}

int ring_probe(unsigned wanted) {
    unsigned found = 0;
    int result = try(0);
    if (result != 0) return result;
    for (unsigned bit = 1; bit < 1u << RING_FEATURES; bit <<= 1) {
        bool alone = bit != RING_QUIET || (found & RING_DEFERRED) != 0;
        if ((wanted & bit) != 0 && alone && try(found | bit) == 0) found |= bit;
    }
    return (int)found;
}
