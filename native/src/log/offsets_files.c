/* The file of the stored offsets; its descriptor stays in the worker's cache. */
#include "log/offsets_files.h"

#include "log/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static void path_of(const offsets *o, char *out, size_t size) {
    snprintf(out, size, "%s/consumer-offsets", o->directory);
}

void offsets_file_close(offsets *o) {
    if (!o->open) return;
    o->disk->close(o->disk->context, o->fd);
    file_list_remove(&o->files->offset_files, &o->listed);
    o->open = false;
}

static bool give_up(cached_file *listed) {
    offsets_file_close((offsets *)(void *)((uint8_t *)listed - offsetof(offsets, listed)));
    return true;
}

/* Takes over the descriptor. */
static void cache(offsets *o, int fd) {
    file_cache *c = o->files;
    offsets_file_close(o);
    while (c->offset_files.count >= c->budget.offset_files && file_list_give_up(&c->offset_files)) {
    }
    o->listed = (cached_file){.give_up = give_up};
    o->fd = fd;
    o->open = true;
    file_list_add(&c->offset_files, &o->listed);
}

static uint64_t position_of(uint32_t place, uint8_t half) {
    return OFFSETS_HEAD_BYTES + (uint64_t)place * OFFSETS_ENTRY_BYTES + (uint64_t)half * OFFSETS_HALF_BYTES;
}

int offsets_file_make(offsets *o) {
    char path[FILE_PATH_MAX];
    size_t length = position_of(o->count, 0);
    uint8_t *content = calloc(1, length);
    if (content == NULL) {
        errno = ENOMEM;
        return -1;
    }
    offsets_encode_head(content, o->incarnation);
    uint32_t place = 0;
    for (uint32_t i = 0; i < o->capacity; i++)
        if (o->entries[i].kind != 0)
            offsets_encode_half(content + position_of(place++, 0), &(offsets_half){.value = o->entries[i].value,
                                                                                   .sequence = o->sequence + 1,
                                                                                   .use = o->entries[i].use,
                                                                                   .id = o->entries[i].id,
                                                                                   .kind = o->entries[i].kind});
    path_of(o, path, sizeof(path));
    /* A file of version 1 holds what was promised: its successor is on the device before it takes the name. */
    int fd = o->old ? file_make_whole_durably(o->disk, o->files, path, content, length)
                    : file_make_whole(o->disk, o->files, path, content, length);
    int error = errno;
    free(content);
    errno = error;
    if (fd < 0) return -1;
    cache(o, fd);
    place = 0;
    for (uint32_t i = 0; i < o->capacity; i++) {
        if (o->entries[i].kind == 0) continue;
        o->slots[place] = i;
        o->entries[i].place = place++;
        o->entries[i].half = 0;
    }
    o->places = o->count;
    o->free_count = 0;
    o->sequence++;
    o->exists = o->dirty = o->directory_dirty = true;
    o->old = false;
    return 0;
}

int offsets_file_open(const offsets *o, int flags) {
    char path[FILE_PATH_MAX];
    path_of(o, path, sizeof(path));
    return file_open(o->disk, o->files, path, flags);
}

int offsets_file_early(const offsets *o) {
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof(path), "%s/offsets", o->directory);
    int fd = file_open(o->disk, o->files, path, O_RDONLY | O_DIRECTORY);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return 0;
    if (fd >= 0) {
        o->disk->close(o->disk->context, fd);
        errno = EIO;
    }
    return -1;
}

int offsets_file(offsets *o) {
    if (o->open) {
        file_list_use(&o->files->offset_files, &o->listed);
        return o->fd;
    }
    bool there = o->exists && !o->old;
    int fd = there ? offsets_file_open(o, O_RDWR) : -1;
    if (fd >= 0) cache(o, fd);
    else if ((there && errno != ENOENT) || offsets_file_make(o) != 0) return -1;
    return o->fd;
}

uint32_t offsets_file_put(offsets *o, uint32_t place, uint8_t half, offsets_half *content) {
    uint8_t bytes[OFFSETS_HALF_BYTES];
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof(bytes)};
    content->sequence = ++o->sequence; /* of a write that fails, too: it may be there */
    offsets_encode_half(bytes, content);
    o->dirty = true;
    return file_write(o->disk, o->fd, &part, 1, position_of(place, half), NULL) == 0 ? 0 : STATUS_CANNOT_WRITE_TO_FILE;
}

int offsets_file_write(offsets *o, uint32_t first, uint8_t *data, uint32_t count) {
    struct iovec part = {.iov_base = data, .iov_len = (size_t)count * OFFSETS_ENTRY_BYTES};
    o->dirty = true;
    return file_write(o->disk, o->fd, &part, 1, position_of(first, 0), NULL);
}

int offsets_duplicate(offsets *o) {
    if (o->old) return offsets_file_open(o, O_RDONLY); /* a sync changes nothing in it */
    int fd = offsets_file(o);
    if (fd < 0) return -1;
    fd = file_duplicate(o->disk, o->files, fd);
    return fd >= 0 || o->open
               ? fd
               : offsets_file_open(o, O_RDWR); /* it may itself have been given up for want of descriptors */
}
