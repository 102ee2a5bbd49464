/* Polls: what an answer holds (docs/protocol/messages.md#poll-start), and the windows of the files that it is made
 * of. */
#include "log/partition/inside.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "log/partition/lookup.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

#include <string.h>

/* An answer has one u32 length; the megabyte below 4 GiB is for its heads. */
#define ANSWER_BYTES_MAX ((UINT64_C(4) << 30) - (UINT64_C(1) << 20))

/* The segment that `offset` (below next_offset) belongs to; NULL in a gap that damage left. */
static segment *holder(const partition *p, uint64_t offset) {
    segment *s = history_find(&p->history, offset);
    return s != NULL && offset < segment_end(s) ? s : NULL;
}

/* Whether the header of the record at `offset` lies where the index says and is, as asked, not below `t` or below it.
 * What is withheld or not in the file yet is not looked at, nor what has no record. */
static bool header_agrees(partition *p, uint64_t offset, uint64_t t, bool reaches) {
    const damaged_range *r = damage_from(&p->damage, offset);
    segment *s = holder(p, offset);
    if (offset >= partition_visible_end(p) || s == NULL || (r != NULL && r->start <= offset)) return true;
    uint8_t header[RECORD_HEADER_SIZE];
    uint64_t k, found, position;
    if (!history_entry_of(&p->history, s, offset, &k) || !history_offset_of(&p->history, s, k, &found)) return false;
    if (found != offset) return true;
    if (!history_border(&p->history, s, k, &position)) return false;
    if (!history_peek(&p->history, s, position, header, sizeof(header)) || load_u64(header + 24) != offset ||
        (load_u64(header + 32) >= t) != reaches)
        return history_doubt(&p->history, s);
    return true;
}

/* First message with timestamp >= t; next_offset when there is none. False: the index cannot be read, or the records to
 * which it led contradict it. */
static bool search_timestamp(partition *p, uint64_t t, uint64_t *offset) {
    uint32_t low = 0, high = history_count(&p->history);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (history_segment(&p->history, middle)->last_timestamp >= t) high = middle;
        else low = middle + 1;
    }
    while (low < history_count(&p->history) && history_segment(&p->history, low)->count == 0) low++;
    if (low == history_count(&p->history)) {
        *offset = history_end(&p->history);
        return true;
    }
    segment *s = history_segment(&p->history, low);
    uint64_t k = 0;
    if (s->first_timestamp < t && !history_search(&p->history, s, 0, s->count, INDEX_KEY_TIMESTAMP, t, &k))
        return false;
    return history_offset_of(&p->history, s, k, offset);
}

/* The offset of the last record before `offset`, in the same segment or at the end of the one before it; where there is
 * none, or a gap that damage left, one less. */
static bool find_before(partition *p, uint64_t offset, uint64_t *before) {
    *before = offset - 1;
    if (!history_is_sparse(&p->history)) return true;
    segment *s = holder(p, *before);
    uint64_t k;
    if (s == NULL || s->absent == 0) return true;
    if (!history_entry_of(&p->history, s, offset, &k)) return false;
    return k == 0 || history_offset_of(&p->history, s, k - 1, before);
}

/* As above. Damage right before what was found may hold an earlier one: then it starts there. */
static bool find_timestamp(partition *p, uint64_t t, uint64_t *offset) {
    uint64_t before;
    if (!search_timestamp(p, t, offset) || !header_agrees(p, *offset, t, true) ||
        (*offset > partition_first_offset(p) &&
         (!find_before(p, *offset, &before) || !header_agrees(p, before, t, false))))
        return false;
    *offset = damage_before(&p->damage, *offset);
    return true;
}

