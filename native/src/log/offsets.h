/* Consumer offsets of one partition (docs/formats.md#consumer-offsets): an open-addressing table in memory, a file of 8
 * bytes for each.
 *
 *   <dir>/offsets/consumers/<id>, <dir>/offsets/groups/<id>    u64 LE, last processed offset
 *
 * A file is born whole (tmp + rename) and then written in place. Descriptors of the most recently stored consumers of
 * the worker stay open (file_cache.h). Knows nothing of the log: the caller checks values. Single-threaded.
 */
#ifndef SHARDD_OFFSETS_H
#define SHARDD_OFFSETS_H
#include "io/disk.h"
#include "log/file_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct offset_entry {
    uint64_t value;
    uint32_t id;
    uint16_t file; /* 1 + place in the worker's descriptor cache; 0: not open */
    uint8_t kind;  /* OFFSET_CONSUMER, OFFSET_GROUP; 0: free */
    bool dirty;    /* written since the last sync */
} offset_entry;

enum { OFFSETS_DIRTY_CONSUMERS = 1, OFFSETS_DIRTY_GROUPS = 2, OFFSETS_DIRTY_PARENT = 4, OFFSETS_DIRTY_PARTITION = 8 };

struct offsets {
    offset_entry *entries; /* NULL until the first one */
    uint32_t capacity;     /* power of two */
    uint32_t count;
    uint32_t dirty;             /* entries */
    uint32_t dirty_directories; /* OFFSETS_DIRTY_*: names changed since the last sync */
    const disk *disk;
    file_cache *files;     /* of the worker; outlives this */
    const char *directory; /* of the partition */
};

bool offsets_get(const offsets *o, uint8_t kind, uint32_t id, uint64_t *value);
/* Into memory only (recovery: the file has it). 0, or -1 and ENOMEM. */
int offsets_load(offsets *o, uint8_t kind, uint32_t id, uint64_t value);
/* File, then memory. 0, or 10006 (write), 3023 (open): memory and, if the disk lets us, file stay as they were. */
uint32_t offsets_store(offsets *o, uint8_t kind, uint32_t id, uint64_t value);
/* 0, 3021 (nothing stored), 3011 (the file stays, and so does the value). */
uint32_t offsets_delete(offsets *o, uint8_t kind, uint32_t id);
/* Removes the file of an offset that must not come back; best effort. */
void offsets_discard_file(offsets *o, uint8_t kind, uint32_t id);
/* Duplicate descriptor of the file of a dirty entry, for the sync. -1 and errno. */
int offsets_duplicate(const offsets *o, const offset_entry *entry);
void offsets_directory_path(const offsets *o, uint8_t kind, char *out, size_t size); /* kind 0: their parent */
/* Closes descriptors and frees the table. */
void offsets_free(offsets *o);
#endif
