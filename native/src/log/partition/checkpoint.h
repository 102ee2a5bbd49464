/* Of the active segment: what a complete sync has brought to the device, and what its manifest knows of that. */
#ifndef SHARDD_PARTITION_CHECKPOINT_H
#define SHARDD_PARTITION_CHECKPOINT_H
#include "log/manifest.h"

typedef struct checkpoint {
    manifest_checkpoint done;
    manifest_checkpoint target; /* `done` when the running sync succeeds */
    uint64_t written_bytes;     /* what the manifest knows */
} checkpoint;
#endif
