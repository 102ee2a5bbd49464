/* See save.h. */
#include "log/partition/save.h"

#include <errno.h>

uint32_t partition_undo_write(partition *p, segment *s, int fd, uint64_t end) {
    uint32_t status = partition_refused(p, errno);
    space_left_behind(&p->space, end);
    int error = space_cut_back(&p->space, p->files.disk, fd, partition_file_end(p, s));
    if (error != 0 && file_error_poisons(error)) partition_poison(p, STATUS_CANNOT_WRITE_TO_FILE);
    return status;
}

uint32_t partition_save(partition *p) {
    if (journal_is_empty(&p->journal)) {
        journal_free(&p->journal); /* its memory, too */
        return 0;
    }
    if (p->state != 0) return p->state;
    segment *s = history_active(&p->history);
    int fd = history_fd(&p->history, s, SEGMENT_LOG);
    int error = fd < 0 ? errno : partition_cut_stale(p, s, fd);
    if (error != 0) return partition_refused(p, error);
    struct iovec parts[1];
    uint32_t status = partition_write_behind(p, s, fd, parts, 0);
    if (status == 0) journal_free(&p->journal);
    return status;
}

uint32_t partition_flush(partition *p) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    partition_cut_refused(p);
    uint32_t status = partition_save(p);
    return status != 0 ? status : partition_index_flush(p);
}

uint32_t partition_index_flush(partition *p) {
    index_cache *c = history_index(&p->history);
    uint32_t waiting = index_cache_waiting(c);
    if (waiting == 0) return 0;
    if (p->state != 0) /* no more writes; the entries stay readable here, a recovery makes the index anew */
        return STATUS_CANNOT_SAVE_INDEX_TO_SEGMENT;
    segment *s = history_active(&p->history);
    int fd = history_fd(&p->history, s, SEGMENT_INDEX);
    struct iovec part = {.iov_base = c->entries + (c->flushed - c->first),
                         .iov_len = (size_t)waiting * INDEX_ENTRY_SIZE};
    if (fd >= 0) {
        s->index_dirty = true;
        partition_dirty_active(p);
    }
    if (fd < 0 || file_write(p->files.disk, fd, &part, 1, c->flushed * INDEX_ENTRY_SIZE, NULL) != 0) {
        if (file_error_poisons(errno)) partition_poison(p, STATUS_CANNOT_SAVE_INDEX_TO_SEGMENT);
        return STATUS_CANNOT_SAVE_INDEX_TO_SEGMENT; /* all of them wait on; the next flush writes over what arrived */
    }
    c->flushed += waiting;
    index_cache_trim(c, INDEX_CACHE_MAX);
    return 0;
}

/* ---- the space behind the records ---- */

void partition_give_back(partition *p) {
    space_is_unreserved(&p->space);
    if (history_count(&p->history) == 0 || p->level == LEVEL_DURABLE) return;
    segment *s = history_active(&p->history);
    if (s->log_bytes < RESERVE_BYTES_MIN) return;
    int fd = history_fd(&p->history, s, SEGMENT_LOG);
    if (fd >= 0) space_give_back(&p->space, p->files.disk, fd, partition_file_end(p, s));
}

int partition_cut_ahead(partition *p) {
    if (!space_has_stale(&p->space) || history_count(&p->history) == 0) return 0;
    segment *s = history_active(&p->history);
    int fd = history_fd(&p->history, s, SEGMENT_LOG);
    int error = fd < 0 ? errno : space_cut(&p->space, p->files.disk, fd, partition_file_end(p, s));
    if (error != 0) return error;
    s->log_dirty = true; /* its new length */
    partition_dirty_active(p);
    return 0;
}

void partition_cut_refused(partition *p) {
    if (partition_has_refused(p)) partition_cut_ahead(p);
}

/* ---- the manifest of the active segment ---- */

/* Writes the log start and the checkpoint. False: the file could not be written. */
static bool put_manifest(partition *p, const segment *s) {
    char path[FILE_PATH_MAX];
    manifest m = {.incarnation = p->files.incarnation,
                  .start_offset = s->start_offset,
                  .log_start_offset = partition_known_start(p),
                  .checkpoint = checkpoint_done(&p->checkpoint)};
    segment_manifest_path(history_segments(&p->history), s->start_offset, path, sizeof(path));
    if (manifest_put_checkpoint(p->files.disk, history_files(&p->history), path, &m) != 0) return false;
    checkpoint_written(&p->checkpoint);
    log_start_written(&p->start, m.log_start_offset);
    return true;
}

void partition_checkpoint_write(partition *p) {
    if (!checkpoint_is_unwritten(&p->checkpoint) || p->state != 0) return;
    put_manifest(p, history_active(&p->history));
    checkpoint_written(&p->checkpoint); /* also when it fails: not again for every sync */
}

void partition_write_start(partition *p) {
    segment *s = history_active(&p->history);
    if (s == NULL || log_start_manifest(&p->start) >= partition_known_start(p) || p->state != 0) return;
    if (!put_manifest(p, s)) return; /* tried again */
    s->manifest_dirty = true;
    partition_dirty_active(p);
}
