/* The commit of a turn: all batches that it brought, one append call per partition; then their answers. */
#ifndef SHARDD_COMMIT_H
#define SHARDD_COMMIT_H
#include "core/core.h"

int commit_open(core *k); /* 0 or -ENOMEM */
void commit_close(core *k);
/* `block`: of the pool, freed when the records are written; NULL: they stay where they are until the answer. */
void commit_stage(core *k, owned *target, const append_batch *batch, const caller *from, uint8_t *block);
void commit_all(core *k);
void commit_report_room(core *k); /* tells Python when there is room on the disk again, or none any more */
#endif
