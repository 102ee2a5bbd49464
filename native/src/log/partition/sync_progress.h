/* What of a partition is not known to be on the device, and how far the durable end may move. */
#ifndef SHARDD_PARTITION_SYNC_PROGRESS_H
#define SHARDD_PARTITION_SYNC_PROGRESS_H
#include "log/segment.h"

#include <stdbool.h>
#include <stdint.h>

#define DIRECTORY_LEVELS 7u /* the partition's directory and the ancestors that a sync covers */

typedef struct sync_progress {
    uint64_t durable_end;
    uint64_t target;     /* `durable_end` when the running sync succeeds */
    uint64_t found_end;  /* `durable`: readable without a sync (it failed at the opening, the level changed); or 0 */
    uint32_t dirty_from; /* no segment before this place is dirty */
    uint8_t dirty_directories; /* bit i: names in the i-th ancestor (0: the partition's directory) changed */
    bool marker_dirty : 1;     /* the incarnation marker is not known to be on the device */
    bool running : 1, failed : 1;
    bool covers : 1;      /* the running sync has all names, logs and offsets */
    bool open_failed : 1; /* by the device: a file that the running sync needs cannot be opened */
} sync_progress;

/* Descriptors of what a sync brings to the device. */
typedef struct sync_collection {
    int *fds;
    size_t count, max;
    bool failed; /* the device, at the opening of a file: as if its sync had failed */
} sync_collection;

/* Takes over the descriptor. False: it is negative (errno tells why). */
bool sync_collect(sync_collection *c, int fd);
/* The partition's directory and its ancestors. True when none of them is dirty any more. */
bool progress_collect_directories(sync_progress *y, sync_collection *c, segment_set *set);
/* A log whose marker was torn by a power loss belongs to no partition. */
bool progress_collect_marker(sync_progress *y, sync_collection *c, segment_set *set);
/* Logs, indexes or manifests of all dirty segments, oldest first. True when none is dirty any more. */
bool progress_collect_segments(sync_progress *y, sync_collection *c, segment_set *set, segment_file which);
/* Passes over segments that are clean now. */
void progress_pass_clean(sync_progress *y, const segment_set *set);
/* `target`: the durable end when this sync succeeds. */
void progress_begins(sync_progress *y, const sync_collection *c, uint64_t target, bool covers);
/* False: the running sync has failed, or a file that it needs could not be opened: an answer would wait for that for
 * ever. What progress_lost() said meanwhile is of another sync: what this one has covered is on the device. */
bool progress_ends(sync_progress *y, int error);

static inline uint64_t progress_durable_end(const sync_progress *y) { return y->durable_end; }
static inline void progress_set_durable_end(sync_progress *y, uint64_t end) { y->durable_end = end; }
/* Where polls end at `durable`. */
static inline uint64_t progress_shown_end(const sync_progress *y) {
    return y->durable_end > y->found_end ? y->durable_end : y->found_end;
}
/* Messages before `end` are readable, whatever the device has. */
static inline void progress_found(sync_progress *y, uint64_t end) { y->found_end = end; }
static inline void progress_mark_marker(sync_progress *y) { y->marker_dirty = true; }
static inline void progress_mark_directory(sync_progress *y) { y->dirty_directories |= 1; }
static inline void progress_mark_all_directories(sync_progress *y) {
    y->dirty_directories = (1u << DIRECTORY_LEVELS) - 1;
}
/* The last of `count` segments is dirty. */
static inline void progress_mark_last(sync_progress *y, uint32_t count) {
    if (y->dirty_from >= count) y->dirty_from = count - 1;
}
static inline void progress_segments_removed(sync_progress *y, uint32_t count) {
    y->dirty_from -= y->dirty_from < count ? y->dirty_from : count;
}
static inline bool progress_is_dirty(const sync_progress *y, uint32_t segments) {
    return y->running || y->dirty_directories != 0 || y->dirty_from < segments;
}
static inline bool progress_is_running(const sync_progress *y) { return y->running; }
/* The partition was closed meanwhile. */
static inline void progress_abandoned(sync_progress *y) { y->running = false; }
static inline bool progress_covers(const sync_progress *y) { return y->covers; }
static inline bool progress_has_failed(const sync_progress *y) { return y->failed; }
static inline void progress_lost(sync_progress *y) { y->failed = true; }
#endif
