/* See sync_progress.h. */
#include "log/partition/sync_progress.h"

#include "log/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

bool sync_collect(sync_collection *c, int fd) {
    if (fd < 0) {
        c->failed |= file_error_poisons(errno);
        return false;
    }
    c->fds[c->count++] = fd;
    return true;
}

/* A directory that could not be made holds nothing and needs no sync. */
static bool collect_directory(segment_set *set, sync_collection *c, const char *path) {
    if (c->count == c->max) return false;
    return sync_collect(c, file_open(set->disk, set->files, path, O_RDONLY | O_DIRECTORY)) ||
           (errno == ENOENT && set->count == 0);
}

bool progress_collect_directories(sync_progress *y, sync_collection *c, segment_set *set) {
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof(path), "%s", set->directory);
    for (unsigned level = 0; level < DIRECTORY_LEVELS && y->dirty_directories != 0; level++) {
        uint8_t bit = (uint8_t)(1u << level);
        if ((y->dirty_directories & bit) != 0 && !collect_directory(set, c, path) &&
            (level == 0 || c->count == c->max || (errno != EACCES && errno != EPERM))) /* what we made we may open */
            return false;
        y->dirty_directories &= (uint8_t)~bit;
        char *slash = strrchr(path, '/');
        if (slash == path && path[1] != '\0') slash[1] = '\0';
        else if (slash != NULL && slash != path) *slash = '\0';
        else if (slash == NULL && strcmp(path, ".") != 0) strcpy(path, ".");
        else y->dirty_directories = 0; /* the root, or the start of a relative path: nothing above */
    }
    return true;
}

bool progress_collect_marker(sync_progress *y, sync_collection *c, segment_set *set) {
    char path[FILE_PATH_MAX];
    if (!y->marker_dirty) return true;
    snprintf(path, sizeof(path), "%s/incarnation", set->directory);
    if (c->count == c->max || !sync_collect(c, file_open(set->disk, set->files, path, O_RDONLY))) return false;
    y->marker_dirty = false;
    return true;
}

static bool collect_file(segment_set *set, sync_collection *c, segment *s, segment_file which, bool *dirty) {
    if (!*dirty) return true;
    if (c->count == c->max) return false;
    int fd = segment_fd_if_open(s, which);
    if (fd >= 0) {
        fd = file_duplicate(set->disk, set->files, fd);
    } else { /* dirty since before the start */
        char path[FILE_PATH_MAX];
        segment_path(set, s, which, path, sizeof(path));
        fd = file_open(set->disk, set->files, path, O_RDONLY);
    }
    bool none = fd < 0 && which == SEGMENT_MANIFEST && errno == ENOENT; /* lost with the power: the log is enough */
    if (!none && !sync_collect(c, fd)) return false;
    *dirty = false;
    return true;
}

bool progress_collect_segments(sync_progress *y, sync_collection *c, segment_set *set, segment_file which) {
    for (uint32_t i = y->dirty_from; i < set->count; i++) {
        segment *s = &set->items[i];
        bool *const dirty[] = {&s->log_dirty, &s->index_dirty, &s->manifest_dirty}; /* by segment_file */
        if (!collect_file(set, c, s, which, dirty[which])) return false;
    }
    return true;
}

void progress_pass_clean(sync_progress *y, const segment_set *set) {
    for (; y->dirty_from < set->count; y->dirty_from++) {
        const segment *s = &set->items[y->dirty_from];
        if (s->log_dirty || s->index_dirty || s->manifest_dirty) return;
    }
}

void progress_begins(sync_progress *y, const sync_collection *c, uint64_t target, bool covers) {
    y->target = target;
    y->covers = covers;
    y->open_failed = c->failed;
    y->running = true;
}

bool progress_ends(sync_progress *y, int error) {
    bool succeeded = error == 0 && !y->open_failed;
    y->running = false;
    if (!succeeded) y->failed = true;
    else if (y->target > y->durable_end) y->durable_end = y->target;
    return succeeded;
}
