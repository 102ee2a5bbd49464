/* Background sync: which files are not known to be on the device, and how far the durable end may move. */
#include "log/partition/inside.h"

#include "base/assert.h"
#include "log/files.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

bool partition_is_dirty(const partition *p) {
    if (p->closed) return false;
    if (partition_has_refused(p)) return true;
    if (p->sync.failed) return false;
    return p->sync.running || p->sync.dirty_directories != 0 || p->offsets.table.dirty ||
           p->offsets.table.directory_dirty || (p->producers.known != NULL && p->producers.known->dirty) ||
           ((index_cache_waiting(&p->history.index) > 0 || !journal_is_empty(&p->journal)) && p->state == 0) ||
           p->sync.dirty_from < p->history.segments.count;
}

typedef struct collection {
    int *fds;
    size_t count, max;
    int error; /* of the device, at the opening of a file: as if its sync had failed */
} collection;

/* Takes over the descriptor. False: there is none (errno tells why). */
static bool collect(collection *c, int fd) {
    if (fd < 0) {
        if (file_error_poisons(errno)) c->error = errno;
        return false;
    }
    c->fds[c->count++] = fd;
    return true;
}

/* A directory that could not be made holds nothing: it needs no sync, and nobody waits for one. */
static bool collect_directory(partition *p, collection *c, const char *path) {
    if (c->count == c->max) return false;
    return collect(c, file_open(p->files.disk, p->history.segments.files, path, O_RDONLY | O_DIRECTORY)) ||
           (errno == ENOENT && p->history.segments.count == 0);
}

/* The partition's directory and its ancestors. True when nothing of them is dirty any more. */
static bool collect_directories(partition *p, collection *c) {
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof(path), "%s", p->files.directory);
    for (unsigned level = 0; level < DIRECTORY_LEVELS && p->sync.dirty_directories != 0; level++) {
        uint8_t bit = (uint8_t)(1u << level);
        if ((p->sync.dirty_directories & bit) != 0 && !collect_directory(p, c, path) &&
            (level == 0 || c->count == c->max || (errno != EACCES && errno != EPERM))) /* what we made we may open */
            return false;
        p->sync.dirty_directories &= (uint8_t)~bit;
        char *slash = strrchr(path, '/');
        if (slash == path && path[1] != '\0') slash[1] = '\0';
        else if (slash != NULL && slash != path) *slash = '\0';
        else if (slash == NULL && strcmp(path, ".") != 0) strcpy(path, ".");
        else p->sync.dirty_directories = 0; /* the root, or the start of a relative path: nothing above */
    }
    return true;
}

/* A log whose marker was torn by a power loss belongs to nobody. */
static bool collect_marker(partition *p, collection *c) {
    char path[FILE_PATH_MAX];
    if (!p->sync.marker_dirty) return true;
    snprintf(path, sizeof(path), "%s/incarnation", p->files.directory);
    if (c->count == c->max || !collect(c, file_open(p->files.disk, p->history.segments.files, path, O_RDONLY)))
        return false;
    p->sync.marker_dirty = false;
    return true;
}

static bool collect_file(partition *p, collection *c, segment *s, segment_file which, bool *dirty) {
    if (!*dirty) return true;
    if (c->count == c->max) return false;
    int fd = segment_fd_if_open(s, which);
    if (fd >= 0) {
        fd = file_duplicate(p->files.disk, p->history.segments.files, fd);
    } else { /* dirty since before the start */
        char path[FILE_PATH_MAX];
        segment_path(&p->history.segments, s, which, path, sizeof(path));
        fd = file_open(p->files.disk, p->history.segments.files, path, O_RDONLY);
    }
    bool none = fd < 0 && which == SEGMENT_MANIFEST && errno == ENOENT; /* lost with the power: the log is enough */
    if (!none && !collect(c, fd)) return false;
    *dirty = false;
    return true;
}

/* Logs, indexes or manifests of all dirty segments, oldest first. True when none is dirty any more. */
static bool collect_segments(partition *p, collection *c, segment_file which) {
    for (uint32_t i = p->sync.dirty_from; i < p->history.segments.count; i++) {
        segment *s = &p->history.segments.items[i];
        bool *const dirty[] = {&s->log_dirty, &s->index_dirty, &s->manifest_dirty}; /* by segment_file */
        if (!collect_file(p, c, s, which, dirty[which])) return false;
    }
    return true;
}

/* True when the stored offsets are not dirty any more. */
static bool collect_offsets(partition *p, collection *c) {
    if (!p->offsets.table.dirty) return true;
    if (c->count == c->max || !collect(c, offsets_duplicate(&p->offsets.table))) return false;
    p->offsets.table.dirty = false;
    return !p->offsets.table.directory_dirty; /* it was gone and is made anew: its name comes with the next sync */
}

