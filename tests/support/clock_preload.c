/* Between a server and libc (LD_PRELOAD): the wall clock is ahead by as many microseconds as the shared file says that
 * CLOCK_CONTROL names (tests/support/wall_clock.py writes it). CLOCK_ALSO: other clocks that follow it, "boottime" and
 * "monotonic". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t *ahead_us;
static bool boottime, monotonic;

__attribute__((constructor)) static void attach(void) {
    const char *name = getenv("CLOCK_CONTROL"), *also = getenv("CLOCK_ALSO");
    int fd = name != NULL ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd >= 0 ? mmap(NULL, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0) syscall(SYS_close, fd);
    ahead_us = at != MAP_FAILED ? at : NULL;
    boottime = also != NULL && strstr(also, "boottime") != NULL;
    monotonic = also != NULL && strstr(also, "monotonic") != NULL;
}

static bool follows(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || (clock == CLOCK_BOOTTIME && boottime) ||
           (clock == CLOCK_MONOTONIC && monotonic);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int status = (int)syscall(SYS_clock_gettime, clock, out);
    if (status != 0 || ahead_us == NULL || !follows(clock)) return status;
    int64_t ahead = *ahead_us, nanoseconds = out->tv_nsec + ahead % 1000000 * 1000;
    out->tv_sec += ahead / 1000000 + nanoseconds / 1000000000 - (nanoseconds < 0);
    out->tv_nsec = (nanoseconds % 1000000000 + 1000000000) % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
