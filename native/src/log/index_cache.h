/* The newest index entries of the active segment: one array; its oldest ones slide out once the .index file has them.
 * Knows no files: partition/save.c writes what waits. Entries stay contiguous, so batch_assign fills them in place,
 * one write flushes them and a binary search needs no wrap-around. */
#ifndef SHARDD_INDEX_CACHE_H
#define SHARDD_INDEX_CACHE_H
#include "log/record.h"

#define INDEX_CACHE_MIN 256u

typedef struct index_cache {
    index_entry *entries; /* NULL until the first append */
    uint32_t capacity;
    uint32_t count;
    uint64_t first;   /* relative offset of entries[0] */
    uint64_t flushed; /* relative offset of the first entry that the file does not have yet */
} index_cache;

/* Forgets the entries: the segment has `count` records, all of them in its .index file. Keeps the memory. */
void index_cache_reset(index_cache *c, uint64_t count);
/* Room for `count` more entries, at the returned address; they are taken over with `c->count += count`. Entries that
 * the file has leave when the cache is at its limit. NULL with errno ENOMEM, or ENOBUFS when more than `maximum`
 * entries wait for the file. */
index_entry *index_cache_reserve(index_cache *c, uint32_t count, uint32_t maximum);
/* After a flush: gives memory above `maximum` entries back (one batch may be larger than the cache). */
void index_cache_trim(index_cache *c, uint32_t maximum);
void index_cache_free(index_cache *c);
static inline uint32_t index_cache_waiting(const index_cache *c) {
    return (uint32_t)(c->first + c->count - c->flushed);
}
#endif