/* The same of what is known of producers. */
static bool collect_producers(partition *p, collection *c) {
    producers *known = p->producers.known;
    if (known == NULL) return true;
    bool durable = p->level == LEVEL_DURABLE;
    if (!producers_cover(known, p->history.next_offset - journal_records(&p->journal), durable) && durable) {
        if (file_error_poisons(errno)) c->error = errno; /* nothing is acknowledged that the file does not cover */
        return false;
    }
    if (!known->dirty) return true;
    if (c->count == c->max || !collect(c, producers_duplicate(known))) return false;
    known->dirty = false;
    return !known->directory_dirty;
}

void partition_sync_lost(partition *p) {
    p->sync.failed = true;
    partition_poison(p, STATUS_CANNOT_SYNC_FILE);
}

bool partition_sync_failed(const partition *p) { return p->sync.failed; }

/* What a checkpoint may say when the sync succeeds; `indexes`: names, logs and indexes of now are in it. */
static manifest_checkpoint covered(const partition *p, bool indexes) {
    const segment *s = segment_active(&p->history.segments);
    bool whole = journal_is_empty(&p->journal) && index_cache_waiting(&p->history.index) == 0;
    if (!indexes || s == NULL || !whole) return (manifest_checkpoint){0};
    return (manifest_checkpoint){s->log_bytes, s->count, s->first_timestamp, s->last_timestamp};
}

size_t partition_sync_begin(partition *p, sync_scope scope, int *fds, size_t max) {
    if (p->closed || p->sync.running) return 0;
    partition_cut_refused(p);
    if (p->sync.failed) return 0;
    bool saved = partition_save(p) == 0 || p->state != 0;
    if (scope == SYNC_EVERYTHING) partition_index_flush(p);
    if (p->offsets.table.directory_dirty) p->sync.dirty_directories |= 1;
    p->offsets.table.directory_dirty = false;
    if (p->producers.known != NULL && p->producers.known->directory_dirty) p->sync.dirty_directories |= 1;
    if (p->producers.known != NULL) p->producers.known->directory_dirty = false;
    collection c = {.fds = fds, .max = max};
    errno = 0;
    file_cache_spares_lend(p->history.segments.files); /* they come back when the sync is done */
    /* Names before bytes: a log without its name is lost. What does not fit comes with the next sync. */
    bool complete = collect_directories(p, &c) && collect_marker(p, &c) && collect_segments(p, &c, SEGMENT_MANIFEST) &&
                    collect_segments(p, &c, SEGMENT_LOG) && collect_producers(p, &c);
    p->sync.covers = complete && collect_offsets(p, &c) && saved;
    bool indexes = p->sync.covers && scope == SYNC_EVERYTHING && collect_segments(p, &c, SEGMENT_INDEX);
    checkpoint_begins(&p->checkpoint, covered(p, indexes));
    file_cache_spares_end(p->history.segments.files);
    while (p->sync.dirty_from < p->history.segments.count && !p->history.segments.items[p->sync.dirty_from].log_dirty &&
           !p->history.segments.items[p->sync.dirty_from].index_dirty &&
           !p->history.segments.items[p->sync.dirty_from].manifest_dirty)
        p->sync.dirty_from++;
    segment_set_trim(&p->history.segments);
    p->sync.target = complete ? p->history.next_offset - journal_records(&p->journal) : p->sync.durable_end;
    p->start.sync_target = complete ? p->start.written : p->start.synced;
    p->producers.covering = p->sync.covers && journal_is_empty(&p->journal);
    p->sync.open_error = c.error;
    p->sync.running = true;
    ASSERT(c.count <= max && p->sync.target <= p->history.next_offset);
    return c.count;
}

bool partition_sync_done(partition *p, int error) {
    if (!p->sync.running) return false;
    p->sync.running = false;
    if (p->closed) return false;
    if (error != 0 || p->sync.open_error != 0) { /* an answer would wait for ever for a file that cannot be opened */
        p->sync.failed = true;
        partition_poison(p, STATUS_CANNOT_SYNC_FILE);
        return false;
    }
    if (p->sync.target > p->sync.durable_end) {
        p->sync.durable_end = p->sync.target;
        STATS_STORE(p, durable_offset, p->sync.durable_end);
        STATS_STORE(p, unseen, partition_unseen(p));
    }
    p->start.synced = p->start.sync_target;
    if (checkpoint_ends(&p->checkpoint)) partition_checkpoint_write(p);
    if (p->producers.covering && p->producers.known != NULL) producers_covered(p->producers.known);
    return p->sync.covers;
}

void partition_sync_now(partition *p) {
    int fds[64];
    bool covered = false, progress = true;
    while (!covered && progress && !p->sync.failed) {
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
