/* Manifests of a partition's segments: made with the segment, and a checkpoint now and then once a sync has brought log
 * and index to the device. What fails here costs the next recovery a scan, nothing else. */
#include "log/partition/inside.h"

#include "log/files.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

int partition_manifest_make(partition *p, uint64_t born_at, uint64_t counted_us) {
    char path[FILE_PATH_MAX];
    segment_manifest_path(&p->history.segments, p->history.next_offset, path, sizeof(path));
    manifest m = {.incarnation = p->files.incarnation,
                  .start_offset = p->history.next_offset,
                  .born_at = born_at,
                  .counted_us = counted_us,
                  .log_start_offset = p->history.segments.count > 0 ? partition_known_start(p)
                                                                    : p->history.next_offset};
    uint64_t log_start = m.log_start_offset;
    p->checkpoint.done = p->checkpoint.target = (manifest_checkpoint){0};
    p->checkpoint.written_bytes = 0;
    if (manifest_make(p->files.disk, p->history.segments.files, path, &m) != 0) return -1;
    p->start.written = log_start;
    return 0;
}

void partition_checkpoint_begin(partition *p, bool covers) {
    const segment *s = segment_active(&p->history.segments);
    p->checkpoint.target = (manifest_checkpoint){0};
    if (covers && s != NULL && journal_is_empty(&p->journal) && index_cache_waiting(&p->history.index) == 0)
        p->checkpoint.target = (manifest_checkpoint){s->log_bytes, s->count, s->first_timestamp, s->last_timestamp};
}

void partition_checkpoint_done(partition *p) {
    if (p->checkpoint.target.count == 0) return;
    p->checkpoint.done = p->checkpoint.target;
    if (p->checkpoint.done.log_bytes - p->checkpoint.written_bytes >= CHECKPOINT_BYTES) partition_checkpoint_write(p);
}
