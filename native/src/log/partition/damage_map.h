/* Offsets of a partition that cannot be read: ranges that ascend and do not overlap. Ranges of one kind do not touch
 * each other. */
#ifndef SHARDD_PARTITION_DAMAGE_MAP_H
#define SHARDD_PARTITION_DAMAGE_MAP_H
#include "log/partition.h"

#define DAMAGED_MAX 1024u /* ranges known to be damaged */

typedef struct damage_map {
    damaged_range *ranges; /* NULL until the first */
    uint32_t count;
} damage_map;

const damaged_range *damage_from_slow(const damage_map *m, uint64_t offset);
uint64_t damage_skip_isolated_slow(const damage_map *m, uint64_t offset);
uint64_t damage_next_isolated_slow(const damage_map *m, uint64_t offset);

/* The first range that ends behind `offset`; NULL: there is no such range. */
static inline const damaged_range *damage_from(const damage_map *m, uint64_t offset) {
    return m->count == 0 ? NULL : damage_from_slow(m, offset);
}
/* `offset`, or where the isolated ranges end that hold it. */
static inline uint64_t damage_skip_isolated(const damage_map *m, uint64_t offset) {
    return m->count == 0 ? offset : damage_skip_isolated_slow(m, offset);
}
/* Start of the first isolated range that ends behind `offset`; UINT64_MAX: there is no such range. */
static inline uint64_t damage_next_isolated(const damage_map *m, uint64_t offset) {
    return m->count == 0 ? UINT64_MAX : damage_next_isolated_slow(m, offset);
}
/* `offset`, or where damage starts that ends there and is not isolated (isolated ranges between do not count). */
uint64_t damage_before(const damage_map *m, uint64_t offset);
/* Where the last `count` offsets before `end` start, isolated ranges (`damaged_too`: all ranges) not counted. */
uint64_t damage_last_of_dense(const damage_map *m, uint64_t end, uint64_t count, bool damaged_too);
/* The last such range that begins below `end`; NULL: there is no such range. */
const damaged_range *damage_passed_over_below(const damage_map *m, uint64_t end, bool damaged_too);
/* Adds [start, end); what is known keeps its kind. False: no memory, or DAMAGED_MAX ranges. */
bool damage_add(damage_map *m, uint64_t start, uint64_t end, bool isolated);
/* Forgets what ends at `offset` or before. */
void damage_forget(damage_map *m, uint64_t offset);
void damage_free(damage_map *m);
#endif