/* Where the answer starts; next_offset or more: it is empty. 0 or a status. */
static uint32_t find_start(partition *p, uint8_t strategy, uint64_t value, uint32_t count, uint8_t kind, uint32_t id,
                           uint64_t *start) {
    uint64_t stored;
    if (strategy == POLL_NEXT && partition_have_offsets(p) != 0) return STATUS_CANNOT_READ_FILE;
    if (strategy != POLL_NEXT) partition_offset_read(p, kind, id, &stored); /* a consumer at work uses what it stored */
    switch (strategy) {
    case POLL_OFFSET: *start = value; break;
    case POLL_TIMESTAMP:
        if (!find_timestamp(p, value, start)) return STATUS_CANNOT_READ_FILE;
        break;
    case POLL_FIRST: *start = 0; break;
    case POLL_LAST:
        if (!partition_last_readable(p, partition_visible_end(p), count, start)) return STATUS_CANNOT_READ_FILE;
        break;
    case POLL_NEXT: *start = partition_offset_read(p, kind, id, &stored) ? stored + 1 : 0; break;
    default: return STATUS_INVALID_COMMAND;
    }
    if (*start < partition_first_offset(p)) *start = partition_first_offset(p);
    return partition_pass_over(p, start) ? 0 : (uint32_t)STATUS_CANNOT_READ_FILE;
}

/* Whether the record before the `first` one of an answer ends where the index lets it begin, at `from`. A wrong entry
 * could lead into a payload, to bytes that somebody made look like that record; behind the first one each record leads
 * to the next. Entries in memory are right, and beside what is withheld a survey has told. */
static bool start_agrees(partition *p, segment *s, uint64_t first, uint64_t from) {
    if (first == 0 || history_index_in_memory(&p->history, s, first - 1)) return true;
    uint64_t before, position;
    if (!history_offset_of(&p->history, s, first - 1, &before)) return false;
    const damaged_range *r = damage_from(&p->damage, before);
    if (r != NULL && r->start <= before) return true;
    uint8_t header[RECORD_HEADER_SIZE];
    if (!history_border(&p->history, s, first - 1, &position)) return false;
    if (!history_peek(&p->history, s, position, header, sizeof(header)) || load_u64(header + 24) != before ||
        position + record_size(header) != from)
        return history_doubt(&p->history, s);
    return true;
}

/* Entries [*first, *last) of the segment: those of the offsets [at, end), at most `count`. */
static bool entries_between(partition *p, segment *s, uint64_t at, uint64_t end, uint64_t count, uint64_t *first,
                            uint64_t *last) {
    uint64_t until = segment_end(s);
    if (!history_entry_of(&p->history, s, at, first) ||
        !history_entry_of(&p->history, s, end < until ? end : until, last))
        return false;
    if (*last - *first > count) *last = *first + count;
    return true;
}

/* Adds up to `count` messages of [start, end) to the answer; `end` moves down to a gap, or to where the answer would be
 * too long. */
static uint32_t measure(partition *p, uint64_t start, uint64_t *end, uint64_t count, poll_cursor *out) {
    uint64_t at = start;
    for (segment *s = holder(p, start); at < *end && count > 0; s++) {
        if (s == NULL || s == history_segment(&p->history, history_count(&p->history)) || s->start_offset > at)
            break; /* a gap */
        uint64_t first, last, from, to, wanted;
        if (!entries_between(p, s, at, *end, count, &first, &last)) return STATUS_CANNOT_READ_FILE;
        wanted = last;
        if (!history_border(&p->history, s, first, &from) || (first < last && !start_agrees(p, s, first, from)) ||
            !history_border(&p->history, s, last, &to) ||
            ((to < from || to - from < (last - first) * RECORD_HEADER_SIZE) && !history_doubt(&p->history, s)))
            return STATUS_CANNOT_READ_FILE;
        uint64_t most = out->bytes_max;
        if (out->total_bytes + (to - from) > most && last > first) {
            uint64_t limit = out->total_bytes < most ? from + (most - out->total_bytes) : from;
            if (!history_search(&p->history, s, first, last, INDEX_KEY_END_POSITION, limit + 1, &last))
                return STATUS_CANNOT_READ_FILE;
            bool alone = last == first && out->total_count == 0; /* however large it is */
            if (alone) last++;
            if (!history_border(&p->history, s, last, &to) ||
                ((to < from || (to > limit && !alone)) && !history_doubt(&p->history, s)))
                return STATUS_CANNOT_READ_FILE;
        }
        out->total_bytes += to - from;
        out->total_count += last - first;
        count -= last - first;
        if (last > first && !history_offset_of(&p->history, s, last - 1, &out->last_offset))
            return STATUS_CANNOT_READ_FILE;
        at = last > first ? out->last_offset + 1 : at;
        if (last < wanted || (count == 0 && at < *end)) break;
        at = *end < segment_end(s) ? *end : segment_end(s); /* what is left of it has no record */
    }
    *end = at;
    return 0;
}

