/* Share of the process's file descriptors that the log may keep open: what connections and the rest of the worker do
 * not need. Whoever cannot open a file for want of a descriptor gives up one that nobody uses and tries again. */
#ifndef SHARDD_DESCRIPTORS_H
#define SHARDD_DESCRIPTORS_H
#include <stdbool.h>
#include <stdint.h>

#define DESCRIPTORS_RESERVED 1024u /* pools, sockets of the bus, syncs on their way, Python */

typedef struct descriptor_budget {
    uint32_t segment_pairs; /* a pair is .log and .index */
    uint32_t offset_files;
} descriptor_budget;

/* For a worker of `connections` connections under a limit of `limit` descriptors; never less than a few of each, so
 * that a limit that is too low makes the log slow, not dead. */
descriptor_budget descriptors_plan(uint64_t limit, uint64_t connections);
/* Applies the plan for the limit of this process to the caches of segment.c and offsets_files.c. */
void descriptors_limit(uint64_t connections);
/* Closes a file of the log that nobody uses and that is synced. False: there is none. */
bool descriptors_release_one(void);
#endif
