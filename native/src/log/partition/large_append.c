/* See large_append.h. */
#include "log/partition/large_append.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

large_append *large_append_begin(const append_batch *b, log_tail tail, uint64_t timestamp) {
    large_append *a = malloc(sizeof *a);
    if (a == NULL) return NULL;
    *a = (large_append){.messages = b->messages,
                        .tail = tail,
                        .timestamp = timestamp,
                        .entries = malloc((size_t)b->count * sizeof *a->entries)};
    if (a->entries != NULL) return a;
    free(a);
    return NULL;
}

void large_append_free(large_append *a) {
    if (a != NULL) free(a->entries);
    free(a);
}

bool large_append_may_begin_anew(const large_append *a, const append_batch *b) {
    return a->messages == b->messages && a->status == 0 && !a->anew;
}

bool large_append_stands(const large_append *a, const append_batch *b, log_tail tail, uint64_t last_timestamp) {
    const log_tail *at = &a->tail;
    return a->messages == b->messages && a->status == 0 && at->cuts == tail.cuts && at->segment == tail.segment &&
           at->bytes == tail.bytes && at->next_offset == tail.next_offset && last_timestamp <= a->timestamp;
}

void large_append_assign(large_append *a, const append_batch *b, id_source *ids, uint64_t count) {
    uint64_t end = a->assigned, offset = a->tail.next_offset + a->records;
    uint32_t records = 0, relative = (uint32_t)(count + a->records);
    for (; a->records + records < b->count && end - a->written < APPEND_PART_BYTES; records++)
        end += (uint64_t)RECORD_HEADER_SIZE + load_u32(b->messages + end + 48) + load_u32(b->messages + end + 52);
    if (records == 0) return;
    uint8_t *messages = b->messages + a->assigned;
    uint32_t position = (uint32_t)(a->tail.bytes + a->assigned);
    index_entry *entries = a->entries + a->records;
    if (b->by.asks & APPEND_DISTINCT)
        batch_assign_distinct(messages, records, offset, a->timestamp + a->records, relative, position, ids, entries);
    else batch_assign(messages, end - a->assigned, records, offset, a->timestamp, relative, position, ids, entries);
    a->records += records;
    a->assigned = end;
}

struct iovec large_append_part(const large_append *a, const append_batch *b, uint64_t *position) {
    uint64_t length = a->assigned - a->written;
    *position = a->tail.bytes + a->written;
    return (struct iovec){.iov_base = b->messages + a->written,
                          .iov_len = length < APPEND_PART_BYTES ? length : APPEND_PART_BYTES};
}

uint64_t large_append_end(const large_append *a, append_batch *b, index_entry *entries) {
    memcpy(entries, a->entries, (size_t)b->count * sizeof *entries);
    b->first_offset = a->tail.next_offset;
    b->status = 0;
    if (b->by.asks != 0) b->made = (produced){PRODUCED_PLACED, b->count, b->first_offset, a->timestamp};
    return a->timestamp + (b->by.asks & APPEND_DISTINCT ? b->count - 1 : 0);
}
