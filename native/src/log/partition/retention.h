/* Limits of a partition, and what holds them back. */
#ifndef SHARDD_PARTITION_RETENTION_H
#define SHARDD_PARTITION_RETENTION_H
#include "log/partition.h"

typedef struct retention {
    partition_limits limits;
    uint64_t expires_at_us; /* no message expires before; UINT64_MAX: there is no expiry */
    uint64_t settled;       /* acknowledged more than a second ago */
    struct {
        uint64_t end; /* what was acknowledged then */
        int64_t at_us;
    } settling[4];   /* looks of the last second */
    bool held;       /* stored offsets hold back what has expired */
    bool limit_held; /* and what a size or a count wants to go, since the last step */
    uint64_t leased; /* files with messages from there on stay for a reader */
} retention;

static inline retention retention_open(void) { return (retention){.expires_at_us = UINT64_MAX, .leased = UINT64_MAX}; }
void retention_set_limits(retention *r, const partition_limits *limits);
static inline const partition_limits *retention_limits(const retention *r) { return &r->limits; }
/* Notes what was acknowledged a second ago by a clock that nobody sets, or at most a quarter more than that. */
void retention_settle(retention *r, int64_t monotonic_us, uint64_t visible_end);
static inline uint64_t retention_settled(const retention *r) { return r->settled; }

/* ---- by age ---- */

static inline bool retention_may_expire(const retention *r) { return r->expires_at_us != UINT64_MAX; }
/* Messages may have expired. `age_max`: no message expires later than that from now on. */
static inline bool retention_is_due(const retention *r, uint64_t now, uint64_t age_max) {
    /* further than any age from now: the clock has been set back since */
    return now >= r->expires_at_us || r->expires_at_us - now > age_max;
}
/* What has expired is hidden, or `held` by stored offsets; the next message expires at `next_us`. */
static inline void retention_expired(retention *r, bool held, uint64_t next_us) {
    r->held = held;
    r->expires_at_us = next_us;
}
/* A stored offset has changed: what it held back may have expired. Sizes and counts look at each step. */
static inline void retention_barrier_moved(retention *r) {
    if (r->held) r->expires_at_us = 0;
}

/* ---- what holds messages and files ---- */

static inline void retention_limit_holds(retention *r, bool held) { r->limit_held |= held; }
/* Whether it was since the last call. */
static inline bool retention_limit_was_held(retention *r) {
    bool held = r->limit_held;
    r->limit_held = false;
    return held;
}
static inline bool retention_is_held(const retention *r) { return r->held || r->limit_held; }
static inline void retention_lease(retention *r, uint64_t offset) { r->leased = offset; }
/* A segment that ends at `end` has messages that a reader has leased. */
static inline bool retention_is_leased(const retention *r, uint64_t end) { return end > r->leased; }
#endif
