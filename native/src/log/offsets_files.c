/* Files of the consumer offsets; their descriptors stay in the worker's cache. */
#include "log/offsets_files.h"

#include "log/partition.h"
#include "log/partition_files.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

static offset_file *file_of(const offset_entry *entry, const offsets *o) {
    return &o->files->offset_places[entry->file];
}

void offset_file_close(offsets *o, offset_entry *entry) {
    if (entry->file == 0) return;
    file_cache *c = o->files;
    offset_file *f = file_of(entry, o);
    o->disk->close(o->disk->context, f->fd);
    file_list_remove(&c->offset_files, &f->listed);
    f->listed.older = c->offset_places_free;
    c->offset_places_free = &f->listed;
    entry->file = 0;
}

static bool give_up(cached_file *listed) {
    offset_file *f = (offset_file *)listed;
    offset_file_close(f->owner, offsets_find(f->owner, f->kind, f->id));
    return true;
}

/* Takes over the descriptor of a file whose entry is in the table or about to be placed there. */
static void cache(offsets *o, offset_entry *entry, int fd) {
    file_cache *c = o->files;
    while (c->offset_files.count >= c->budget.offset_files && file_list_give_up(&c->offset_files)) {
    }
    cached_file *free_place = c->offset_places_free;
    if (free_place != NULL) c->offset_places_free = free_place->older;
    offset_file *f = free_place != NULL ? (offset_file *)free_place : &c->offset_places[++c->offset_places_used];
    *f = (offset_file){.listed = {.give_up = give_up}, .owner = o, .id = entry->id, .kind = entry->kind, .fd = fd};
    file_list_add(&c->offset_files, &f->listed);
    entry->file = (uint16_t)(f - c->offset_places);
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
    int fd = file_make_whole(o->disk, o->files, path, &stored, sizeof(stored));
    if (fd < 0 && errno == ENOENT) {
        char directory[FILE_PATH_MAX];
        unsigned made;
        offsets_directory_path(o, entry->kind, directory, sizeof(directory));
        int result = file_make_directories(o->disk, directory, &made);
        if (made >= 1) o->dirty_directories |= OFFSETS_DIRTY_PARENT;
        if (made >= 2) o->dirty_directories |= OFFSETS_DIRTY_PARTITION;
        if (result != 0) return STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE;
        fd = file_make_whole(o->disk, o->files, path, &stored, sizeof(stored));
    }
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE || errno == EACCES ? STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE
                                                                     : STATUS_CANNOT_WRITE_TO_FILE;
    name_changed(o, entry->kind);
    cache(o, entry, fd);
    return 0;
}

uint32_t offset_file_write(offsets *o, offset_entry *entry, uint64_t value) {
    char path[FILE_PATH_MAX];
    if (entry->file == 0) {
        path_of(o, entry->kind, entry->id, path, sizeof(path));
        bool known = offsets_find(o, entry->kind, entry->id) == entry;
        int fd = known ? file_open(o->disk, o->files, path, O_RDWR) : -1;
        if (fd < 0 && known && errno != ENOENT) return STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE;
        if (fd < 0) return give_birth(o, entry, path, value);
        cache(o, entry, fd);
    } else {
        file_list_use(&o->files->offset_files, &file_of(entry, o)->listed);
    }
    uint64_t stored = htole64(value), written;
    struct iovec part = {.iov_base = &stored, .iov_len = sizeof(stored)};
    if (file_write(o->disk, file_of(entry, o)->fd, &part, 1, 0, &written) == 0) return 0;
    if (written > 0) { /* half of a new value: put the old one back */
        stored = htole64(entry->value);
        part = (struct iovec){.iov_base = &stored, .iov_len = sizeof(stored)};
        file_write(o->disk, file_of(entry, o)->fd, &part, 1, 0, NULL);
    }
    return STATUS_CANNOT_WRITE_TO_FILE;
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
        int fd = file_duplicate(o->disk, o->files, file_of(entry, o)->fd);
        if (fd >= 0 || entry->file != 0) /* it may itself have been given up for want of descriptors */
            return fd;
    }
    char path[FILE_PATH_MAX];
    path_of(o, entry->kind, entry->id, path, sizeof(path));
    return file_open(o->disk, o->files, path, O_RDONLY);
}
