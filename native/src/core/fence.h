/* Fences of one partition: the newest generation of assignment that its owner shard has seen for each consumer group.
 * A request with an older one comes from a member that lost the partition and must not act. In memory only: a group's
 * generations never go back while the server runs, and nobody is a member any more when it has restarted. */
#ifndef SHARDD_FENCE_H
#define SHARDD_FENCE_H
#include <stdbool.h>
#include <stdint.h>

typedef struct fence {
    uint32_t group; /* the id of its offsets */
    uint64_t generation;
} fence;

typedef struct fences {
    fence *entries;
    uint32_t count, capacity;
} fences;

/* False: the generation is older than one that was seen, or there is no memory to remember it. 0 is not a generation
 * and passes. Remembers a newer one. */
bool fences_pass(fences *f, uint32_t group, uint64_t generation);
void fences_drop(fences *f, uint32_t group); /* the group is deleted */
void fences_free(fences *f);
#endif
