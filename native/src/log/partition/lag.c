/* How far a consumer is behind, from memory alone: no file is read, so that whoever asks for all of them waits for no
 * device. */
#include "log/partition/inside.h"

#include "log/partition/state.h"

/* When the message at `offset` was taken: exact for what the index in memory has (the newest entries of the active
 * segment), else as if the messages of a segment had come evenly. 0: not known. */
static uint64_t taken_at(const partition *p, uint64_t offset) {
    const segment *s = history_find(&p->history, offset);
    if (s == NULL || s->count == 0) return 0;
    uint64_t k = offset - s->start_offset, span = s->count + s->absent;
    uint64_t low = s->first_timestamp, high = s->last_timestamp;
    const index_cache *c = history_newest(&p->history);
    if (s == history_active(&p->history) && s->absent == 0 && c->count > 0) {
        if (k >= c->first) return k - c->first < c->count ? c->entries[k - c->first].timestamp : high;
        span = c->first;
        high = c->entries[0].timestamp;
    }
    if (low == 0 || high <= low || k >= span) return low == 0 ? 0 : high;
    return low + (uint64_t)((double)(high - low) * ((double)k / (double)span));
}

partition_lag partition_lag_of(const partition *p, uint8_t kind, uint32_t id) {
    uint64_t stored, end = partition_visible_end(p), next;
    partition_lag lag = {.stored = partition_offset_get(p, kind, id, &stored)};
    if (p->closed || p->unreadable || history_count(&p->history) == 0) return lag;
    next = partition_first_offset(p);
    if (lag.stored && stored + 1 > next) next = stored + 1;
    if (next >= end) return lag;
    lag.messages = end - next;
    lag.since_us = taken_at(p, next);
    return lag;
}
