/* See history.h. */
#include "log/partition/history.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_ENTRIES 256u /* a search in the file ends with one read of at most so many */

bool history_peek(history *h, segment *s, uint64_t position, void *to, size_t length) {
    segment_answer answer = segment_peek(&h->segments, s, position, to, length);
    if (answer == SEGMENT_WAIT) return history_miss(h, s, SEGMENT_PART_LOG, position, length);
    return answer == SEGMENT_READY;
}

bool history_index_in_memory(const history *h, const segment *s, uint64_t k) {
    return s == segment_active(&h->segments) && k >= h->index.first;
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

static bool read_file(history *h, segment *s, uint64_t k, uint32_t count, index_entry *out) {
    segment_answer answer = s->layout->entries(&h->segments, s, k, count, out);
    h->segments.files->indexes.reads++;
    if (answer == SEGMENT_WAIT) return history_miss(h, s, SEGMENT_PART_INDEX, k, count);
    return answer == SEGMENT_READY;
}

/* Where the entries end that may be kept: those of the active segment that only the file has, in whole pages, so that
 * none of them grows. 0: none may. */
static uint64_t kept_end(const history *h, const segment *s) {
    if (s == segment_active(&h->segments)) return h->index.first - h->index.first % INDEX_PAGE_ENTRIES;
    return h->segments.files->indexes.mode == INDEX_MODE_ALL ? s->count : 0;
}

/* The part of [k, k + count) that is in one page, through the cache. */
static bool read_page(history *h, segment *s, uint64_t end, uint64_t k, uint32_t count, index_entry *out) {
    index_pages *c = &h->segments.files->indexes;
    uint64_t number = k / INDEX_PAGE_ENTRIES, first = number * INDEX_PAGE_ENTRIES;
    if (s->pages == 0) s->pages = index_pages_segment(c);
    const index_page *here = index_pages_find(c, s->pages, number);
    if (here != NULL) {
        memcpy(out, here->entries + (k - first), count * sizeof *out);
        return true;
    }
    uint32_t whole = end - first < INDEX_PAGE_ENTRIES ? (uint32_t)(end - first) : INDEX_PAGE_ENTRIES;
    index_page *page = index_pages_make(s->pages, number, whole);
    if (page == NULL) return read_file(h, s, k, count, out);
    if (!read_file(h, s, first, whole, page->entries)) {
        free(page);
        return false;
    }
    memcpy(out, page->entries + (k - first), count * sizeof *out);
    index_pages_keep(c, page);
    return true;
}

/* Entries [k, k + count) from the cache or the reader. False: cannot be read (now), or not entries of these records. */
static bool read_entries(history *h, segment *s, uint64_t k, uint32_t count, index_entry *out) {
    uint64_t end = h->segments.files->indexes.mode != INDEX_MODE_NONE ? kept_end(h, s) : 0;
    for (uint32_t done = 0; done < count;) {
        uint64_t at = k + done;
        uint32_t left = count - done, in_page = INDEX_PAGE_ENTRIES - (uint32_t)(at % INDEX_PAGE_ENTRIES);
        uint32_t part = at < end && in_page < left ? in_page : left;
        bool read = at < end ? read_page(h, s, end, at, part, out + done) : read_file(h, s, at, part, out + done);
        if (!read) return false;
        done += part;
    }
    return s->absent == 0 ? are_dense(out, k, count) : ascend(out, k, count, s->absent);
}

bool history_border(history *h, segment *s, uint64_t k, uint64_t *position) {
    if (k == 0 || k == s->count) {
        *position = k == 0 ? 0 : s->log_bytes;
        return true;
    }
    index_entry entry;
    if (history_index_in_memory(h, s, k - 1)) entry = h->index.entries[k - 1 - h->index.first];
    else if (!read_entries(h, s, k - 1, 1, &entry)) return history_doubt(h, s);
    *position = entry.end_position;
    return *position <= s->log_bytes || history_doubt(h, s);
}

bool history_timestamp_of(history *h, segment *s, uint64_t k, uint64_t *timestamp) {
    index_entry entry;
    if (history_index_in_memory(h, s, k)) entry = h->index.entries[k - h->index.first];
    else if (!read_entries(h, s, k, 1, &entry)) return history_doubt(h, s);
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

static bool search_file(history *h, segment *s, uint64_t low, uint64_t high, index_key key, uint64_t bound,
                        uint64_t *found) {
    index_entry block[BLOCK_ENTRIES];
    while (high - low > BLOCK_ENTRIES) {
        uint64_t middle = low + (high - low) / 2;
        if (!read_entries(h, s, middle, 1, block)) return false;
        if (reaches(block, key, bound)) high = middle;
        else low = middle + 1;
    }
    uint32_t count = (uint32_t)(high - low);
    if (count > 0 && !read_entries(h, s, low, count, block)) return false;
    *found = low + search_entries(block, count, key, bound);
    return true;
}

bool history_search(history *h, segment *s, uint64_t low, uint64_t high, index_key key, uint64_t bound,
                    uint64_t *found) {
    if (low < high && history_index_in_memory(h, s, high - 1)) {
        const index_cache *c = &h->index;
        uint64_t first = low > c->first ? low : c->first;
        if (first == low || !reaches(&c->entries[first - c->first], key, bound)) {
            *found = first + search_entries(c->entries + (first - c->first), (uint32_t)(high - first), key, bound);
            return true;
        }
        high = first; /* the first entry in memory reaches the bound: it, or one in the file */
    }
    return search_file(h, s, low, high, key, bound, found) || history_doubt(h, s);
}

bool history_sparse_entry_of(history *h, segment *s, uint64_t offset, uint64_t *k) {
    return history_search(h, s, 0, s->count, INDEX_KEY_OFFSET, offset - s->start_offset, k);
}

bool history_sparse_offset_of(history *h, segment *s, uint64_t k, uint64_t *offset) {
    index_entry entry = {0};
    if (k < s->count && !read_entries(h, s, k, 1, &entry)) return history_doubt(h, s);
    *offset = k == s->count ? segment_end(s) : s->start_offset + entry.relative_offset;
    return true;
}

/* ---- at the opening ---- */

int history_take(history *h, const segment_info *info, bool grows) {
    const segment_layout *layout = info->layout != NULL ? info->layout : &segment_plain;
    bool ascends = h->segments.count == 0 || info->start_offset >= h->next_offset;
    /* entry k of a segment that grows is made for the offset start + k */
    if (!ascends || (grows && (info->absent > 0 || layout != &segment_plain))) return EINVAL;
    segment *s = segment_add(&h->segments, info->start_offset, layout);
    if (s == NULL) return errno;
    s->log_bytes = info->log_bytes;
    s->count = info->count;
    s->absent = info->absent;
    s->counted_us = info->counted_us;
    h->segments.sparse |= info->absent > 0;
    s->first_timestamp = info->count > 0 ? info->first_timestamp : h->last_timestamp;
    if (info->count > 0 && info->last_timestamp > h->last_timestamp) h->last_timestamp = info->last_timestamp;
    s->last_timestamp = h->last_timestamp;
    if (info->last_timestamp > h->last_timestamp) h->last_timestamp = info->last_timestamp; /* birth, of an empty one */
    /* What a killed process wrote may be in the page cache only: what no checkpoint covers is durable after the first
     * sync. Files of other layouts are synced before they get their names. */
    s->log_dirty = info->count > 0 && layout == &segment_plain;
    h->next_offset = segment_end(s);
    index_cache_reset(&h->index, info->count);
    return 0;
}

int history_take_waiting(history *h, const index_entry *entries, size_t count) {
    uint64_t all = h->segments.count > 0 ? segment_active(&h->segments)->count : 0;
    if (count == 0) return 0;
    if (count > all || count > UINT32_MAX) return EINVAL;
    index_cache_reset(&h->index, all - count);
    index_entry *to = index_cache_reserve(&h->index, (uint32_t)count, UINT32_MAX);
    if (to == NULL) return errno;
    memcpy(to, entries, count * sizeof *entries);
    h->index.count += (uint32_t)count;
    return 0;
}

void history_free(history *h) {
    index_cache_free(&h->index);
    segment_set_free(&h->segments);
}
