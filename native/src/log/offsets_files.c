/* Files of the consumer offsets and the worker's cache of their descriptors. */
#include "log/offsets_files.h"

#include "log/partition.h"
#include "log/partition_files.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

/* Descriptors, most recently used first. Places are 1-based, 0 is none; free places are linked through `older`. */
typedef struct cached_file {
    offsets *owner;
    uint32_t id;
    uint8_t kind;
    uint16_t newer, older;
    int fd;
} cached_file;
static cached_file files[OFFSET_FILES_MAX + 1];
static uint16_t newest, oldest, free_places;
static uint32_t places_used, files_open;
uint32_t offset_files_max = OFFSET_FILES_MAX;

uint32_t offset_files_open(void) { return files_open; }

static void unlink_place(uint16_t place) {
    cached_file *f = &files[place];
    *(f->newer != 0 ? &files[f->newer].older : &newest) = f->older;
    *(f->older != 0 ? &files[f->older].newer : &oldest) = f->newer;
}

static void link_newest(uint16_t place) {
    files[place].newer = 0;
    files[place].older = newest;
    *(newest != 0 ? &files[newest].newer : &oldest) = place;
    newest = place;
}

void offset_file_close(offset_entry *entry) {
    if (entry->file == 0) return;
    cached_file *f = &files[entry->file];
    const disk *d = f->owner->disk;
    d->close(d->context, f->fd);
    unlink_place(entry->file);
    f->older = free_places;
    free_places = entry->file;
    entry->file = 0;
    files_open--;
}

bool offset_files_release_one(void) {
    if (oldest == 0) return false;
    offset_file_close(offsets_find(files[oldest].owner, files[oldest].kind, files[oldest].id));
    return true;
}

/* Takes over the descriptor of a file whose entry is in the table or about to be placed there. */
static void cache(offsets *o, offset_entry *entry, int fd) {
    while (files_open >= offset_files_max && offset_files_release_one()) {
    }
    uint16_t place = free_places;
    if (place != 0) free_places = files[place].older;
    else place = (uint16_t)++places_used;
    files[place] = (cached_file){.owner = o, .id = entry->id, .kind = entry->kind, .fd = fd};
    link_newest(place);
    entry->file = place;
    files_open++;
}

/* ---- files ---- */

void offsets_directory_path(const offsets *o, uint8_t kind, char *out, size_t size) {
    static const char *const names[] = {[0] = "", [OFFSET_CONSUMER] = "/consumers", [OFFSET_GROUP] = "/groups"};
    snprintf(out, size, "%s/offsets%s", o->directory, names[kind]);
}

static void path_of(const offsets *o, uint8_t kind, uint32_t id, char *out, size_t size) {
    snprintf(out, size, "%s/offsets/%s/%" PRIu32, o->directory, kind == OFFSET_GROUP ? "groups" : "consumers", id);
}

static void name_changed(offsets *o, uint8_t kind) {
    o->dirty_directories |= kind == OFFSET_GROUP ? OFFSETS_DIRTY_GROUPS : OFFSETS_DIRTY_CONSUMERS;
}

/* tmp + rename, the directories when they are missing. */
static uint32_t give_birth(offsets *o, offset_entry *entry, const char *path, uint64_t value) {
    uint64_t stored = htole64(value);
    int fd = file_make_whole(o->disk, path, &stored, sizeof(stored));
    if (fd < 0 && errno == ENOENT) {
        char directory[FILE_PATH_MAX];
        unsigned made;
        offsets_directory_path(o, entry->kind, directory, sizeof(directory));
        int result = file_make_directories(o->disk, directory, &made);
        if (made >= 1) o->dirty_directories |= OFFSETS_DIRTY_PARENT;
        if (made >= 2) o->dirty_directories |= OFFSETS_DIRTY_PARTITION;
        if (result != 0) return PARTITION_CANNOT_OPEN_OFFSET_FILE;
        fd = file_make_whole(o->disk, path, &stored, sizeof(stored));
    }
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE || errno == EACCES ? PARTITION_CANNOT_OPEN_OFFSET_FILE
                                                                     : PARTITION_CANNOT_WRITE_TO_FILE;
    name_changed(o, entry->kind);
    cache(o, entry, fd);
    return 0;
}

uint32_t offset_file_write(offsets *o, offset_entry *entry, uint64_t value) {
    char path[FILE_PATH_MAX];
    if (entry->file == 0) {
        path_of(o, entry->kind, entry->id, path, sizeof(path));
        bool known = offsets_find(o, entry->kind, entry->id) == entry;
        int fd = known ? file_open(o->disk, path, O_RDWR) : -1;
        if (fd < 0 && known && errno != ENOENT) return PARTITION_CANNOT_OPEN_OFFSET_FILE;
        if (fd < 0) return give_birth(o, entry, path, value);
        cache(o, entry, fd);
    } else if (newest != entry->file) {
        unlink_place(entry->file);
        link_newest(entry->file);
    }
    uint64_t stored = htole64(value), written;
    struct iovec part = {.iov_base = &stored, .iov_len = sizeof(stored)};
    if (file_write(o->disk, files[entry->file].fd, &part, 1, 0, &written) == 0) return 0;
    if (written > 0) { /* half of a new value: put the old one back */
        stored = htole64(entry->value);
        part = (struct iovec){.iov_base = &stored, .iov_len = sizeof(stored)};
        file_write(o->disk, files[entry->file].fd, &part, 1, 0, NULL);
    }
    return PARTITION_CANNOT_WRITE_TO_FILE;
}

int offset_file_remove(offsets *o, uint8_t kind, uint32_t id) {
    char path[FILE_PATH_MAX];
    path_of(o, kind, id, path, sizeof(path));
    int result;
    do result = o->disk->unlink(o->disk->context, path);
    while (result != 0 && errno == EINTR);
    if (result != 0) return errno == ENOENT ? 0 : -1;
    name_changed(o, kind);
    return 0;
}

int offsets_duplicate(const offsets *o, const offset_entry *entry) {
    if (entry->file != 0) {
        int fd = file_duplicate(o->disk, files[entry->file].fd);
        if (fd >= 0 || entry->file != 0) /* it may itself have been given up for want of descriptors */
            return fd;
    }
    char path[FILE_PATH_MAX];
    path_of(o, entry->kind, entry->id, path, sizeof(path));
    return file_open(o->disk, path, O_RDONLY);
}
