/* The floor on io_uring (floor_ring.c), and the ring of one of its threads (floor_ring_setup.c).
 *
 * What newer kernels have is asked for when it runs: a kernel from 5.19 on, with none of it, is enough. The numbers of
 * what liburing 2.3 does not name are here. */
#ifndef BENCH_FLOOR_RING_H
#define BENCH_FLOOR_RING_H
#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>

#include "floor.h"

enum ring_feature {
    RING_DEFERRED = 1,    /* completions are made when they are asked for: Linux 6.1 */
    RING_MULTISHOT = 2,   /* one request receives for the life of a connection: 6.0 */
    RING_INCREMENTAL = 4, /* a receive takes no more of a buffer than it fills: 6.12 */
    RING_QUIET = 8,       /* a send that is done at once makes no completion; one that is not, says so. With deferred */
};
enum { RING_FEATURES = 4, RING_SLOTS = 1024 };

typedef struct ring {
    struct io_uring uring;
    unsigned features;
    struct io_uring_buf_ring *table; /* of the buffers for what is received */
    uint8_t *memory;
    uint32_t *used; /* bytes of each buffer, when it is incremental */
} ring;

extern const char *const ring_feature_names[RING_FEATURES];

/* Those of the features `wanted` that this kernel has; -errno without a ring that would do. */
int ring_probe(unsigned wanted);
/* In the thread that uses it. 0 or -errno. */
int ring_open(ring *r, unsigned features);
void ring_close(ring *r);
/* A free submission; never NULL. */
struct io_uring_sqe *ring_next(ring *r);
/* Receives once, or for ever, into the next buffers. `direct`: `fd` is the number of a registered file. */
void ring_receive(ring *r, int fd, bool direct, uint64_t user_data);
/* All at once. `user_data` comes back, when the feature is quiet only if less was sent. */
void ring_send(ring *r, int fd, bool direct, bool quiet, const uint8_t *data, size_t length, uint64_t user_data);
/* What a completion has received. */
const uint8_t *ring_received(const ring *r, const struct io_uring_cqe *completion);
/* After every completion of a receive: its buffer may be filled again. */
void ring_done_with(ring *r, const struct io_uring_cqe *completion);

_Noreturn void floor_ring_run(const floor_options *options, unsigned features);
#endif
