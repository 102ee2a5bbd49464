/* Offsets of a partition that cannot be read: ranges that ascend and do not overlap. Ranges of one kind do not touch
 * each other. */
#ifndef SHARDD_PARTITION_DAMAGE_MAP_H
#define SHARDD_PARTITION_DAMAGE_MAP_H
#include "log/partition.h"

typedef struct damage_map {
    damaged_range *ranges; /* NULL until the first */
    uint32_t count;
} damage_map;
#endif
