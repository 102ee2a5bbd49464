/* Offsets of a partition that can be read: its index and its damaged ranges together. Private to this folder. */
#ifndef SHARDD_PARTITION_LOOKUP_H
#define SHARDD_PARTITION_LOOKUP_H
#include "log/partition/inside.h"

/* Where the last `count` messages before `end` start, isolated ones not counted. False: an index cannot be read. */
bool partition_last_readable(partition *p, uint64_t end, uint64_t count, uint64_t *start);
/* The same, damaged ones not counted either. */
bool partition_last_whole(partition *p, uint64_t end, uint64_t count, uint64_t *start);
/* partition_pass_over, where some offsets have no record. */
bool partition_sparse_pass_over(partition *p, uint64_t *offset);
/* `offset`, or where what is isolated or has no record ends there: that of a record, of damage, or the end of the
 * partition. False: an index cannot be read. */
static inline bool partition_pass_over(partition *p, uint64_t *offset) {
    *offset = damage_skip_isolated(&p->damage, *offset);
    return !history_is_sparse(&p->history) || partition_sparse_pass_over(p, offset);
}
#endif
