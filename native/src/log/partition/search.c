/* Reading the index: the newest entries from memory, older ones from the .index file, all checked against the log. */
#include "log/partition/inside.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_ENTRIES 256u /* a search in the file ends with one read of at most so many */

bool partition_peek(partition *p, segment *s, uint64_t position, void *to, size_t length) {
    segment_answer answer = segment_peek(&p->history.segments, s, position, to, length);
    if (answer == SEGMENT_WAIT) return partition_miss(p, s, SEGMENT_PART_LOG, position, length);
    return answer == SEGMENT_READY;
}

bool partition_index_in_memory(const partition *p, const segment *s, uint64_t k) {
    return s == segment_active(&p->history.segments) && k >= p->history.index.first;
}

static bool are_dense(const index_entry *entries, uint64_t k, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (entries[i].relative_offset != k + i) return false;
    return true;
}

/* Whether they can be the entries from `k` on of a segment in which `absent` offsets have no record. */
static bool ascend(const index_entry *entries, uint64_t k, uint32_t count, uint64_t absent) {
    uint64_t lowest = k;
    for (uint32_t i = 0; i < count; i++) {
        if (entries[i].relative_offset < lowest || entries[i].relative_offset > k + i + absent) return false;
        lowest = entries[i].relative_offset + UINT64_C(1);
    }
    return true;
}

static bool read_file(partition *p, segment *s, uint64_t k, uint32_t count, index_entry *out) {
    segment_answer answer = s->layout->entries(&p->history.segments, s, k, count, out);
    p->history.segments.files->indexes.reads++;
    if (answer == SEGMENT_WAIT) return partition_miss(p, s, SEGMENT_PART_INDEX, k, count);
    return answer == SEGMENT_READY;
}

/* Where the entries end that may be kept: those of the active segment that only the file has, in whole pages, so that
 * none of them grows. 0: none may. */
static uint64_t kept_end(const partition *p, const segment *s) {
    if (s == segment_active(&p->history.segments))
        return p->history.index.first - p->history.index.first % INDEX_PAGE_ENTRIES;
    return p->history.segments.files->indexes.mode == INDEX_MODE_ALL ? s->count : 0;
}

/* The part of [k, k + count) that is in one page, through the cache. */
static bool read_page(partition *p, segment *s, uint64_t end, uint64_t k, uint32_t count, index_entry *out) {
    index_pages *c = &p->history.segments.files->indexes;
    uint64_t number = k / INDEX_PAGE_ENTRIES, first = number * INDEX_PAGE_ENTRIES;
    if (s->pages == 0) s->pages = index_pages_segment(c);
    const index_page *here = index_pages_find(c, s->pages, number);
    if (here != NULL) {
        memcpy(out, here->entries + (k - first), count * sizeof *out);
        return true;
    }
    uint32_t whole = end - first < INDEX_PAGE_ENTRIES ? (uint32_t)(end - first) : INDEX_PAGE_ENTRIES;
    index_page *page = index_pages_make(s->pages, number, whole);
    if (page == NULL) return read_file(p, s, k, count, out);
    if (!read_file(p, s, first, whole, page->entries)) {
        free(page);
        return false;
    }
    memcpy(out, page->entries + (k - first), count * sizeof *out);
    index_pages_keep(c, page);
    return true;
}

/* Entries [k, k + count) from the cache or the reader. False: cannot be read (now), or not entries of these records. */
static bool read_entries(partition *p, segment *s, uint64_t k, uint32_t count, index_entry *out) {
    uint64_t end = p->history.segments.files->indexes.mode != INDEX_MODE_NONE ? kept_end(p, s) : 0;
    for (uint32_t done = 0; done < count;) {
        uint64_t at = k + done;
        uint32_t left = count - done, in_page = INDEX_PAGE_ENTRIES - (uint32_t)(at % INDEX_PAGE_ENTRIES);
        uint32_t part = at < end && in_page < left ? in_page : left;
        bool read = at < end ? read_page(p, s, end, at, part, out + done) : read_file(p, s, at, part, out + done);
        if (!read) return false;
        done += part;
    }
    return s->absent == 0 ? are_dense(out, k, count) : ascend(out, k, count, s->absent);
}

bool partition_border(partition *p, segment *s, uint64_t k, uint64_t *position) {
    if (k == 0 || k == s->count) {
        *position = k == 0 ? 0 : s->log_bytes;
        return true;
    }
    index_entry entry;
    if (partition_index_in_memory(p, s, k - 1)) entry = p->history.index.entries[k - 1 - p->history.index.first];
    else if (!read_entries(p, s, k - 1, 1, &entry)) return partition_doubt(p, s);
    *position = entry.end_position;
    return *position <= s->log_bytes || partition_doubt(p, s);
}

bool partition_timestamp_of(partition *p, segment *s, uint64_t k, uint64_t *timestamp) {
    index_entry entry;
    if (partition_index_in_memory(p, s, k)) entry = p->history.index.entries[k - p->history.index.first];
    else if (!read_entries(p, s, k, 1, &entry)) return partition_doubt(p, s);
    *timestamp = entry.timestamp;
    return true;
}

static bool reaches(const index_entry *entry, index_key key, uint64_t bound) {
    switch (key) {
    case INDEX_KEY_TIMESTAMP: return entry->timestamp >= bound;
    case INDEX_KEY_OFFSET: return entry->relative_offset >= bound;
    default: return entry->end_position >= bound;
    }
}

/* The search itself, over `count` entries in memory. */
static uint32_t search_entries(const index_entry *entries, uint32_t count, index_key key, uint64_t bound) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (reaches(&entries[middle], key, bound)) high = middle;
        else low = middle + 1;
    }
    return low;
}

static bool search_file(partition *p, segment *s, uint64_t low, uint64_t high, index_key key, uint64_t bound,
                        uint64_t *found) {
    index_entry block[BLOCK_ENTRIES];
    while (high - low > BLOCK_ENTRIES) {
        uint64_t middle = low + (high - low) / 2;
        if (!read_entries(p, s, middle, 1, block)) return false;
        if (reaches(block, key, bound)) high = middle;
        else low = middle + 1;
    }
    uint32_t count = (uint32_t)(high - low);
    if (count > 0 && !read_entries(p, s, low, count, block)) return false;
    *found = low + search_entries(block, count, key, bound);
    return true;
}

bool partition_index_search(partition *p, segment *s, uint64_t low, uint64_t high, index_key key, uint64_t bound,
                            uint64_t *found) {
    if (low < high && partition_index_in_memory(p, s, high - 1)) {
        const index_cache *c = &p->history.index;
        uint64_t first = low > c->first ? low : c->first;
        if (first == low || !reaches(&c->entries[first - c->first], key, bound)) {
            *found = first + search_entries(c->entries + (first - c->first), (uint32_t)(high - first), key, bound);
            return true;
        }
        high = first; /* the first entry in memory reaches the bound: it, or one in the file */
    }
    return search_file(p, s, low, high, key, bound, found) || partition_doubt(p, s);
}

bool partition_sparse_entry_of(partition *p, segment *s, uint64_t offset, uint64_t *k) {
    return partition_index_search(p, s, 0, s->count, INDEX_KEY_OFFSET, offset - s->start_offset, k);
}

bool partition_sparse_offset_of(partition *p, segment *s, uint64_t k, uint64_t *offset) {
    index_entry entry = {0};
    if (k < s->count && !read_entries(p, s, k, 1, &entry)) return partition_doubt(p, s);
    *offset = k == s->count ? segment_end(s) : s->start_offset + entry.relative_offset;
    return true;
}
