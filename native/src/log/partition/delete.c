/* Taking the oldest segments away: on demand (docs/protocol/streams.md#delete-segments), sealed ones whose records
 * every stored offset has passed; and what both ways of it share (clean.c is the other one). */
#include "log/partition/inside.h"

#include "log/files.h"
#include "log/partition/state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

uint64_t partition_first_read(const partition *p) {
    uint64_t lowest = UINT64_MAX;
    for (const poll_cursor *c = p->cursors; c != NULL; c = c->next) {
        uint64_t at = c->held_offset != UINT64_MAX ? c->held_offset : c->next_offset;
        if (c->total_count > 0 && at < lowest) lowest = at;
    }
    return lowest;
}

/* Renames one file of the segment into the trash. A file that is not there is no error. */
static int move_away(partition *p, const segment *s, const char *suffix, const char *trash) {
    char from[FILE_PATH_MAX], to[FILE_PATH_MAX];
    segment_path_of(history_segments(&p->history), s->start_offset, suffix, from, sizeof(from));
    int length = snprintf(to, sizeof(to), "%s-%020" PRIu64 ".%s", trash, s->start_offset, suffix);
    if (length < 0 || (size_t)length >= sizeof(to)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int result;
    do result = p->files.disk->rename(p->files.disk->context, from, to);
    while (result != 0 && errno == EINTR);
    return result == 0 || errno == ENOENT ? 0 : -1;
}

/* What a change of the layout that has not come to its end leaves (shardd/log/compressing.py): the file of the other
 * layout, or what was written for it. */
static bool remove_left_over(partition *p, const segment *s, const char *trash) {
    const segment_layout *other = s->layout == &segment_plain ? &segment_compressed : &segment_plain;
    return move_away(p, s, other->suffix, trash) == 0 && move_away(p, s, "blocks.tmp", trash) == 0;
}

/* The next start removes an index or a manifest that is left without a log. */
bool partition_remove_files(partition *p, segment *s, const char *trash) {
    if (!remove_left_over(p, s, trash) || move_away(p, s, s->layout->suffix, trash) != 0) return false;
    move_away(p, s, segment_suffix(s, SEGMENT_INDEX), trash);
    move_away(p, s, segment_suffix(s, SEGMENT_MANIFEST), trash);
    return true;
}

void partition_forget_segments(partition *p, uint32_t count) {
    if (count == 0) return;
    partition_hide(p, history_segment(&p->history, count)->start_offset);
    segment_remove_front(history_segments(&p->history), count);
    log_start_segments_removed(&p->start, count);
    damage_forget(&p->damage, partition_first_offset(p));
    progress_segments_removed(&p->sync, count);
    progress_mark_directory(&p->sync);
    partition_publish(p);
}

uint32_t partition_delete_segments(partition *p, uint32_t count, const char *trash, uint32_t *deleted, bool *busy) {
    *deleted = 0;
    *busy = false;
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (p->state != 0) return p->state;
    partition_expire_due(p);
    uint64_t lowest = stored_offsets_lowest(&p->offsets, 0), reading = partition_first_read(p);
    uint32_t status = 0, gone = 0, hidden = log_start_hidden(&p->start); /* those are none any more for who asks */
    while (*deleted < count && gone + 1 < history_count(&p->history) && status == 0) {
        segment *s = history_segment(&p->history, gone);
        uint64_t next_start = s[1].start_offset; /* the end offset is one below */
        if (lowest != UINT64_MAX && next_start > lowest + 1 && gone >= hidden) break;
        *busy = reading < next_start;
        if (*busy || partition_window_holds(p, next_start)) break;
        if (!partition_remove_files(p, s, trash)) {
            status = STATUS_CANNOT_DELETE_FILE;
            break;
        }
        if (gone++ >= hidden) ++*deleted;
    }
    partition_forget_segments(p, gone);
    return status;
}
