/* The segments of a partition, the newest entries of its index, and the end of the log. */
#ifndef SHARDD_PARTITION_HISTORY_H
#define SHARDD_PARTITION_HISTORY_H
#include "log/index_cache.h"
#include "log/partition.h"
#include "log/segment.h"
#include "log/segment_reader.h"

typedef struct history {
    segment_set segments;
    index_cache index; /* of the active segment */
    uint64_t next_offset;
    uint64_t last_timestamp; /* of the last record, or the birth of the active segment; never falls */
    uint64_t suspect;        /* start of the segment whose index was last seen to contradict its log */
    struct {                 /* what the running poll or window misses; length 0: nothing */
        segment_want want;
        uint64_t segment; /* its start */
    } missing;
} history;

typedef enum index_key { INDEX_KEY_END_POSITION, INDEX_KEY_TIMESTAMP, INDEX_KEY_OFFSET } index_key;

/* ---- what there is ---- */

static inline segment_set *history_segments(history *h) { return &h->segments; }
static inline uint32_t history_count(const history *h) { return h->segments.count; }
/* NULL: there is no segment. */
static inline segment *history_active(const history *h) { return segment_active(&h->segments); }
static inline segment *history_segment(const history *h, uint32_t i) { return &h->segments.items[i]; }
/* The segment that starts at `offset` or before; NULL: there is no such segment. */
static inline segment *history_find(const history *h, uint64_t offset) { return segment_find(&h->segments, offset); }
static inline int history_fd(history *h, segment *s, segment_file which) { return segment_fd(&h->segments, s, which); }
static inline file_cache *history_files(const history *h) { return h->segments.files; }
static inline index_cache *history_index(history *h) { return &h->index; }
static inline const index_cache *history_newest(const history *h) { return &h->index; }
/* Index entries that wait for their file. */
static inline uint32_t history_waiting(const history *h) { return index_cache_waiting(&h->index); }
/* The offset of the next message. */
static inline uint64_t history_end(const history *h) { return h->next_offset; }
static inline uint64_t history_last_timestamp(const history *h) { return h->last_timestamp; }
static inline bool history_is_sparse(const history *h) { return h->segments.sparse; }
static inline uint64_t history_suspect(const history *h) { return h->suspect; }

/* ---- changes ---- */

/* Takes a segment behind the others, at the opening. `grows`: it is the active one of a partition that takes writes. 0
 * or errno. */
int history_take(history *h, const segment_info *info, bool grows);
/* The last entries of the index, which its file has no room for, wait like those of an append. 0 or errno. */
int history_take_waiting(history *h, const index_entry *entries, size_t count);
void history_free(history *h);
/* A group of records is in the active segment. */
static inline void history_grew(history *h, segment *s, uint64_t bytes, uint64_t records, uint64_t first_timestamp,
                                uint64_t last_timestamp) {
    if (s->count == 0) s->first_timestamp = first_timestamp;
    s->last_timestamp = h->last_timestamp = last_timestamp;
    s->count += records;
    s->log_bytes += bytes;
    h->next_offset += records;
}
/* A new active segment was made at `born_at`: nothing is stored earlier, also when the clock goes back. */
static inline void history_rolled(history *h, segment *s, uint64_t born_at) {
    s->first_timestamp = s->last_timestamp = h->last_timestamp;
    h->last_timestamp = born_at;
    index_cache_reset(&h->index, 0);
}

/* ---- what a lookup waits for ---- */

/* The index of this segment contradicts its log, or a file cannot be read: no entry is kept in memory. False. */
static inline bool history_doubt(history *h, segment *s) {
    h->suspect = s->start_offset;
    s->pages = 0;
    return false;
}
/* Notes what the poll has to wait for. False, as if it could not be read: the maker of the poll looks here. */
static inline bool history_miss(history *h, const segment *s, segment_part part, uint64_t from, uint64_t length) {
    h->missing.want = (segment_want){part, from, length};
    h->missing.segment = s->start_offset;
    return false;
}
static inline bool history_waits(const history *h) { return h->missing.want.length > 0; }
static inline void history_forget_missing(history *h) { h->missing.want.length = 0; }
/* Begins to bring what is missing. False: it cannot. */
static inline bool history_fetch(history *h, segment_wait *w) {
    segment *s = history_find(h, h->missing.segment);
    return s->layout->fetch(&h->segments, s, &h->missing.want, w);
}

/* ---- lookups in one segment: the newest entries from memory, older ones from the .index file, all checked ---- */

/* Bytes of the plain log of a segment. False: they have to be waited for, or cannot be read. */
bool history_peek(history *h, segment *s, uint64_t position, void *to, size_t length);
/* Byte position in the .log where record `k` of the segment starts (k == count: where the log ends). False when the
 * index cannot be read or leaves the log; damaged records may share few bytes, so callers keep 64 for each that they
 * read. */
bool history_border(history *h, segment *s, uint64_t k, uint64_t *position);
/* The two below, where some offsets have no record. */
bool history_sparse_entry_of(history *h, segment *s, uint64_t offset, uint64_t *k);
bool history_sparse_offset_of(history *h, segment *s, uint64_t k, uint64_t *offset);
/* The first entry of the segment at `offset` or behind it (count: none); `offset` is in the segment or its end. Dense:
 * no look at the index. False as above. */
static inline bool history_entry_of(history *h, segment *s, uint64_t offset, uint64_t *k) {
    *k = offset - s->start_offset;
    return s->absent == 0 || history_sparse_entry_of(h, s, offset, k);
}
/* The offset of entry `k`; k == count: where the segment ends. False as above. */
static inline bool history_offset_of(history *h, segment *s, uint64_t k, uint64_t *offset) {
    *offset = s->start_offset + k;
    return s->absent == 0 || history_sparse_offset_of(h, s, k, offset);
}
/* Entry `k` is in memory: it has not been on a device. */
bool history_index_in_memory(const history *h, const segment *s, uint64_t k);
/* The timestamp of entry `k`. False as above. */
bool history_timestamp_of(history *h, segment *s, uint64_t k, uint64_t *timestamp);
/* First record in [low, high) of the segment whose key (offsets: relative) is >= bound; `high`: there is no such
 * record. False as above. */
bool history_search(history *h, segment *s, uint64_t low, uint64_t high, index_key key, uint64_t bound,
                    uint64_t *found);
#endif
