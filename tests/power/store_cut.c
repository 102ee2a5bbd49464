/* The way in and the way out of the forgetful file system: a plain tree is read, a cut writes what survives it. */
#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHANCE_ALL 1000u

/* ---- in ---- */

static int load_file(store *s, inode *file, int fd) {
    static uint8_t zeros[PAGE_BYTES];
    uint8_t bytes[PAGE_BYTES];
    for (uint64_t at = 0; at < file->length; at += PAGE_BYTES) {
        memset(bytes, 0, sizeof(bytes));
        ssize_t got = pread(fd, bytes, sizeof(bytes), (off_t)at);
        if (got <= 0) return got < 0 ? -errno : -EIO;
        page *p = page_at(s, file, at / PAGE_BYTES);
        if (memcmp(bytes, zeros, sizeof(bytes)) == 0) continue;
        p->current = malloc(PAGE_BYTES);
        p->device = malloc(PAGE_BYTES);
        if (p->current == NULL || p->device == NULL) return -ENOMEM;
        memcpy(p->current, bytes, sizeof(bytes));
        memcpy(p->device, bytes, sizeof(bytes));
        s->bytes += 2 * PAGE_BYTES;
    }
    return 0;
}

static int load_directory(store *s, uint32_t number, int parent);

static int load_entry(store *s, uint32_t directory, int parent, const char *name) {
    struct stat st;
    int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        int problem = errno == ELOOP || errno == ENXIO ? 0 : -errno; /* links and sockets are not data */
        if (fd >= 0) close(fd);
        return problem;
    }
    uint32_t number = store_add(s, st.st_mode);
    inode *i = store_inode(s, number);
    i->uid = st.st_uid;
    i->gid = st.st_gid;
    i->changed = st.st_mtim;
    entries_set(&store_inode(s, directory)->names, name, number);
    entries_set(&store_inode(s, directory)->device_names, name, number);
    if (S_ISDIR(st.st_mode)) return load_directory(s, number, fd);
    i->length = i->device_length = (uint64_t)st.st_size;
    int result = load_file(s, i, fd);
    close(fd);
    return result;
}

