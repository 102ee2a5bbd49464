/* Records in some memory: how they are copied. */
#include "log/segment_reader.h"

#include "base/assert.h"
#include "log/files.h"

#include <string.h>

const segment_layout *segment_layout_of(uint32_t bits) {
    if (bits == segment_compressed.bits) return &segment_compressed;
    return bits == segment_plain.bits ? &segment_plain : NULL;
}

size_t segment_records_take(const segment_records *r, io *i, void *to, uint64_t from, size_t length) {
    ASSERT(from <= r->length && length <= r->length - from);
    if (r->block != NULL) {
        memcpy(to, r->block + from, length);
        return length;
    }
    size_t taken = 0;
    while (taken < length) {
        int got = io_read_cached(i, r->fd, (uint8_t *)to + taken, length - taken, r->position + from + taken);
        if (got <= 0) break;
        taken += (size_t)got;
    }
    return taken;
}

void segment_records_read(const segment_records *r, io *i, operation *op, void *to, uint64_t from, uint32_t length) {
    ASSERT(r->block == NULL && from <= r->length && length <= r->length - from);
    io_read(i, op, r->fd, to, length, r->position + from);
}

segment_answer segment_peek(segment_set *set, segment *s, uint64_t position, void *to, size_t length) {
    segment_records r = {0};
    segment_answer answer = s->layout->records(set, s, position, length, &r);
    if (answer != SEGMENT_READY) return answer;
    if (r.block != NULL) memcpy(to, r.block, length);
    else if (file_read(set->disk, r.fd, to, length, r.position) != 0) answer = SEGMENT_UNREADABLE;
    segment_records_release(&r);
    return answer;
}
