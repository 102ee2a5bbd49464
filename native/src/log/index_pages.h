/* Index entries that were read from .index files, of one worker: pages of INDEX_PAGE_ENTRIES that never change any
 * more, the least recently used one first to go when all together are larger than the bound. Which segments have pages
 * here is the mode (`system.segment.cache_indexes`). The newest entries of active segments are in index_cache.h.
 * Single-threaded. Knows no segments: they have numbers that are never used twice, so one that gets another number has
 * no pages any more; what it had leaves in its turn. */
#ifndef SHARDD_INDEX_PAGES_H
#define SHARDD_INDEX_PAGES_H
#include "log/record.h"

#define INDEX_PAGE_ENTRIES 256u /* 4 KiB, one page of the device */
#define INDEX_PAGES_SHARE 16u   /* a worker's pages may be that part of its pool, beside it */

typedef enum index_mode { INDEX_MODE_NONE, INDEX_MODE_OPEN_SEGMENT, INDEX_MODE_ALL } index_mode;

typedef struct index_page {
    struct index_page *newer, *older;
    struct index_page *next; /* in its bucket */
    uint64_t segment, number;
    uint32_t count;
    index_entry entries[];
} index_page;

typedef struct index_pages {
    index_mode mode;
    uint64_t bytes, bytes_max;
    index_page *newest, *oldest;
    index_page **buckets; /* NULL until the first page */
    uint32_t bucket_bits;
    uint64_t segments;    /* numbers given */
    uint64_t hits, reads; /* pages that were here; reads of .index files, in every mode */
} index_pages;

void index_pages_close(index_pages *c);
/* A number for one more segment; not 0. */
static inline uint64_t index_pages_segment(index_pages *c) { return ++c->segments; }
/* The page with this number, the newest one from now on; NULL: it is not here. */
const index_page *index_pages_find(index_pages *c, uint64_t segment, uint64_t number);
/* Memory for a page, not in the cache yet: fill it, then `index_pages_keep` or free(). NULL: none. */
index_page *index_pages_make(uint64_t segment, uint64_t number, uint32_t count);
/* Takes it over; others leave, as the bound wants it. It may leave itself: it is not to be used any more. */
void index_pages_keep(index_pages *c, index_page *page);
#endif
