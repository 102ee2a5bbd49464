/* What a partition knows of the producers whose batches it stores once (log/producers.h). A partition without such
 * batches pays nothing. */
#ifndef SHARDD_PARTITION_PRODUCER_GUARD_H
#define SHARDD_PARTITION_PRODUCER_GUARD_H
#include "log/files.h"
#include "log/partition.h"
#include "log/partition/side.h"
#include "log/partition/sync_progress.h"

typedef struct producer_guard {
    producers *known; /* NULL: no producer has sent a batch */
    producer_memory *memory;
    partition_side side;
    bool unproduced; /* the partition had no record when it was opened */
    bool covering;   /* the running sync brings log and producers to the device */
} producer_guard;

/* Reads the file of a log that ends at `next_offset`. 0 or errno. */
int guard_open(producer_guard *g, const log_files *files, file_cache *cache, uint64_t next_offset, bool durable);
/* Before guard_open(): the partition has no record, so no batch can have been stored twice. */
static inline void guard_set_unproduced(producer_guard *g, bool unproduced) { g->unproduced = unproduced; }
void guard_free(producer_guard *g);
/* The first batch of a producer comes. False: no memory. */
bool guard_begin(producer_guard *g, const log_files *files, file_cache *cache, bool durable);
/* Before the write of a group. How many of its batches are noted; fewer than `count`: the next one could not be. */
size_t guard_note(producer_guard *g, const append_batch *batches, size_t count);
/* The write has failed: what is noted must not count, as its records are not there; a restart could take others for
 * them. `stays`: the records could not be cut off again, so a restart takes them for these batches, and they are not
 * stored once more. False: something of it stays. */
bool guard_unnote(producer_guard *g, const append_batch *batches, size_t count, bool stays);
/* The write has succeeded. */
void guard_keep(producer_guard *g, const append_batch *batches, size_t count);
/* Its descriptor, for a sync that covers the log up to `end`. True when it is not dirty any more. */
bool guard_collect(producer_guard *g, sync_collection *c, uint64_t end, bool durable);

static inline bool guard_has(const producer_guard *g) { return g->known != NULL; }
static inline bool guard_takes(const producer_guard *g) { return g->memory != NULL; }
static inline producers *guard_known(producer_guard *g) { return g->known; }
static inline int guard_error(const producer_guard *g) { return g->side.error; }
static inline bool guard_is_due(producer_guard *g) { return side_is_due(&g->side); }
/* What became of guard_open(): 0 or errno. */
static inline void guard_opened(producer_guard *g, int error) {
    if (error == 0) g->side.error = 0;
    else side_failed(&g->side, error);
}
static inline bool guard_is_renewed(const producer_guard *g) { return g->known != NULL && g->known->renewed; }
static inline bool guard_is_dirty(const producer_guard *g) { return g->known != NULL && g->known->dirty; }
/* Whether the name of its file is new since the last call. */
static inline bool guard_take_name(producer_guard *g) {
    bool is_new = g->known != NULL && g->known->directory_dirty;
    if (is_new) g->known->directory_dirty = false;
    return is_new;
}
static inline void guard_not_durable(producer_guard *g) {
    if (g->known != NULL) producers_not_durable(g->known);
}
/* A sync begins that brings log and producers to the device, or does not; the last one has succeeded. */
static inline void guard_sync_begins(producer_guard *g, bool covering) { g->covering = covering; }
static inline void guard_sync_ends(producer_guard *g) {
    if (g->covering && g->known != NULL) producers_covered(g->known);
}
#endif
