/* Background sync: which files are not known to be on the device, and how far the durable end may move. */
#include "log/partition/inside.h"

#include "base/assert.h"
#include "log/files.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

#include <errno.h>

bool partition_is_dirty(const partition *p) {
    if (p->closed) return false;
    if (partition_has_refused(p)) return true;
    if (progress_has_failed(&p->sync)) return false;
    return progress_is_dirty(&p->sync, history_count(&p->history)) || stored_offsets_are_dirty(&p->offsets) ||
           guard_is_dirty(&p->producers) ||
           ((history_waiting(&p->history) > 0 || !journal_is_empty(&p->journal)) && p->state == 0);
}

void partition_sync_lost(partition *p) {
    progress_lost(&p->sync);
    partition_poison(p, STATUS_CANNOT_SYNC_FILE);
}

bool partition_sync_failed(const partition *p) { return progress_has_failed(&p->sync); }

/* What a checkpoint may say when the sync succeeds; `indexes`: names, logs and indexes of now are in it. */
static manifest_checkpoint covered(const partition *p, bool indexes) {
    const segment *s = history_active(&p->history);
    bool whole = journal_is_empty(&p->journal) && history_waiting(&p->history) == 0;
    if (!indexes || s == NULL || !whole) return (manifest_checkpoint){0};
    return (manifest_checkpoint){s->log_bytes, s->count, s->first_timestamp, s->last_timestamp};
}

size_t partition_sync_begin(partition *p, sync_scope scope, int *fds, size_t max) {
    if (p->closed || progress_is_running(&p->sync)) return 0;
    partition_cut_refused(p);
    if (progress_has_failed(&p->sync)) return 0;
    bool saved = partition_save(p) == 0 || p->state != 0;
    if (scope == SYNC_EVERYTHING) partition_index_flush(p);
    if (stored_offsets_take_name(&p->offsets)) progress_mark_directory(&p->sync);
    if (guard_take_name(&p->producers)) progress_mark_directory(&p->sync);
    sync_progress *y = &p->sync;
    segment_set *set = history_segments(&p->history);
    sync_collection c = {.fds = fds, .max = max};
    errno = 0;
    file_cache_spares_lend(set->files); /* they come back when the sync is done */
    /* Names before bytes: a log without its name is lost. What does not fit comes with the next sync. */
    uint64_t saved_end = history_end(&p->history) - journal_records(&p->journal);
    bool complete = progress_collect_directories(y, &c, set) && progress_collect_marker(y, &c, set) &&
                    progress_collect_segments(y, &c, set, SEGMENT_MANIFEST) &&
                    progress_collect_segments(y, &c, set, SEGMENT_LOG) &&
                    guard_collect(&p->producers, &c, saved_end, p->level == LEVEL_DURABLE);
    bool covers = complete && stored_offsets_collect(&p->offsets, &c) && saved;
    bool indexes = covers && scope == SYNC_EVERYTHING && progress_collect_segments(y, &c, set, SEGMENT_INDEX);
    checkpoint_begins(&p->checkpoint, covered(p, indexes));
    file_cache_spares_end(set->files);
    progress_pass_clean(y, set);
    segment_set_trim(set);
    uint64_t target = complete ? saved_end : progress_durable_end(y);
    log_start_sync_begins(&p->start, complete);
    guard_sync_begins(&p->producers, covers && journal_is_empty(&p->journal));
    progress_begins(y, &c, target, covers);
    ASSERT(c.count <= max && target <= history_end(&p->history));
    return c.count;
}

bool partition_sync_done(partition *p, int error) {
    if (!progress_is_running(&p->sync)) return false;
    uint64_t before = progress_durable_end(&p->sync);
    if (p->closed) {
        progress_abandoned(&p->sync);
        return false;
    }
    if (!progress_ends(&p->sync, error)) {
        partition_poison(p, STATUS_CANNOT_SYNC_FILE);
        return false;
    }
    if (progress_durable_end(&p->sync) > before) {
        STATS_STORE(p, durable_offset, progress_durable_end(&p->sync));
        STATS_STORE(p, unseen, partition_unseen(p));
    }
    log_start_sync_ends(&p->start);
    if (checkpoint_ends(&p->checkpoint)) partition_checkpoint_write(p);
    guard_sync_ends(&p->producers);
    return progress_covers(&p->sync);
}

void partition_sync_now(partition *p) {
    int fds[64];
    bool covered = false, progress = true;
    while (!covered && progress && !progress_has_failed(&p->sync)) {
        size_t count = partition_sync_begin(p, SYNC_ACKNOWLEDGEMENTS, fds, sizeof(fds) / sizeof(fds[0]));
        int error = 0;
        progress = count > 0;
        for (size_t i = 0; i < count; i++) {
            int result;
            do result = p->files.disk->fdatasync(p->files.disk->context, fds[i]);
            while (result != 0 && errno == EINTR);
            if (result != 0 && error == 0) error = errno;
            p->files.disk->close(p->files.disk->context, fds[i]);
        }
        covered = partition_sync_done(p, error);
    }
}
