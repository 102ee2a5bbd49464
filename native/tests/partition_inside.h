/* What tests see and change inside a partition. No other file outside of log/partition/ includes its private headers
 * (tests/unit/test_native_parts.py). */
#ifndef SHARDD_TEST_PARTITION_INSIDE_H
#define SHARDD_TEST_PARTITION_INSIDE_H
#include "log/partition/inside.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

static inline segment_set *inside_segments(const partition *p) {
    return &((partition *)(uintptr_t)p)->history.segments;
}
static inline const index_cache *inside_index(const partition *p) { return &p->history.index; }
static inline const journal *inside_journal(const partition *p) { return &p->journal; }
static inline const sync_progress *inside_sync(const partition *p) { return &p->sync; }
static inline damage_map *inside_damage(partition *p) { return &p->damage; }
static inline const log_start *inside_start(const partition *p) { return &p->start; }
static inline const stored_offsets *inside_offsets(const partition *p) { return &p->offsets; }
static inline const poll_cursor *inside_cursors(const partition *p) { return p->cursors; }
static inline checkpoint *inside_checkpoint(partition *p) { return &p->checkpoint; }
static inline log_files *inside_files(const partition *p) { return &((partition *)(uintptr_t)p)->files; }
static inline void inside_set_state(partition *p, uint32_t status) { p->state = status; }
static inline void inside_set_stats(partition *p, partition_stats *stats) { p->stats = stats; }
#endif
