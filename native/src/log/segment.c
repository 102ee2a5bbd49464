/* The segments of one partition and their open files. */
#include "log/segment.h"

#include "base/assert.h"
#include "log/files.h"
#include "log/segment_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct segment_files {
    cached_file listed; /* first: cached_file* converts to segment_files* */
    segment_set *owner;
    uint64_t start_offset;
    int fds[SEGMENT_FILES_OPEN]; /* by segment_file; -1: not open */
    uint32_t pins;
};

segment *segment_find(const segment_set *set, uint64_t offset) {
    uint32_t low = 0, high = set->count;
    if (high > 0 && set->items[high - 1].start_offset <= offset) /* the tail is where most readers are */
        return &set->items[high - 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (set->items[middle].start_offset <= offset) low = middle + 1;
        else high = middle;
    }
    return low > 0 ? &set->items[low - 1] : NULL;
}

segment *segment_add(segment_set *set, uint64_t start_offset, const segment_layout *layout) {
    if (set->count == set->capacity) {
        uint32_t capacity = set->capacity > 0 ? set->capacity * 2 : 1;
        segment *items = realloc(set->items, capacity * sizeof(*items));
        if (items == NULL) {
            errno = ENOMEM;
            return NULL;
        }
        set->items = items;
        set->capacity = capacity;
    }
    ASSERT(set->count == 0 || set->items[set->count - 1].start_offset <= start_offset);
    segment *s = &set->items[set->count++];
    *s = (segment){.layout = layout, .start_offset = start_offset};
    return s;
}

static const char manifest_suffix[] = "manifest";

const char *segment_suffix(const segment *s, segment_file which) {
    const char *const suffixes[] = {s->layout->suffix, "index", manifest_suffix};
    return suffixes[which];
}

void segment_path_of(const segment_set *set, uint64_t start_offset, const char *suffix, char *out, size_t size) {
    snprintf(out, size, "%s/%020" PRIu64 ".%s", set->directory, start_offset, suffix);
}

void segment_path(const segment_set *set, const segment *s, segment_file which, char *out, size_t size) {
    segment_path_of(set, s->start_offset, segment_suffix(s, which), out, size);
}

void segment_manifest_path(const segment_set *set, uint64_t start_offset, char *out, size_t size) {
    segment_path_of(set, start_offset, manifest_suffix, out, size);
}

/* ---- open files ---- */

static void files_close(segment_files *f) {
    segment_set *set = f->owner;
    segment *s = segment_find(set, f->start_offset);
    for (int i = 0; i < SEGMENT_FILES_OPEN; i++)
        if (f->fds[i] >= 0) set->disk->close(set->disk->context, f->fds[i]);
    s->files = NULL;
    set->open--;
    file_list_remove(&set->files->pairs, &f->listed);
    free(f);
}

static bool files_give_up(cached_file *listed) {
    segment_files *f = (segment_files *)listed;
    const segment *s = segment_find(f->owner, f->start_offset);
    if (f->pins > 0 || s->log_dirty || s->index_dirty) return false;
    files_close(f);
    return true;
}

/* Closes the least recently used pair of the set that may go. */
static bool files_give_up_own(const segment_set *set) {
    for (cached_file *listed = set->files->pairs.oldest, *newer; listed != NULL; listed = newer) {
        newer = listed->newer;
        if (((segment_files *)listed)->owner == set && files_give_up(listed)) return true;
    }
    return false;
}

/* Brings the pairs down to the limits less `wanted`, as far as pairs may go. */
static void files_limit(const segment_set *set, uint32_t wanted) {
    file_cache *c = set->files;
    while (set->open + wanted > SEGMENT_FILES_PER_PARTITION && files_give_up_own(set)) {
    }
    while (c->pairs.count + wanted > c->budget.segment_pairs && file_list_give_up(&c->pairs)) {
    }
    c->pairs_short |= c->pairs.count + wanted > c->budget.segment_pairs;
}

void segment_set_trim(segment_set *set) { files_limit(set, 0); }