/* Closes `fd`. */
static int load_directory(store *s, uint32_t number, int fd) {
    DIR *d = fdopendir(fd);
    int result = 0;
    if (d == NULL) return -errno;
    for (struct dirent *e; result == 0 && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            result = load_entry(s, number, dirfd(d), e->d_name);
    closedir(d);
    return result;
}

int store_load(store *s, const char *directory) {
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : load_directory(s, ROOT, fd);
}

/* ---- what was lucky ---- */

typedef struct {
    unsigned pages, torn, names; /* chances of CHANCE_ALL */
    unsigned late;               /* 1: the second half of what is dirty in a file survives, the first does not */
    cut_result *result;
} luck;

static bool chance(store *s, unsigned of) { return store_random(s, CHANCE_ALL) < of; }

static luck draw(store *s, cut_result *result) {
    static const unsigned levels[] = {0, 20, 200, 500, 800, 980, CHANCE_ALL};
    enum { LEVELS = sizeof(levels) / sizeof(levels[0]) };
    luck l = {.result = result};
    l.pages = levels[store_random(s, LEVELS)];
    l.names = levels[store_random(s, LEVELS)];
    l.torn = (unsigned)store_random(s, 600);
    l.late = store_random(s, 6) == 0;
    return l;
}

static bool same_name(const assignment *a, const assignment *b) {
    return a->directory == b->directory && strcmp(a->name, b->name) == 0;
}

/* Whether an older operation on one of the names of `o` was lost. */
static bool stands_on_lost(const store *s, size_t index) {
    const name_operation *o = &s->journal[index];
    for (size_t i = 0; i < index; i++)
        for (unsigned a = 0; a < o->parts_count && !s->journal[i].kept; a++)
            for (unsigned b = 0; b < s->journal[i].parts_count; b++)
                if (same_name(&o->parts[a], &s->journal[i].parts[b])) return true;
    return false;
}

static void keep_names(store *s, luck *l) {
    size_t prefix = l->names == CHANCE_ALL ? s->journal_count : store_random(s, s->journal_count + 1);
    l->result->names = s->journal_count;
    for (size_t i = 0; i < s->journal_count; i++) {
        name_operation *o = &s->journal[i];
        bool lucky = s->mode == NAMES_EXT4 ? i < prefix : chance(s, l->names);
        o->kept = lucky && !stands_on_lost(s, i);
        l->result->kept_names += o->kept;
        if (o->kept) apply_operation(s, o);
    }
}

/* The length that survives. From `*freed` on the bytes of the device are gone, from `*later` on new ones never came. */
static uint64_t keep_length(store *s, const inode *file, luck *l, uint64_t *freed, uint64_t *later) {
    uint64_t length = file->device_length;
    size_t whole = chance(s, l->pages) ? file->events_count : store_random(s, file->events_count + 1);
    *freed = *later = UINT64_MAX;
    l->result->lengths += file->events_count > 0;
    for (size_t i = 0; i < file->events_count; i++) {
        const length_event *e = &file->events[i];
        if (i < whole) {
            length = e->length;
            if (e->shrinks && length < *freed) *freed = length;
        } else if (e->shrinks && e->length < *later) {
            *later = e->length;
        }
    }
    if (whole < file->events_count && file->events[whole].length > length && store_random(s, 2) == 0) {
        uint64_t more = store_random(s, file->events[whole].length - length);
        length += more;
        if (store_random(s, 2) == 0) length -= length % PAGE_BYTES < more ? length % PAGE_BYTES : 0;
    }
    l->result->short_lengths += length < file->length;
    return length;
}

/* Makes in `bytes` what the device has of page `index`; false: zeros. */
static bool keep_page(store *s, const page *p, uint64_t start, luck *l, bool first_half, uint64_t freed, uint64_t later,
                      uint8_t *bytes) {
    bool dirty = p->version != p->clean;
    memset(bytes, 0, PAGE_BYTES);
    if (p->device != NULL && start < freed)
        memcpy(bytes, p->device, freed - start < PAGE_BYTES ? freed - start : PAGE_BYTES);
    if (dirty && start < later) {
        static const uint8_t zeros[PAGE_BYTES];
        const uint8_t *current = p->current != NULL ? p->current : zeros;
        size_t usable = later - start < PAGE_BYTES ? later - start : PAGE_BYTES;
        bool torn = chance(s, l->torn), whole = l->late ? !first_half : chance(s, l->pages);
        l->result->dirty_pages++;
        l->result->kept_pages += whole && !torn;
        l->result->torn_pages += torn;
        for (size_t at = 0; at < usable; at += SECTOR_BYTES) {
            size_t part = usable - at < SECTOR_BYTES ? usable - at : SECTOR_BYTES;
            if (torn ? store_random(s, 2) == 0 : whole) memcpy(bytes + at, current + at, part);
        }
    }
    return dirty || p->device != NULL;
}

/* ---- out ---- */

static int write_file(store *s, const inode *file, int fd, luck *l) {
    uint8_t bytes[PAGE_BYTES];
    uint64_t freed, later, length = keep_length(s, file, l, &freed, &later);
    size_t dirty = 0, seen = 0;
    if (ftruncate(fd, (off_t)length) != 0) return -errno;
    for (size_t n = 0; n < file->pages_count; n++) dirty += file->pages[n].version != file->pages[n].clean;
    for (size_t n = 0; n < file->pages_count; n++) {
        uint64_t start = n * PAGE_BYTES;
        bool first_half = seen < (dirty + 1) / 2;
        seen += file->pages[n].version != file->pages[n].clean;
        if (!keep_page(s, &file->pages[n], start, l, first_half, freed, later, bytes) || start >= length) continue;
        size_t part = length - start < PAGE_BYTES ? length - start : PAGE_BYTES;
        if (pwrite(fd, bytes, part, (off_t)start) != (ssize_t)part) return -EIO;
    }
    return 0;
}

static int write_directory(store *s, const inode *directory, int fd, luck *l) {
    int result = 0;
    for (size_t i = 0; i < directory->device_names.count && result == 0; i++) {
        const entry *e = &directory->device_names.items[i];
        const inode *child = store_inode(s, e->inode);
        if (S_ISDIR(child->mode)) {
            int below = mkdirat(fd, e->name, child->mode & 07777) == 0
                            ? openat(fd, e->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                            : -1;
            if (below < 0) return -errno;
            result = write_directory(s, child, below, l);
            close(below);
        } else if (S_ISREG(child->mode)) {
            int file = openat(fd, e->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, child->mode & 07777);
            if (file < 0) return -errno;
            result = write_file(s, child, file, l);
            close(file);
        }
    }
    return result;
}

int store_cut(store *s, uint64_t seed, const char *directory, cut_result *result) {
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -errno;
    *result = (cut_result){0};
    s->random_state = seed;
    luck l = draw(s, result);
    keep_names(s, &l);
    int problem = write_directory(s, store_inode(s, ROOT), fd, &l);
    close(fd);
    return problem;
}
