/* Micro benchmark of the ways to a file: system calls against io_uring. One JSON line per measurement. */
#ifndef BENCH_WRITE_PATH_H
#define BENCH_WRITE_PATH_H
#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>

enum { FILES_MAX = 8, WRITE_MAX = 1 << 20, RING_ENTRIES = 64 };

typedef struct bench {
    const char *directory;
    struct io_uring ring;
    int fds[FILES_MAX];
    uint8_t *data; /* WRITE_MAX bytes, page aligned */
    bool quick;
} bench;

typedef struct result { /* of one round */
    double us_per_op;
    double cpu_us_per_op; /* user and system time of the process, kernel workers of the ring included */
    double refused_share; /* of the RWF_NOWAIT reads, that had to go through the ring */
} result;

/* Each runs one round. `files` operations are in flight at once on as many files (a turn); an operation is one of
 * them, for sync_* the whole turn: an append to each file, then all of them synced. */
result append_syscall(bench *b, uint32_t bytes, uint32_t files);
result append_ring(bench *b, uint32_t bytes, uint32_t files);
result read_nowait(bench *b, uint32_t bytes, bool cold);
result read_ring(bench *b, uint32_t bytes, bool cold);
result sync_syscall(bench *b, uint32_t bytes, uint32_t files);
result sync_ring(bench *b, uint32_t bytes, uint32_t files);

_Noreturn void fail(const char *what, int error);
#endif
