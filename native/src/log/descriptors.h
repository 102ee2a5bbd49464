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
    uint32_t syncs;      /* partitions that sync at once */
    uint32_t sync_files; /* files of a partition in one sync */
} descriptor_budget;

extern uint32_t syncs_running_max, sync_files_max; /* of this worker */

/* For a worker of `connections` connections under a limit of `limit` descriptors; never less than a few of each, so
 * that a limit that is too low makes the log slow, not dead. */
descriptor_budget descriptors_plan(uint64_t limit, uint64_t connections);
/* Applies the plan for the limit of this process to the caches of segment.c and offsets_files.c. */
void descriptors_limit(uint64_t connections);
/* Closes a file of the log that nobody uses and that is synced. False: there is none. */
bool descriptors_release_one(void);
/* Several of them, for connections that wait. False: none. */
bool descriptors_release_some(void);
/* Whether files that are not synced have kept the log above its share since the last question: the sooner they are
 * synced the sooner they can be closed. */
bool descriptors_short(void);
/* A few descriptors that only syncs may use when there are no others: without one no file could be synced, so none
 * closed. `keep` takes them (again), as far as there are any; between `lend` and `end` whoever wants one gets them. */
void descriptors_spares_keep(void);
void descriptors_spares_lend(void);
void descriptors_spares_end(void);
#endif
