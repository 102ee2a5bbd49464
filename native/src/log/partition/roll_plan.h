/* When the active segment is sealed and the next one is made. */
#ifndef SHARDD_PARTITION_ROLL_PLAN_H
#define SHARDD_PARTITION_ROLL_PLAN_H
#include <stdbool.h>
#include <stdint.h>

typedef struct roll_plan {
    uint64_t size_bytes;    /* at which segments are sealed, */
    uint64_t default_bytes; /* where the topic has no limit of its own */
    uint64_t at_us;         /* when the active segment is too old to grow; UINT64_MAX: never, or it is empty */
    bool pending;           /* the active segment is sealed, the next one could not be made yet */
} roll_plan;

static inline roll_plan roll_open(uint64_t segment_bytes) {
    return (roll_plan){.size_bytes = segment_bytes, .default_bytes = segment_bytes, .at_us = UINT64_MAX};
}
/* Segments are sealed at this size. */
static inline uint64_t roll_size(const roll_plan *r) { return r->size_bytes; }
/* A batch at `position` is the last one of its segment. */
static inline bool roll_seals(const roll_plan *r, uint64_t position) { return position >= r->size_bytes; }
static inline bool roll_is_wanted(const roll_plan *r) { return r->pending; }
static inline bool roll_is_old(const roll_plan *r, uint64_t now_us) { return now_us >= r->at_us; }
static inline bool roll_grows_old(const roll_plan *r) { return r->at_us != UINT64_MAX; }
static inline bool roll_is_due(const roll_plan *r, uint64_t now_us) { return r->pending || roll_is_old(r, now_us); }
/* The size that the topic wants; 0: the default. */
static inline void roll_set_size(roll_plan *r, uint64_t bytes) { r->size_bytes = bytes > 0 ? bytes : r->default_bytes; }
/* When the active segment is too old to grow; UINT64_MAX: never. */
static inline void roll_set_end(roll_plan *r, uint64_t at_us) { r->at_us = at_us; }
/* The active segment is sealed: the next append tries until the next one is made. */
static inline void roll_wanted(roll_plan *r) { r->pending = true; }
static inline void roll_made(roll_plan *r) {
    r->pending = false;
    r->at_us = UINT64_MAX;
}
#endif
