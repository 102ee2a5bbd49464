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
    int fd = file_make_whole(p->files.disk, p->history.segments.files, path, marker, sizeof(marker));
    if (fd < 0) return -1;
    progress_mark_marker(&p->sync);
    p->files.disk->close(p->files.disk->context, fd);
    return 0;
}

/* Makes the manifest of the segment that starts at the next offset; `counted_us` as in segment.h. 0 or -1. A failure
 * costs the next recovery a scan, nothing else. */
static int make_manifest(partition *p, uint64_t born_at, uint64_t counted_us) {
    char path[FILE_PATH_MAX];
    segment_manifest_path(&p->history.segments, p->history.next_offset, path, sizeof(path));
    manifest m = {.incarnation = p->files.incarnation,
                  .start_offset = p->history.next_offset,
                  .born_at = born_at,
                  .counted_us = counted_us,
                  .log_start_offset = p->history.segments.count > 0 ? partition_known_start(p)
                                                                    : p->history.next_offset};
    uint64_t log_start = m.log_start_offset;
    checkpoint_reset(&p->checkpoint);
    if (manifest_make(p->files.disk, p->history.segments.files, path, &m) != 0) return -1;
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
    if (p->history.segments.count == 0 && make_directory(p) != 0) return partition_refused(p, errno);
    uint64_t born_at = now_us > p->history.last_timestamp ? now_us : p->history.last_timestamp;
    uint64_t believed = partition_now(p), counted_us = partition_counted_at(p, born_at, believed);
    if (make_manifest(p, born_at, counted_us) != 0 ||
        segment_create(&p->history.segments, p->history.next_offset, &segment_plain) != 0)
        return partition_refused(p, errno);
    segment *s = segment_active(&p->history.segments);
    if (p->history.segments.count > 1) s[-1].counted_us = partition_counted_at(p, p->history.last_timestamp, believed);
    s->counted_us = counted_us;
    s->first_timestamp = s->last_timestamp = p->history.last_timestamp;
    s->manifest_dirty = true;
    p->history.last_timestamp = born_at; /* also when the clock goes back before its first record */
    space_begins(&p->space, p->level == LEVEL_DURABLE, true);
    index_cache_reset(&p->history.index, 0);
    roll_made(&p->roll);
    progress_mark_directory(&p->sync);
    if (log_start_is_at(&p->start, p->history.next_offset))
        partition_hide(p, p->history.next_offset); /* the one before it, all of it */
    STATS_STORE(p, segments_count, partition_segments(p));
    return 0;
}
