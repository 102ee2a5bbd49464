/* What operations ask and change of a whole partition: where polls end, the statistics slot, the status that ends all
 * writes. Private to this folder. */
#ifndef SHARDD_PARTITION_STATE_H
#define SHARDD_PARTITION_STATE_H
#include "log/partition/inside.h"

/* Where polls end: what is acknowledged and in the file. */
static inline uint64_t partition_visible_end(const partition *p) {
    if (p->level != LEVEL_DURABLE) return history_end(&p->history) - journal_records(&p->journal);
    return progress_shown_end(&p->sync);
}
/* Messages that wait for the device before a poll sees them. */
static inline uint32_t partition_unseen(const partition *p) {
    uint64_t unseen = p->level == LEVEL_DURABLE ? history_end(&p->history) - partition_visible_end(p) : 0;
    return unseen < UINT32_MAX ? (uint32_t)unseen : UINT32_MAX;
}
/* Bytes of the active log that the kernel has. */
static inline uint64_t partition_file_end(const partition *p, const segment *active) {
    return active->log_bytes - journal_bytes(&p->journal);
}
/* The active segment has bytes that no sync has covered. */
static inline void partition_dirty_active(partition *p) { progress_mark_last(&p->sync, history_count(&p->history)); }
/* Stores all fields of the statistics slot but the incarnation. */
void partition_publish(const partition *p);
/* The status after a write error: CANNOT_WRITE_TO_FILE (10006), or the status of a partition that takes no writes. */
uint32_t partition_refused(partition *p, int error);
/* Decides when the active segment is too old to grow: after its first message, or with new limits. */
void partition_plan_roll(partition *p);
/* The log start that a manifest may name: never above what the device has, or a power loss would hide messages. */
uint64_t partition_known_start(const partition *p);
#endif
