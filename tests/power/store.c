/* What programs see of the forgetful file system, and its syncs. The model stands in store.h. */
#include "store.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_BACK_ONE_IN 8

static void *must(void *memory) {
    if (memory == NULL) abort();
    return memory;
}

uint64_t store_random(store *s, uint64_t below) {
    uint64_t z = s->random_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

inode *store_inode(store *s, uint32_t number) { return s->inodes[number - 1]; }

uint32_t store_add(store *s, mode_t mode) {
    if (s->inodes_count == s->inodes_room) {
        s->inodes_room = s->inodes_room ? 2 * s->inodes_room : 64;
        s->inodes = must(realloc(s->inodes, s->inodes_room * sizeof(s->inodes[0])));
    }
    inode *i = must(calloc(1, sizeof(*i)));
    i->mode = mode;
    i->links = S_ISDIR(mode) ? 2 : 1;
    clock_gettime(CLOCK_REALTIME, &i->changed);
    s->inodes[s->inodes_count++] = i;
    return (uint32_t)s->inodes_count;
}

void store_init(store *s, names_mode mode, uint64_t seed) {
    *s = (store){.mode = mode, .random_state = seed};
    store_add(s, S_IFDIR | 0755);
}

/* ---- names ---- */

static size_t find(const entries *e, const char *name) {
    size_t i = 0;
    while (i < e->count && strcmp(e->items[i].name, name) != 0) i++;
    return i;
}

uint32_t entries_get(const entries *e, const char *name) {
    size_t i = find(e, name);
    return i < e->count ? e->items[i].inode : NOTHING;
}

int entries_set(entries *e, const char *name, uint32_t number) {
    size_t i = find(e, name);
    if (number == NOTHING) {
        if (i == e->count) return 0;
        free(e->items[i].name);
        memmove(&e->items[i], &e->items[i + 1], (e->count - i - 1) * sizeof(entry)); /* readdir goes by position */
        e->count--;
        return 0;
    }
    if (i == e->count) {
        if (e->count == e->room) {
            e->room = e->room ? 2 * e->room : 8;
            e->items = must(realloc(e->items, e->room * sizeof(entry)));
        }
        e->items[e->count++].name = must(strdup(name));
    }
    e->items[i].inode = number;
    return 0;
}

void apply_operation(store *s, const name_operation *o) {
    for (unsigned i = 0; i < o->parts_count; i++)
        entries_set(&store_inode(s, o->parts[i].directory)->device_names, o->parts[i].name, o->parts[i].inode);
}

static void journal(store *s, const assignment *parts, unsigned count) {
    if (s->journal_count == s->journal_room) {
        s->journal_room = s->journal_room ? 2 * s->journal_room : 64;
        s->journal = must(realloc(s->journal, s->journal_room * sizeof(name_operation)));
    }
    name_operation *o = &s->journal[s->journal_count++];
    *o = (name_operation){.sequence = ++s->sequence, .parts_count = count};
    for (unsigned i = 0; i < count; i++) {
        inode *directory = store_inode(s, parts[i].directory);
        entries_set(&directory->names, parts[i].name, parts[i].inode);
        clock_gettime(CLOCK_REALTIME, &directory->changed);
        o->parts[i] = (assignment){parts[i].directory, parts[i].inode, must(strdup(parts[i].name))};
    }
}

int store_lookup(store *s, uint32_t directory, const char *name, uint32_t *number) {
    inode *d = store_inode(s, directory);
    if (!S_ISDIR(d->mode)) return -ENOTDIR;
    *number = entries_get(&d->names, name);
    return *number == NOTHING ? -ENOENT : 0;
}

int store_make(store *s, uint32_t directory, const char *name, mode_t mode, uint32_t *number) {
    if (strlen(name) > NAME_BYTES_MAX) return -ENAMETOOLONG;
    if (store_lookup(s, directory, name, number) == 0) return -EEXIST;
    if (store_inode(s, directory)->links == 0) return -ENOENT;
    *number = store_add(s, mode);
    journal(s, &(assignment){directory, *number, (char *)name}, 1);
    return 0;
}

int store_remove(store *s, uint32_t directory, const char *name, bool is_directory) {
    uint32_t number;
    int result = store_lookup(s, directory, name, &number);
    if (result != 0) return result;
    inode *i = store_inode(s, number);
    if (is_directory && !S_ISDIR(i->mode)) return -ENOTDIR;
    if (!is_directory && S_ISDIR(i->mode)) return -EISDIR;
    if (is_directory && i->names.count > 0) return -ENOTEMPTY;
    journal(s, &(assignment){directory, NOTHING, (char *)name}, 1);
    i->links = 0;
    return 0;
}

int store_rename(store *s, uint32_t from, const char *old, uint32_t to, const char *new, unsigned flags) {
    uint32_t moved, replaced = NOTHING;
    if (strlen(new) > NAME_BYTES_MAX) return -ENAMETOOLONG;
    if (flags & ~(unsigned)RENAME_NOREPLACE) return -EINVAL;
    int result = store_lookup(s, from, old, &moved);
    if (result != 0) return result;
    if (store_lookup(s, to, new, &replaced) == 0) {
        inode *victim = store_inode(s, replaced), *mover = store_inode(s, moved);
        if (flags & RENAME_NOREPLACE) return -EEXIST;
        if (replaced == moved) return 0;
        if (S_ISDIR(victim->mode) && !S_ISDIR(mover->mode)) return -EISDIR;
        if (!S_ISDIR(victim->mode) && S_ISDIR(mover->mode)) return -ENOTDIR;
        if (victim->names.count > 0) return -ENOTEMPTY;
        victim->links = 0;
    }
    assignment parts[2] = {{from, NOTHING, (char *)old}, {to, moved, (char *)new}};
    journal(s, parts, 2);
    return 0;
}

/* ---- data ---- */

page *page_at(store *s, inode *file, size_t index) {
    if (index >= file->pages_count) {
        size_t count = index + 1 > 2 * file->pages_count ? index + 1 : 2 * file->pages_count;
        file->pages = must(realloc(file->pages, count * sizeof(page)));
        memset(file->pages + file->pages_count, 0, (count - file->pages_count) * sizeof(page));
        s->bytes += (count - file->pages_count) * sizeof(page);
        file->pages_count = count;
    }
    return &file->pages[index];
}

static uint8_t *buffer_of(store *s, uint8_t **buffer) {
    if (*buffer == NULL) {
        *buffer = must(calloc(1, PAGE_BYTES));
        s->bytes += PAGE_BYTES;
    }
    return *buffer;
}

static void to_device(store *s, page *p, const uint8_t *bytes, uint64_t version) {
    memcpy(buffer_of(s, &p->device), bytes, PAGE_BYTES);
    p->on_device = version;
}

/* The events are full: the older half was written back in the background. */
static void settle_lengths(store *s, inode *file, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t length = file->device_length = file->events[i].length;
        if (!file->events[i].shrinks) continue;
        for (size_t n = length / PAGE_BYTES; n < file->pages_count; n++) {
            page *p = page_at(s, file, n);
            uint64_t within = n * PAGE_BYTES < length ? length - n * PAGE_BYTES : 0;
            if (p->device != NULL) memset(p->device + within, 0, PAGE_BYTES - within);
        }
    }
    memmove(file->events, file->events + count, (file->events_count - count) * sizeof(length_event));
    file->events_count -= count;
}

