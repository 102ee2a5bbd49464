/* A wall clock and a time since the boot that a test moves. */
#ifndef STEPPED_CLOCK_H
#define STEPPED_CLOCK_H

#include <stdint.h>

static uint64_t wall_now;
static int64_t monotonic_now;

static inline uint64_t wall(void *context) {
    (void)context;
    return wall_now;
}

static inline int64_t monotonic(void *context) {
    (void)context;
    return monotonic_now;
}

/* Both go on by as much: no jump. */
static inline void pass(uint64_t us) {
    wall_now += us;
    monotonic_now += (int64_t)us;
}
#endif
