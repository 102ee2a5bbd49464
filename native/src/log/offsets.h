/* Stored offsets of one partition (docs/formats.md#consumer-offsets): an open-addressing table in memory and one file,
 * `<dir>/consumer-offsets` (offsets_table.h), written in place. The file is born whole (tmp + rename) with the first
 * offset. Its descriptor stays open while the partition is among the last ones of the worker that stored something
 * (file_cache.h). Knows nothing of the log: the caller checks values. Single-threaded.
 */
#ifndef SHARDD_OFFSETS_H
#define SHARDD_OFFSETS_H
#include "io/disk.h"
#include "log/file_cache.h"
#include "log/offset_shares.h"
#include "log/offsets_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct offset_entry {
    uint64_t value;
    offset_use use;   /* as the file has it */
    uint64_t read_us; /* when a consumer went on from there last, since the opening */
    uint32_t id;
    uint32_t place; /* in the file */
    uint8_t kind;   /* OFFSET_CONSUMER, OFFSET_GROUP; 0: free */
    uint8_t half;   /* of that place, that holds it */
} offset_entry;

static inline uint64_t offset_last_use(const offset_entry *e) {
    return e->read_us > e->use.used_us ? e->read_us : e->use.used_us;
}

typedef struct free_place {
    uint32_t place;
    uint8_t half; /* that counts */
} free_place;

#define VICTIMS_MAX 64u /* found by one walk over the table */

typedef struct offset_victim { /* an entry of a user that is gone */
    uint64_t used_us;
    uint32_t id;
    uint8_t kind;
} offset_victim;

typedef struct offsets {
    offset_entry *entries; /* NULL until the first one */
    uint32_t capacity;     /* power of two */
    uint32_t count;
    uint32_t *slots; /* by place of the file: index of the entry that is there; of a free place, any */
    uint32_t slots_capacity;
    uint32_t count_max;   /* of those that a store may add to */
    offset_shares shares; /* whose they are */
    known_users *users;   /* of the worker, outlives this; NULL: each user is there */
    struct {              /* the last one is the next to go */
        offset_victim *list;
        uint32_t count;
        uint64_t version; /* of the shares when they were found */
    } victims;
    uint32_t places; /* of the file */
    free_place *free_places;
    uint32_t free_count, free_capacity;
    uint64_t sequence; /* the highest in the file */
    uint64_t lowest;   /* value; when it is known */
    bool lowest_known;
    bool old; /* the file is of version 1: made anew before its first change */
    uint64_t incarnation;
    bool exists;          /* the file */
    bool dirty;           /* written since the last sync */
    bool directory_dirty; /* its name is new since then */
    bool open;
    int fd;
    cached_file listed; /* while it is open */
    const disk *disk;
    file_cache *files;     /* of the worker; outlives this */
    const char *directory; /* of the partition */
} offsets;

/* Reads the file, if there is one that is ours: what was written before this process may be in the page cache only, so
 * it is dirty. What has no time of last use counts as used at `now_us`. 0, or -1 and errno (EPROTO: of a later
 * version). */
int offsets_open(offsets *o, uint64_t now_us);
bool offsets_get(const offsets *o, uint8_t kind, uint32_t id, uint64_t *value);
/* Whether what is stored for a plain consumer can be that of a name (hash_name(); 0: of none). False: it is another
 * one's of the same id. */
bool offsets_is_of(const offsets *o, uint32_t id, uint64_t name);
/* The value, for a consumer that goes on from there: it is used now. The file learns of that once a day, as far as it
 * can be written; not at all unless `writes`. */
bool offsets_read(offsets *o, uint8_t kind, uint32_t id, uint64_t now_us, bool writes, uint64_t *value);
/* False: a store of this user would be refused with 3023, since there are as many as there may be, or as many of that
 * user as its share is (offset_shares.h). */
bool offsets_has_place(offsets *o, uint8_t kind, uint32_t id, uint64_t owner);
bool offsets_has_room(offsets *o, uint64_t owner); /* for one more */
/* One that belonged to a user that is gone when the entries were walked, the longest unused first. False: there is
 * none, or no memory. */
bool offsets_next_victim(offsets *o, offset_victim *out);
/* Entries at places [from, from + count) of the file whose last use was before `before_us`, in their order; places stay
 * until the next opening. Looks at these places alone. The place that comes next; 0 at the end. */
uint32_t offsets_unused(const offsets *o, uint32_t from, uint32_t count, uint64_t before_us,
                        void (*visit)(void *context, const offsets_half *entry), void *context);
/* The lowest value; UINT64_MAX: nothing is stored. Walks the table when the lowest one has changed. */
uint64_t offsets_lowest(offsets *o);
/* File, then memory. 0, 10006 (write), 3023 (open, or no place for one more): memory and what counts in the file stay
 * as they were. */
uint32_t offsets_store(offsets *o, uint8_t kind, uint32_t id, uint64_t value, const offset_use *use);
/* 0, 3021 (nothing stored), 3011 (the value stays). */
uint32_t offsets_delete(offsets *o, uint8_t kind, uint32_t id);
/* Forgets all of them, in memory and, best effort, by a file without any. */
void offsets_clear(offsets *o, bool in_file);
/* No stored offset is above `end`, in memory and, best effort, in the file. False: none was. */
bool offsets_lower(offsets *o, uint64_t end, bool in_file);
/* Duplicate descriptor of the file, for the sync. -1 and errno. */
int offsets_duplicate(offsets *o);
/* Closes the file and frees the table. */
void offsets_free(offsets *o);
#endif
