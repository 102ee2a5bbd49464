/* Deleting the oldest segments (docs/protocol/streams.md#delete-segments): sealed ones whose records every stored
 * offset has passed. */
#include "log/partition_internal.h"

#include "log/partition_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* The lowest stored offset: the last message that the slowest consumer has processed. */
static uint64_t barrier(const partition *p) {
    uint64_t lowest = UINT64_MAX;
    for (uint32_t i = 0; i < p->offsets.capacity; i++)
        if (p->offsets.entries[i].kind != 0 && p->offsets.entries[i].value < lowest)
            lowest = p->offsets.entries[i].value;
    return lowest;
}

/* The first offset whose segment an answer on its way still reads: that of records that it holds, too. */
static uint64_t first_read(const partition *p) {
    uint64_t lowest = UINT64_MAX;
    for (const poll_cursor *c = p->cursors; c != NULL; c = c->next) {
        uint64_t at = c->held_offset != UINT64_MAX ? c->held_offset : c->next_offset;
        if (c->total_count > 0 && at < lowest) lowest = at;
    }
    return lowest;
}

/* Renames one file of the segment into the trash. A file that is not there is no error. */
static int move_away(partition *p, const segment *s, segment_file which, const char *trash) {
    char from[FILE_PATH_MAX], to[FILE_PATH_MAX];
    segment_path(&p->segments, s, which, from, sizeof(from));
    int length = snprintf(to, sizeof(to), "%s-%020" PRIu64 ".%s", trash, s->start_offset, segment_suffix(s, which));
    if (length < 0 || (size_t)length >= sizeof(to)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int result;
    do result = p->disk->rename(p->disk->context, from, to);
    while (result != 0 && errno == EINTR);
    return result == 0 || errno == ENOENT ? 0 : -1;
}

/* The files of a segment leave, its log first: a recovery ignores an index or a manifest without a log. */
static bool remove_files(partition *p, segment *s, const char *trash) {
    if (move_away(p, s, SEGMENT_LOG, trash) != 0) return false;
    move_away(p, s, SEGMENT_INDEX, trash); /* one that stays is noted at the next start */
    move_away(p, s, SEGMENT_MANIFEST, trash);
    p->size_bytes -= s->log_bytes;
    p->messages -= s->count;
    return true;
}

uint32_t partition_delete_segments(partition *p, uint32_t count, const char *trash, uint32_t *deleted, bool *busy) {
    *deleted = 0;
    *busy = false;
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (p->state != 0) return p->state;
    uint64_t lowest = barrier(p), reading = first_read(p);
    uint32_t status = 0;
    while (*deleted < count && *deleted + 1 < p->segments.count && status == 0) {
        segment *s = &p->segments.items[*deleted];
        uint64_t next_start = s[1].start_offset; /* the end offset is one below */
        if (lowest != UINT64_MAX && next_start > lowest + 1) break;
        *busy = reading < next_start;
        if (*busy) break;
        if (remove_files(p, s, trash)) ++*deleted;
        else status = STATUS_CANNOT_DELETE_FILE;
    }
    if (*deleted > 0) {
        segment_remove_front(&p->segments, *deleted);
        partition_forget_damage(p, partition_first_offset(p));
        p->dirty_from -= p->dirty_from < *deleted ? p->dirty_from : *deleted;
        p->dirty_directories |= 1;
        partition_publish(p);
    }
    return status;
}
