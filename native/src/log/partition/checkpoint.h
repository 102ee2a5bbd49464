/* Of the active segment: what a complete sync has brought to the device, and what its manifest knows of that. */
#ifndef SHARDD_PARTITION_CHECKPOINT_H
#define SHARDD_PARTITION_CHECKPOINT_H
#include "log/manifest.h"

#define CHECKPOINT_BYTES (1u << 20) /* new bytes on the device that are worth a checkpoint */

typedef struct checkpoint {
    manifest_checkpoint done;
    manifest_checkpoint target; /* `done` when the running sync succeeds */
    uint64_t written_bytes;     /* what the manifest knows */
} checkpoint;

/* A new active segment. */
static inline void checkpoint_reset(checkpoint *c) { *c = (checkpoint){0}; }
/* A sync begins. `covered`: what of the segment is on the device when it succeeds; all zero: nothing that counts. */
static inline void checkpoint_begins(checkpoint *c, manifest_checkpoint covered) { c->target = covered; }
/* The sync has succeeded. True: a checkpoint is worth its write. */
static inline bool checkpoint_ends(checkpoint *c) {
    if (c->target.count == 0) return false;
    c->done = c->target;
    return c->done.log_bytes - c->written_bytes >= CHECKPOINT_BYTES;
}
static inline bool checkpoint_is_unwritten(const checkpoint *c) { return c->done.log_bytes > c->written_bytes; }
static inline void checkpoint_written(checkpoint *c) { c->written_bytes = c->done.log_bytes; }
static inline manifest_checkpoint checkpoint_done(const checkpoint *c) { return c->done; }
#endif