/* Fills the cursor with up to `count` messages from `start` on, isolated ones left out. */
static uint32_t choose(partition *p, uint64_t start, uint64_t count, uint64_t visible, poll_cursor *out) {
    const damaged_range *r = damage_from(&p->damage, start);
    if ((r != NULL && r->start <= start) || holder(p, start) == NULL) return STATUS_INVALID_MESSAGE_CHECKSUM;
    out->next_offset = start;
    for (uint64_t at = start; at < visible && out->total_count < count;) {
        uint64_t end = visible;
        r = damage_from(&p->damage, at);
        if (r != NULL && r->start < end) end = r->start > at ? r->start : at;
        uint64_t reached = end;
        uint32_t status = measure(p, at, &reached, count - out->total_count, out);
        if (status != 0) return status;
        at = damage_skip_isolated(&p->damage, reached);
        if (reached < end || at == reached)
            break; /* all of them, the answer would be too long, or damage that is not isolated follows */
    }
    out->remaining = out->total_count;
    return 0;
}

/* A poll that cannot read something it misses waits for it. */
static uint32_t outcome(const partition *p, uint32_t status) {
    bool waits = status == STATUS_CANNOT_READ_FILE && history_waits(&p->history);
    return waits ? (uint32_t)PARTITION_WAITS : status;
}

uint32_t partition_poll_within(partition *p, uint8_t strategy, uint64_t value, uint32_t count, uint8_t consumer_kind,
                               uint32_t consumer_id, uint64_t bytes_max, poll_cursor *out) {
    memset(out, 0, sizeof(*out));
    out->bytes_max = bytes_max > 0 && bytes_max < ANSWER_BYTES_MAX ? bytes_max : ANSWER_BYTES_MAX;
    out->held_offset = UINT64_MAX;
    history_forget_missing(&p->history);
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (p->unreadable) return STATUS_CANNOT_READ_FILE;
    bool below = strategy == POLL_OFFSET && value < partition_visible_end(p) &&
                 count <= partition_visible_end(p) - value;
    if (!below) partition_save(p); /* as far as it fails, the answer ends before the journal */
    partition_expire_due(p);       /* what was saved now may have expired in the journal */
    uint64_t start, visible = partition_visible_end(p);
    uint32_t status = find_start(p, strategy, value, count, consumer_kind, consumer_id, &start);
    if (status != 0) return outcome(p, status);
    out->current_offset = visible > 0 ? visible - 1 : 0;
    if (count > 0 && start >= visible && p->state == STATUS_INVALID_MESSAGE_CHECKSUM)
        return p->state; /* history goes on behind the damage: an empty answer would let a consumer wait for ever */
    if (count > 0 && start < visible) {
        status = choose(p, start, count, visible, out);
        if (status != 0) return outcome(p, status);
    }
    out->owner = partition_retain(p);
    out->next = p->cursors;
    if (out->next != NULL) out->next->previous = out;
    p->cursors = out;
    return 0;
}

/* ---- windows ---- */

/* The records of the segment that make the next window; where they begin in the plain log. False: the index contradicts
 * the log or what was announced. */