static segment_files *files_of(segment_set *set, segment *s) {
    segment_files *f = s->files;
    if (f != NULL) {
        file_list_use(&set->files->pairs, &f->listed);
        return f;
    }
    files_limit(set, 1);
    f = malloc(sizeof(*f));
    if (f == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    *f = (segment_files){
        .listed = {.give_up = files_give_up}, .owner = set, .start_offset = s->start_offset, .fds = {-1, -1}};
    s->files = f;
    set->open++;
    file_list_add(&set->files->pairs, &f->listed);
    return f;
}

/* Opens into the pair, which stays when others go for want of descriptors. */
static int files_open(segment_set *set, const segment *s, segment_file which, int flags) {
    segment_files *f = s->files;
    char path[FILE_PATH_MAX];
    segment_path(set, s, which, path, sizeof(path));
    f->pins++;
    int fd = file_open(set->disk, set->files, path, flags);
    f->pins--;
    if (fd >= 0) f->fds[which] = fd;
    return fd;
}

int segment_fd_if_open(const segment *s, segment_file which) {
    return s->files != NULL && which != SEGMENT_MANIFEST ? s->files->fds[which] : -1;
}

int segment_fd(segment_set *set, segment *s, segment_file which) {
    if (set->closed) {
        errno = EBADF;
        return -1;
    }
    segment_files *f = files_of(set, s);
    if (f == NULL) return -1;
    if (f->fds[which] >= 0) return f->fds[which];
    ASSERT(which != SEGMENT_MANIFEST && s >= set->items && s < set->items + set->count);
    bool writable = s == segment_active(set) && !set->read_only;
    int fd = files_open(set, s, which, writable ? O_RDWR : O_RDONLY);
    if (fd < 0 && f->fds[0] < 0 && f->fds[1] < 0) {
        int error = errno;
        files_close(f);
        errno = error;
    }
    return fd;
}

/* A failed attempt may have left an empty .log behind; one with bytes is somebody's data and stays as it is. */
static int open_new_log(segment_set *set, const segment *s) {
    int fd = files_open(set, s, SEGMENT_LOG, O_RDWR | O_CREAT | O_EXCL);
    if (fd >= 0 || errno != EEXIST) return fd;
    fd = files_open(set, s, SEGMENT_LOG, O_RDWR);
    uint8_t byte;
    if (fd < 0) return -1;
    if (file_read(set->disk, fd, &byte, 1, 0) == 0) {
        errno = EEXIST;
        return -1;
    }
    return errno == ENODATA ? fd : -1;
}

int segment_create(segment_set *set, uint64_t start_offset, const segment_layout *layout) {
    segment *s = segment_add(set, start_offset, layout);
    if (s == NULL) return -1;
    segment_files *f = files_of(set, s);
    if (f != NULL && open_new_log(set, s) >= 0 && files_open(set, s, SEGMENT_INDEX, O_RDWR | O_CREAT | O_TRUNC) >= 0)
        return 0;
    int error = errno;
    if (f != NULL) files_close(f);
    set->count--;
    errno = error;
    return -1;
}

segment_files *segment_pin(segment *s) {
    ASSERT(s->files != NULL);
    s->files->pins++;
    return s->files;
}

void segment_unpin(segment_files *f) {
    ASSERT(f->pins > 0);
    if (--f->pins == 0 && f->owner->closed) files_close(f);
}

bool segment_change_layout(segment *s, const segment_layout *layout) {
    if (s->log_dirty || s->index_dirty || s->manifest_dirty || (s->files != NULL && s->files->pins > 0)) return false;
    if (s->files != NULL) files_close(s->files);
    s->layout = layout;
    return true;
}

void segment_remove_front(segment_set *set, uint32_t count) {
    ASSERT(count <= set->count);
    for (uint32_t i = 0; i < count; i++)
        if (set->items[i].files != NULL) files_close(set->items[i].files);
    set->count -= count;
    memmove(set->items, set->items + count, set->count * sizeof(*set->items));
}

void segment_set_close(segment_set *set) {
    set->closed = true;
    for (uint32_t i = 0; i < set->count; i++)
        if (set->items[i].files != NULL && set->items[i].files->pins == 0) files_close(set->items[i].files);
}

void segment_set_free(segment_set *set) {
    for (uint32_t i = 0; i < set->count; i++)
        if (set->items[i].files != NULL) files_close(set->items[i].files);
    free(set->items);
    set->items = NULL;
    set->count = set->capacity = 0;
}
