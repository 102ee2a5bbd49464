/* The clock by which messages expire (docs/adr/0040-the-log-start.md): the wall clock, but a jump forward by more than
 * a bound is believed only when it has lasted as long as that bound. Nothing expires earlier by a clock that goes back.
 * Without a call for a while nothing is missed: what the clocks did between two calls is compared. Single-threaded. */
#ifndef SHARDD_EXPIRY_CLOCK_H
#define SHARDD_EXPIRY_CLOCK_H
#include <stdbool.h>
#include <stdint.h>

typedef struct expiry_clock {
    uint64_t (*wall_us)(void *context);
    int64_t (*monotonic_us)(void *context);
    void *context;
    uint64_t jump_max_us; /* 0: whatever the wall clock says */
    /* the rest begins as zero */
    int64_t ahead_us; /* of the monotonic clock, as far as it is believed */
    bool running;
    bool doubted; /* the wall clock is further ahead than that, since: */
    int64_t doubted_since_us;
    uint64_t jumps;   /* that were doubted */
    uint64_t jump_us; /* how far the wall clock was ahead of the believed one at the last call */
} expiry_clock;

uint64_t expiry_clock_now(expiry_clock *c);
/* Before the first look: it is believed that it is that time now, so that a wall clock far ahead of it has jumped. */
void expiry_clock_begin(expiry_clock *c, uint64_t believed_us);
#endif
