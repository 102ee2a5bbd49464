/* The newest index entries of the active segment. */
#include "log/index_cache.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void index_cache_reset(index_cache *c, uint64_t count) {
    c->count = 0;
    c->first = count;
    c->flushed = count;
}

static int resize(index_cache *c, uint64_t capacity) {
    index_entry *entries = capacity <= UINT32_MAX ? realloc(c->entries, (size_t)capacity * sizeof(*entries)) : NULL;
    if (entries == NULL) {
        errno = ENOMEM;
        return -1;
    }
    c->entries = entries;
    c->capacity = (uint32_t)capacity;
    return 0;
}

/* Lets the oldest entries go until `keep` remain, but none that the file does not have. */
static void slide(index_cache *c, uint32_t keep) {
    ASSERT(c->flushed >= c->first && c->flushed <= c->first + c->count);
    uint64_t in_file = c->flushed - c->first;
    uint32_t drop = c->count > keep ? c->count - keep : 0;
    if (drop > in_file) drop = (uint32_t)in_file;
    if (drop == 0) return;
    memmove(c->entries, c->entries + drop, (size_t)(c->count - drop) * sizeof(*c->entries));
    c->first += drop;
    c->count -= drop;
}

static int make_room(index_cache *c, uint32_t count, uint32_t maximum) {
    uint64_t needed = (uint64_t)c->count + count;
    if (needed > maximum) {
        /* Half of the cache goes at a time: a slide costs each entry one move. */
        slide(c, count < maximum / 2 ? maximum / 2 : maximum - (count < maximum ? count : maximum));
        needed = (uint64_t)c->count + count;
        if (index_cache_waiting(c) > maximum) {
            errno = ENOBUFS;
            return -1;
        }
    }
    if (needed <= c->capacity) return 0;
    uint64_t capacity = c->capacity < INDEX_CACHE_MIN ? INDEX_CACHE_MIN : c->capacity;
    while (capacity < needed) capacity *= 2;
    return resize(c, capacity);
}

index_entry *index_cache_reserve(index_cache *c, uint32_t count, uint32_t maximum) {
    if ((uint64_t)c->count + count > c->capacity && make_room(c, count, maximum) != 0) return NULL;
    return c->entries + c->count;
}

void index_cache_trim(index_cache *c, uint32_t maximum) {
    if (c->capacity <= maximum) return;
    slide(c, maximum);
    if (c->count <= maximum) resize(c, maximum); /* shrinking; when it fails the larger block stays */
}

void index_cache_free(index_cache *c) {
    free(c->entries);
    *c = (index_cache){0};
}