static bool window_range(partition *p, segment *s, const poll_cursor *cursor, uint64_t max_bytes, uint64_t *position,
                         poll_window *out) {
    uint64_t first, until, last, from, to, gap = damage_next_isolated(&p->damage, cursor->next_offset);
    if (!entries_between(p, s, cursor->next_offset, gap, UINT64_MAX, &first, &until)) return false;
    bool rest = cursor->remaining <= until - first; /* of the answer */
    last = rest ? first + cursor->remaining : until;
    if (!history_border(&p->history, s, first, &from) || !history_border(&p->history, s, last, &to)) return false;
    if (to > from && to - from > max_bytes) {
        uint64_t high = max_bytes / RECORD_HEADER_SIZE; /* records are not smaller: no need to look further */
        high = high < last - first ? first + high : last;
        rest = false;
        if (!history_search(&p->history, s, first, high, INDEX_KEY_END_POSITION, from + max_bytes + 1, &last))
            return false;
        if (last == first) ++last;
        if (!history_border(&p->history, s, last, &to)) return false;
    }
    uint64_t left = cursor->total_bytes - cursor->sent_bytes, count = last - first, end;
    if (to < from || to - from < count * RECORD_HEADER_SIZE || (to - from > max_bytes && count > 1)) return false;
    uint64_t length = to - from; /* exactly the announced bytes: every record still to come needs its share */
    if (rest ? length != left : length > left || left - length < (cursor->remaining - count) * RECORD_HEADER_SIZE)
        return false;
    if (!history_offset_of(&p->history, s, last, &end) || count == 0 || end < cursor->next_offset + count) return false;
    *position = from;
    *out = (poll_window){
        .length = length, .first_offset = cursor->next_offset, .end_offset = end, .count = (uint32_t)count};
    return true;
}

/* The next window, and its records from the reader of the segment. The cursor's next offset moves behind it. 0 or a
 * status. */
static uint32_t take_window(partition *p, segment *s, poll_cursor *cursor, uint64_t max_bytes, poll_window *out) {
    uint64_t from;
    if (!window_range(p, s, cursor, max_bytes, &from, out)) return outcome(p, STATUS_CANNOT_READ_FILE);
    uint64_t following = out->end_offset;
    if (cursor->remaining > out->count && !partition_pass_over(p, &following))
        return outcome(p, STATUS_CANNOT_READ_FILE);
    switch (s->layout->records(history_segments(&p->history), s, from, out->length, &cursor->records)) {
    case SEGMENT_READY: break;
    case SEGMENT_WAIT:
        history_miss(&p->history, s, SEGMENT_PART_LOG, from, out->length);
        return (uint32_t)PARTITION_WAITS;
    case SEGMENT_DAMAGED: return STATUS_INVALID_MESSAGE_CHECKSUM;
    default: return STATUS_CANNOT_READ_FILE;
    }
    out->records = &cursor->records;
    cursor->held_offset = out->first_offset;
    cursor->next_offset = following;
    return 0;
}

bool partition_cursor_next(poll_cursor *cursor, uint64_t max_bytes, poll_window *window, uint32_t *status) {
    *status = 0;
    if (cursor->remaining == 0) return false;
    partition *p = cursor->owner;
    if (p->closed) {
        *status = STATUS_PARTITION_NOT_FOUND;
        return false;
    }
    partition_cursor_release(cursor);
    history_forget_missing(&p->history);
    segment *s = holder(p, cursor->next_offset);
    *status = STATUS_CANNOT_READ_FILE;
    if (s == NULL) return false;
    *status = take_window(p, s, cursor, max_bytes, window);
    if (*status != 0) return history_doubt(&p->history, s);
    cursor->remaining -= window->count;
    cursor->sent_bytes += window->length;
    return true;
}

void partition_cursor_end(poll_cursor *cursor) {
    partition *p = cursor->owner;
    if (p == NULL) return;
    ASSERT(cursor->previous != NULL || p->cursors == cursor);
    partition_cursor_release(cursor);
    if (cursor->next != NULL) cursor->next->previous = cursor->previous;
    *(cursor->previous != NULL ? &cursor->previous->next : &p->cursors) = cursor->next;
    cursor->next = cursor->previous = NULL;
    cursor->owner = NULL;
    cursor->remaining = 0;
    partition_release(p);
}

void partition_asks(partition *p, segment_wait *w) { history_segments(&p->history)->asks = w; }

bool partition_fetch(partition *p, segment_wait *w) {
    ASSERT(history_waits(&p->history));
    return !p->closed && history_fetch(&p->history, w);
}