static void set_length(store *s, inode *file, uint64_t length) {
    bool shrinks = length < file->length;
    length_event *last = file->events_count > 0 ? &file->events[file->events_count - 1] : NULL;
    file->length = length;
    if (last != NULL && !file->sealed && !shrinks && !last->shrinks) {
        last->length = length;
        return;
    }
    if (file->events_count == LENGTH_EVENTS_MAX) settle_lengths(s, file, LENGTH_EVENTS_MAX / 2);
    file->events[file->events_count++] = (length_event){length, ++s->sequence, shrinks};
    file->sealed = false;
}

static bool shrink_waits(const inode *file) {
    for (size_t i = 0; i < file->events_count; i++)
        if (file->events[i].shrinks) return true;
    return false;
}

int store_write(store *s, uint32_t number, const void *data, size_t length, uint64_t position) {
    inode *file = store_inode(s, number);
    if (s->bytes + 3 * length > STORE_BYTES_MAX) return -ENOSPC;
    for (size_t done = 0; done < length;) {
        size_t within = (position + done) % PAGE_BYTES, part = PAGE_BYTES - within;
        if (part > length - done) part = length - done;
        page *p = page_at(s, file, (position + done) / PAGE_BYTES);
        memcpy(buffer_of(s, &p->current) + within, (const uint8_t *)data + done, part);
        p->version++;
        if (store_random(s, WRITE_BACK_ONE_IN) == 0 && !shrink_waits(file)) to_device(s, p, p->current, p->version);
        done += part;
    }
    if (position + length > file->length) set_length(s, file, position + length);
    clock_gettime(CLOCK_REALTIME, &file->changed);
    return 0;
}

size_t store_read(store *s, uint32_t number, void *data, size_t length, uint64_t position) {
    inode *file = store_inode(s, number);
    if (position >= file->length) return 0;
    if (length > file->length - position) length = file->length - position;
    for (size_t done = 0; done < length;) {
        size_t within = (position + done) % PAGE_BYTES, part = PAGE_BYTES - within;
        size_t index = (position + done) / PAGE_BYTES;
        if (part > length - done) part = length - done;
        if (index < file->pages_count && file->pages[index].current != NULL)
            memcpy((uint8_t *)data + done, file->pages[index].current + within, part);
        else memset((uint8_t *)data + done, 0, part);
        done += part;
    }
    return length;
}

