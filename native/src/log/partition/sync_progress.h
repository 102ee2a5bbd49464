/* What of a partition is not known to be on the device, and how far the durable end may move. */
#ifndef SHARDD_PARTITION_SYNC_PROGRESS_H
#define SHARDD_PARTITION_SYNC_PROGRESS_H
#include <stdbool.h>
#include <stdint.h>

typedef struct sync_progress {
    uint64_t durable_end;
    uint64_t target;     /* `durable_end` when the running sync succeeds */
    uint64_t found_end;  /* `durable`: readable without a sync (it failed at the opening, the level changed); or 0 */
    uint32_t dirty_from; /* no segment before this place is dirty */
    uint8_t dirty_directories; /* bit i: names in the i-th ancestor (0: the partition's directory) changed */
    bool marker_dirty;         /* the incarnation marker is not known to be on the device */
    bool running, failed;
    bool covers;    /* the running sync has all names, logs and offsets */
    int open_error; /* of the device: a file that the running sync needs cannot be opened */
} sync_progress;
#endif
