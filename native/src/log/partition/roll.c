/* The next segment: when one is made, and what has to hold before. */
#include "log/partition/inside.h"

#include "log/files.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Directory and incarnation marker, before the first segment. 0 or -1. */
static int make_directory(partition *p) {
    unsigned made;
    int result = file_make_directories(p->files.disk, p->files.directory, &made);
    progress_mark_all_directories(&p->sync); /* whoever made an ancestor may never have synced it */
    if (result != 0) return -1;
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof(path), "%s/incarnation", p->files.directory);
    uint8_t marker[16] = "SHRDINC1";
    uint64_t incarnation = htole64(p->files.incarnation);
    memcpy(marker + 8, &incarnation, sizeof(incarnation));
    int fd = file_make_whole(p->files.disk, history_files(&p->history), path, marker, sizeof(marker));
    if (fd < 0) return -1;
    progress_mark_marker(&p->sync);
    p->files.disk->close(p->files.disk->context, fd);
    return 0;
}

/* Makes the manifest of the segment that starts at the next offset; `counted_us` as in segment.h. 0 or -1. A failure
 * costs the next recovery a scan, nothing else. */
static int make_manifest(partition *p, uint64_t born_at, uint64_t counted_us) {
    char path[FILE_PATH_MAX];
    segment_manifest_path(history_segments(&p->history), history_end(&p->history), path, sizeof(path));
    manifest m = {.incarnation = p->files.incarnation,
                  .start_offset = history_end(&p->history),
                  .born_at = born_at,
                  .counted_us = counted_us,
                  .log_start_offset = history_count(&p->history) > 0 ? partition_known_start(p)
                                                                     : history_end(&p->history)};
    uint64_t log_start = m.log_start_offset;
    checkpoint_reset(&p->checkpoint);
    if (manifest_make(p->files.disk, history_files(&p->history), path, &m) != 0) return -1;
    log_start_written(&p->start, log_start);
    return 0;
}

/* Makes the next active segment: the first one, or the one behind a sealed segment, once its files are complete. */
uint32_t partition_roll(partition *p, uint64_t now_us) {
    uint32_t status = partition_save(p);
    if (status != 0) return status;
    if (partition_index_flush(p) != 0) return partition_refused(p, 0);
    int error = partition_cut_ahead(p);
    if (error != 0) return partition_refused(p, error);
    partition_give_back(p);
    if (history_count(&p->history) == 0 && make_directory(p) != 0) return partition_refused(p, errno);
    uint64_t born_at = now_us > history_last_timestamp(&p->history) ? now_us : history_last_timestamp(&p->history);
    uint64_t believed = partition_now(p), counted_us = partition_counted_at(p, born_at, believed);
    if (make_manifest(p, born_at, counted_us) != 0 ||
        segment_create(history_segments(&p->history), history_end(&p->history), &segment_plain) != 0)
        return partition_refused(p, errno);
    segment *s = history_active(&p->history);
    if (history_count(&p->history) > 1)
        s[-1].counted_us = partition_counted_at(p, history_last_timestamp(&p->history), believed);
    s->counted_us = counted_us;
    history_rolled(&p->history, s, born_at);
    s->manifest_dirty = true;
    space_begins(&p->space, p->level == LEVEL_DURABLE, true);
    roll_made(&p->roll);
    progress_mark_directory(&p->sync);
    if (log_start_is_at(&p->start, history_end(&p->history)))
        partition_hide(p, history_end(&p->history)); /* the one before it, all of it */
    STATS_STORE(p, segments_count, partition_segments(p));
    return 0;
}
