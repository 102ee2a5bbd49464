/* sync_path DIRECTORY BYTES FILES OPERATIONS WAY: what a batch costs until the device has it.
 *
 * One thread for each file writes OPERATIONS batches of BYTES, each brought to the device before the next one:
 *   grow                the log grows, fdatasync
 *   allocate            fallocate ahead in steps of 1 MiB, fdatasync
 *   zero-4m, zero-16m   zeros written ahead in such steps, fdatasync
 *   ready               zeros written before the measurement, fdatasync
 *   ready-dsync         the same, O_DSYNC instead of fdatasync
 *   ready-direct        the same, O_DIRECT and O_DSYNC; batches rounded up to 4 KiB
 * Prints one JSON line: microseconds for each operation of the slowest file, and its worst operation. */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FILES_MAX = 64, BATCH_MAX = 1 << 20, STEP_MAX = 16 << 20, BLOCK = 4096 };

typedef struct file_run {
    pthread_t thread;
    char path[4096];
    double total_us, worst_us;
} file_run;

static size_t bytes, step; /* step: of the space ahead, 0 none */
static long operations;
static bool zeros_ahead, ready, by_flag, direct;
static uint8_t *zeros;

static _Noreturn void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void write_zeros(int fd, size_t from, size_t length) {
    for (size_t at = 0; at < length; at += STEP_MAX) {
        size_t part = length - at < STEP_MAX ? length - at : STEP_MAX;
        if (pwrite(fd, zeros, part, (off_t)(from + at)) != (ssize_t)part) fail("write of zeros");
    }
}

static int open_log(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) fail(path);
    if (!ready) return fd;
    write_zeros(fd, 0, bytes * (size_t)operations);
    if (fsync(fd) != 0) fail("fsync");
    if (!by_flag) return fd;
    close(fd);
    fd = open(path, O_RDWR | O_CLOEXEC | O_DSYNC | (direct ? O_DIRECT : 0));
    if (fd < 0) fail(path);
    return fd;
}

static void *run(void *argument) {
    file_run *f = argument;
    uint8_t *batch = aligned_alloc(BLOCK, BATCH_MAX);
    if (batch == NULL) fail("memory");
    memset(batch, 1, BATCH_MAX);
    int fd = open_log(f->path);
    size_t end = 0, have = 0;
    double begin = now_us();
    for (long n = 0; n < operations; n++, end += bytes) {
        double at = now_us();
        for (; step > 0 && end + bytes > have; have += step) {
            if (zeros_ahead) write_zeros(fd, have, step);
            else if (fallocate(fd, 0, (off_t)have, (off_t)step) != 0) fail("fallocate");
        }
        if (pwrite(fd, batch, bytes, (off_t)end) != (ssize_t)bytes) fail("write");
        if (!by_flag && fdatasync(fd) != 0) fail("fdatasync");
        double took = now_us() - at;
        if (took > f->worst_us) f->worst_us = took;
    }
    f->total_us = now_us() - begin;
    close(fd);
    unlink(f->path);
    free(batch);
    return NULL;
}

static bool choose(const char *way) {
    ready = strncmp(way, "ready", 5) == 0;
    direct = strcmp(way, "ready-direct") == 0;
    by_flag = direct || strcmp(way, "ready-dsync") == 0;
    zeros_ahead = strncmp(way, "zero-", 5) == 0;
    step = strcmp(way, "allocate") == 0 ? 1u << 20 : strcmp(way, "zero-4m") == 0 ? 4u << 20 : 0;
    if (strcmp(way, "zero-16m") == 0) step = STEP_MAX;
    return step > 0 || ready || strcmp(way, "grow") == 0;
}

int main(int argc, char **argv) {
    static file_run files[FILES_MAX];
    long count = argc == 6 ? atol(argv[3]) : 0;
    if (count < 1 || count > FILES_MAX || !choose(argv[5])) {
        fprintf(stderr, "usage: sync_path DIRECTORY BYTES FILES OPERATIONS WAY\n");
        return 2;
    }
    bytes = (size_t)atol(argv[2]);
    if (direct) bytes = (bytes + BLOCK - 1) / BLOCK * BLOCK;
    operations = atol(argv[4]);
    zeros = calloc(1, STEP_MAX);
    if (bytes < 1 || bytes > BATCH_MAX || operations < 1 || zeros == NULL) return 2;
    for (long i = 0; i < count; i++) {
        snprintf(files[i].path, sizeof files[i].path, "%s/sync_path-%ld", argv[1], i);
        if (pthread_create(&files[i].thread, NULL, run, &files[i]) != 0) fail("thread");
    }
    double total = 0, worst = 0;
    for (long i = 0; i < count; i++) {
        pthread_join(files[i].thread, NULL);
        if (files[i].total_us > total) total = files[i].total_us;
        if (files[i].worst_us > worst) worst = files[i].worst_us;
    }
    printf("{\"us\": %.1f, \"worst_us\": %.1f}\n", total / (double)operations, worst);
    free(zeros);
    return 0;
}
