/* The plain layout: records are read straight from the .log, entries from the .index. Nothing waits for a fetch. */
#include "log/files.h"
#include "log/segment_reader.h"

static segment_answer plain_entries(segment_set *set, segment *s, uint64_t first, uint32_t count, index_entry *out) {
    int fd = segment_fd(set, s, SEGMENT_INDEX);
    bool read = fd >= 0 &&
                file_read(set->disk, fd, out, (size_t)count * INDEX_ENTRY_SIZE, first * INDEX_ENTRY_SIZE) == 0;
    return read ? SEGMENT_READY : SEGMENT_UNREADABLE;
}

static void plain_release(segment_records *r) { segment_unpin(r->held); }

static segment_answer plain_records(segment_set *set, segment *s, uint64_t position, uint64_t length,
                                    segment_records *out) {
    int fd = segment_fd(set, s, SEGMENT_LOG);
    if (fd < 0) return SEGMENT_UNREADABLE;
    *out = (segment_records){
        .length = length, .fd = fd, .position = position, .release = plain_release, .held = segment_pin(s)};
    return SEGMENT_READY;
}

const segment_layout segment_plain = {.suffix = "log", .entries = plain_entries, .records = plain_records};
