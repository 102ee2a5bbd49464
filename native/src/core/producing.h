/* Batches of producers whose batches are stored once (docs/adr/0073-idempotent-producers.md): judged when they are
 * appended, before ids are compared, limits are looked at and offsets are given. */
#ifndef SHARDD_PRODUCING_H
#define SHARDD_PRODUCING_H
#include "core/core.h"

/* Before partitions are opened: what they know of producers says whose each is. */
void producing_open(core *k);
/* What is judged without the partition: the producer is one of this user. False: `out` is the answer. */
bool producing_allowed(const core *k, uint32_t user_id, const producer_batch *b, produced *out);
/* Whether this batch may be appended now: then `made` is PRODUCED_STORED. Otherwise it has its answer or its status. */
bool producing_judge(core *k, owned *target, append_batch *b);
/* After partition_append, or instead of it when nothing of the batch was new: its answer. */
void producing_done(owned *target, append_batch *b);
#endif
