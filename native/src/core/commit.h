/* The commit of a turn: all batches that it brought, one append call per partition; then their answers. A batch of more
 * than APPEND_LARGE_BYTES is written in parts, one in a slice; what comes later for its partition waits behind it. */
#ifndef SHARDD_COMMIT_H
#define SHARDD_COMMIT_H
#include "core/core.h"

int commit_open(core *k); /* 0 or -ENOMEM */
void commit_close(core *k);
/* `block`: of the pool, freed when the records are written; NULL: they stay where they are until the answer. False:
 * the caller has gone, nothing happens. */
bool commit_stage(core *k, owned *target, const append_batch *batch, const caller *from, uint8_t *block);
void commit_all(core *k);
static inline bool commit_has_parts(const core *k) { return k->commit.in_parts != NULL; }
void commit_next_part(core *k);
/* One part of a large batch, if there is one. */
static inline void commit_part(core *k) {
    if (commit_has_parts(k)) commit_next_part(k);
}
void commit_drop_parts(core *k); /* nobody hears of them any more */
/* One event for each segment that was sealed since the last one; without memory the next commit tells it. */
void commit_report_rolls(core *k, owned *target);
void commit_report_room(core *k); /* tells Python when there is room on the disk again, or none any more */
#endif
