#include "write_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "wire.h"

enum { READ_FILE_BYTES = 256 << 20 };

typedef struct stopwatch {
    uint64_t wall_ns;
    uint64_t cpu_us;
} stopwatch;

static uint64_t cpu_us(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    uint64_t seconds = (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec);
    return seconds * 1000000u + (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static stopwatch start(void) { return (stopwatch){.wall_ns = now_ns(), .cpu_us = cpu_us()}; }

static result stop(stopwatch s, uint64_t operations) {
    uint64_t wall_ns = now_ns() - s.wall_ns, cpu = cpu_us() - s.cpu_us;
    return (result){.us_per_op = (double)wall_ns / 1e3 / (double)operations,
                    .cpu_us_per_op = (double)cpu / (double)operations};
}

/* Operations of one round: enough for a stable figure, little enough to stay below the dirty-page limits. */
static uint64_t append_turns(const bench *b, uint32_t bytes, uint32_t files) {
    uint64_t total = bytes < 4096 ? 8u << 20 : bytes < WRITE_MAX ? 128u << 20 : 512u << 20;
    uint64_t turns = total / bytes / files;
    return b->quick ? turns / 32 + 1 : turns;
}

static void truncate_all(bench *b, uint32_t files) {
    for (uint32_t i = 0; i < files; i++)
        if (ftruncate(b->fds[i], 0) != 0) fail("ftruncate", errno);
}

/* Submits what is queued and checks the results of `count` completions. */
static void ring_turn(struct io_uring *ring, uint32_t count, int32_t expected) {
    int submitted = io_uring_submit_and_wait(ring, count);
    if (submitted < 0) fail("io_uring_submit_and_wait", -submitted);
    for (uint32_t done = 0; done < count; done++) {
        struct io_uring_cqe *cqe;
        int error = io_uring_wait_cqe(ring, &cqe);
        if (error < 0) fail("io_uring_wait_cqe", -error);
        if (cqe->res < 0) fail("ring operation", -cqe->res);
        if (cqe->res != expected) fail("ring operation was short", EIO);
        io_uring_cqe_seen(ring, cqe);
    }
}

result append_syscall(bench *b, uint32_t bytes, uint32_t files) {
    struct iovec part = {.iov_base = b->data, .iov_len = bytes};
    uint64_t turns = append_turns(b, bytes, files);
    truncate_all(b, files);
    stopwatch s = start();
    for (uint64_t turn = 0; turn < turns; turn++)
        for (uint32_t i = 0; i < files; i++)
            if (pwritev(b->fds[i], &part, 1, (off_t)(turn * bytes)) != (ssize_t)bytes) fail("pwritev", errno);
    result r = stop(s, turns * files);
    truncate_all(b, files);
    return r;
}

result append_ring(bench *b, uint32_t bytes, uint32_t files) {
    struct iovec part = {.iov_base = b->data, .iov_len = bytes};
    uint64_t turns = append_turns(b, bytes, files);
    truncate_all(b, files);
    stopwatch s = start();
    for (uint64_t turn = 0; turn < turns; turn++) {
        for (uint32_t i = 0; i < files; i++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
            io_uring_prep_writev(sqe, (int)i, &part, 1, turn * bytes);
            io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
        }
        ring_turn(&b->ring, files, (int32_t)bytes);
    }
    result r = stop(s, turns * files);
    truncate_all(b, files);
    return r;
}

/* ---- reads ---- */

static void read_prepare(bench *b, bool cold) {
    if (lseek(b->fds[0], 0, SEEK_END) != READ_FILE_BYTES) {
        truncate_all(b, 1);
        for (uint64_t at = 0; at < READ_FILE_BYTES; at += WRITE_MAX)
            if (pwrite(b->fds[0], b->data, WRITE_MAX, (off_t)at) != WRITE_MAX) fail("pwrite", errno);
        if (fdatasync(b->fds[0]) != 0) fail("fdatasync", errno);
    }
    if (cold && posix_fadvise(b->fds[0], 0, 0, POSIX_FADV_DONTNEED) != 0) fail("posix_fadvise", errno);
}

/* Cold reads jump, so that read-ahead does not turn them into warm ones. */
static uint64_t read_position(uint64_t i, uint32_t bytes, bool cold) {
    uint64_t slots = READ_FILE_BYTES / bytes;
    return (cold ? i * 2654435761u % slots : i % slots) * bytes;
}

static uint64_t read_count(const bench *b, uint32_t bytes, bool cold) {
    uint64_t count = cold ? (64u << 20) / bytes : (512u << 20) / bytes;
    count = count > 20000 ? 20000 : count;
    count = cold && count > 1000 ? 1000 : count;
    return b->quick ? count / 32 + 1 : count;
}

static void read_one_ring(bench *b, uint32_t bytes, uint64_t position) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
    io_uring_prep_read(sqe, 0, b->data, bytes, position);
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    ring_turn(&b->ring, 1, (int32_t)bytes);
}

result read_nowait(bench *b, uint32_t bytes, bool cold) {
    uint64_t count = read_count(b, bytes, cold), fallbacks = 0;
    read_prepare(b, cold);
    stopwatch s = start();
    for (uint64_t i = 0; i < count; i++) {
        struct iovec part = {.iov_base = b->data, .iov_len = bytes};
        uint64_t position = read_position(i, bytes, cold);
        ssize_t n = preadv2(b->fds[0], &part, 1, (off_t)position, RWF_NOWAIT);
        if (n == (ssize_t)bytes) continue;
        if (n < 0 && errno != EAGAIN && errno != EOPNOTSUPP) fail("preadv2", errno);
        fallbacks++;
        read_one_ring(b, bytes, position); /* a short read is repeated whole: the rest is not in the cache */
    }
    result r = stop(s, count);
    r.refused_share = (double)fallbacks / (double)count;
    return r;
}

result read_ring(bench *b, uint32_t bytes, bool cold) {
    uint64_t count = read_count(b, bytes, cold);
    read_prepare(b, cold);
    stopwatch s = start();
    for (uint64_t i = 0; i < count; i++) read_one_ring(b, bytes, read_position(i, bytes, cold));
    return stop(s, count);
}

/* ---- fdatasync ---- */

static uint64_t sync_turns(const bench *b) { return b->quick ? 2 : 20; }

static void append_turn(bench *b, uint32_t bytes, uint32_t files, uint64_t turn) {
    for (uint32_t i = 0; i < files; i++)
        if (pwrite(b->fds[i], b->data, bytes, (off_t)(turn * bytes)) != (ssize_t)bytes) fail("pwrite", errno);
}

result sync_syscall(bench *b, uint32_t bytes, uint32_t files) {
    uint64_t turns = sync_turns(b);
    truncate_all(b, files);
    stopwatch s = start();
    for (uint64_t turn = 0; turn < turns; turn++) {
        append_turn(b, bytes, files, turn);
        for (uint32_t i = 0; i < files; i++)
            if (fdatasync(b->fds[i]) != 0) fail("fdatasync", errno);
    }
    result r = stop(s, turns);
    truncate_all(b, files);
    return r;
}

result sync_ring(bench *b, uint32_t bytes, uint32_t files) {
    uint64_t turns = sync_turns(b);
    truncate_all(b, files);
    stopwatch s = start();
    for (uint64_t turn = 0; turn < turns; turn++) {
        append_turn(b, bytes, files, turn);
        for (uint32_t i = 0; i < files; i++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
            io_uring_prep_fsync(sqe, (int)i, IORING_FSYNC_DATASYNC);
            io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
        }
        ring_turn(&b->ring, files, 0);
    }
    result r = stop(s, turns);
    truncate_all(b, files);
    return r;
}