int store_zero(store *s, uint32_t number, uint64_t from, uint64_t length) {
    inode *file = store_inode(s, number);
    for (uint64_t at = from; at < from + length && at / PAGE_BYTES < file->pages_count;) {
        uint64_t within = at % PAGE_BYTES, part = PAGE_BYTES - within;
        page *p = &file->pages[at / PAGE_BYTES];
        if (part > from + length - at) part = from + length - at;
        if (p->current != NULL) {
            memset(p->current + within, 0, part);
            p->version++;
        }
        at += part;
    }
    (void)s;
    return 0;
}

int store_resize(store *s, uint32_t number, uint64_t length) {
    inode *file = store_inode(s, number);
    if (length < file->length) store_zero(s, number, length, file->length - length);
    if (length != file->length) set_length(s, file, length);
    clock_gettime(CLOCK_REALTIME, &file->changed);
    return 0;
}

/* ---- syncs ---- */

void sync_begin(store *s, uint32_t number, sync_run *run) {
    inode *i = store_inode(s, number);
    *run = (sync_run){.number = number, .sequence = s->sequence, .lie = s->lying};
    if (s->failing > 0) {
        s->failing--;
        run->result = -EIO;
    }
    i->sealed = true;
    for (size_t n = 0; n < i->pages_count; n++) {
        page *p = &i->pages[n];
        if (p->version == p->clean) continue;
        if (run->result != 0) {
            p->clean = p->version; /* the kernel forgets that the device never got them */
            continue;
        }
        run->pages = must(realloc(run->pages, (run->pages_count + 1) * sizeof(page_copy)));
        page_copy *copy = &run->pages[run->pages_count++];
        *copy = (page_copy){.version = p->version, .index = n};
        if (p->current != NULL) memcpy(copy->bytes, p->current, PAGE_BYTES);
    }
}

static bool same_name(const name_operation *a, const name_operation *b) {
    for (unsigned i = 0; i < a->parts_count; i++)
        for (unsigned j = 0; j < b->parts_count; j++)
            if (a->parts[i].directory == b->parts[j].directory && strcmp(a->parts[i].name, b->parts[j].name) == 0)
                return true;
    return false;
}

static bool names_inode(const name_operation *o, uint32_t number) {
    for (unsigned i = 0; i < o->parts_count; i++)
        if (o->parts[i].inode == number) return true;
    return false;
}

static bool touches(const name_operation *o, uint32_t directory) {
    for (unsigned i = 0; i < o->parts_count; i++)
        if (o->parts[i].directory == directory) return true;
    return false;
}

/* Marks what the sync commits, newest first as an operation needs the older ones of its names; then applies it. */
static void commit_names(store *s, const sync_run *run, bool is_directory) {
    bool all = false;
    size_t count = 0, kept = 0;
    while (count < s->journal_count && s->journal[count].sequence <= run->sequence) count++;
    for (size_t i = 0; i < count; i++) all |= is_directory || names_inode(&s->journal[i], run->number);
    all &= s->mode == NAMES_EXT4;
    for (size_t i = count; i-- > 0;) {
        name_operation *o = &s->journal[i];
        o->kept = all || (is_directory && touches(o, run->number));
        for (size_t j = i + 1; j < count && !o->kept; j++) o->kept = s->journal[j].kept && same_name(o, &s->journal[j]);
    }
    for (size_t i = 0; i < s->journal_count; i++) {
        name_operation *o = &s->journal[i];
        if (i >= count || !o->kept) {
            s->journal[kept++] = *o;
            continue;
        }
        apply_operation(s, o);
        for (unsigned part = 0; part < o->parts_count; part++) free(o->parts[part].name);
    }
    s->journal_count = kept;
}

int sync_end(store *s, sync_run *run) {
    inode *i = store_inode(s, run->number);
    int result = run->result;
    if (result == 0 && !run->lie) {
        size_t count = 0;
        while (count < i->events_count && i->events[count].sequence <= run->sequence) count++;
        settle_lengths(s, i, count);
        for (size_t n = 0; n < run->pages_count; n++) {
            page *p = &i->pages[run->pages[n].index];
            if (p->on_device < run->pages[n].version) to_device(s, p, run->pages[n].bytes, run->pages[n].version);
            if (p->clean < run->pages[n].version) p->clean = run->pages[n].version;
        }
        commit_names(s, run, S_ISDIR(i->mode));
    }
    sync_drop(run);
    return result;
}

void sync_drop(sync_run *run) {
    free(run->pages);
    run->pages = NULL;
    run->pages_count = 0;
}
