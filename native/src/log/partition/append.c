/* Append: groups of batches as one vectored write each, the roll rule (docs/protocol/records.md#segments), refusals of
 * the disk.
 *
 * The steady state of a small batch is batch_assign, one pwritev and a few stores. */
#include "log/partition/inside.h"

#include "base/assert.h"
#include "log/files.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

#include <errno.h>
#include <limits.h>

/* Everything that must hold before a group is written. `fd`: the active log. 0 or a status. */
static inline __attribute__((always_inline)) uint32_t make_ready(partition *p, uint64_t now_us, int *fd) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (p->state != 0) return p->state;
    if (__builtin_expect(guard_error(&p->producers) != 0, false)) {
        uint32_t status = partition_part_with_producers(p);
        if (status != 0) return status;
    }
    if (history_count(&p->history) == 0 || roll_is_due(&p->roll, now_us)) {
        uint32_t status = partition_roll(p, now_us);
        if (status != 0) return status;
    }
    segment *s = history_active(&p->history);
    *fd = history_fd(&p->history, s, SEGMENT_LOG);
    if (*fd < 0) return partition_refused(p, errno);
    int error = partition_cut_stale(p, s, *fd);
    return error == 0 ? 0 : partition_refused(p, error);
}

/* ---- groups ---- */

typedef struct group {
    size_t batches;
    uint64_t bytes, records;
    uint64_t first_timestamp, last_timestamp;
    bool seals; /* its last batch found the segment full */
} group;

/* A batch that asks for something is assigned, and its answer made, with timestamps behind `last` or at it. That of its
 * last message. (Without the group: what a call may change does not stay in registers.) */
static __attribute__((noinline)) uint64_t assign_asked(const partition *p, append_batch *b, uint64_t timestamp,
                                                       uint64_t last, uint32_t relative, uint32_t position,
                                                       index_entry *entries) {
    bool distinct = b->by.asks & APPEND_DISTINCT;
    if (distinct && timestamp == last) timestamp++;
    b->made = (produced){PRODUCED_PLACED, b->count, b->first_offset, timestamp};
    if (distinct) {
        batch_assign_distinct(b->messages, b->count, b->first_offset, timestamp, relative, position,
                              message_ids_source(&p->ids), entries);
        return timestamp + b->count - 1;
    }
    batch_assign(b->messages, b->length, b->count, b->first_offset, timestamp, relative, position,
                 message_ids_source(&p->ids), entries);
    return timestamp;
}

/* Assigns as many of the batches as go into one write to the active segment; their index entries go behind those of the
 * cache. 0 or a status. */
static uint32_t gather(partition *p, const segment *s, append_batch *batches, size_t count, uint64_t now_us,
                       struct iovec *parts, group *g) {
    uint64_t timestamp = now_us > history_last_timestamp(&p->history) ? now_us : history_last_timestamp(&p->history);
    *g = (group){.first_timestamp = timestamp, .last_timestamp = timestamp};
    while (g->batches < count && g->batches < IOV_MAX && !g->seals) {
        append_batch *b = &batches[g->batches];
        uint64_t position = s->log_bytes + g->bytes;
        if (position + b->length > UINT32_MAX) { /* index positions have 32 bits: this one goes into the next segment */
            if (g->batches > 0 || s->count == 0) break;
            roll_wanted(&p->roll);
            return 0;
        }
        index_entry *entries = index_cache_reserve(history_index(&p->history), b->count, INDEX_CACHE_MAX);
        if (entries == NULL) {
            if (g->batches > 0) break;
            return partition_refused(p, errno);
        }
        b->first_offset = history_end(&p->history) + g->records;
        uint32_t relative = (uint32_t)(s->count + g->records);
        if (__builtin_expect(b->by.asks == 0, true)) {
            batch_assign(b->messages, b->length, b->count, b->first_offset, timestamp, relative, (uint32_t)position,
                         message_ids_source(&p->ids), entries);
        } else {
            uint64_t last = g->batches == 0 ? history_last_timestamp(&p->history) : timestamp;
            timestamp = assign_asked(p, b, timestamp, last, relative, (uint32_t)position, entries);
            if (g->batches == 0) g->first_timestamp = b->made.timestamp;
            g->last_timestamp = timestamp;
        }
        history_index(&p->history)->count += b->count;
        g->seals = roll_seals(&p->roll, position); /* full before this batch */
        parts[g->batches++] = (struct iovec){.iov_base = b->messages, .iov_len = b->length};
        g->bytes += b->length;
        g->records += b->count;
    }
    return g->batches > 0 ? 0 : (uint32_t)STATUS_CANNOT_WRITE_TO_FILE;
}

/* The group is in the kernel or in the journal: the level `written` or `memory` is reached. */
static inline __attribute__((always_inline)) void commit(partition *p, segment *s, const group *g) {
    bool first = s->count == 0;
    history_grew(&p->history, s, g->bytes, g->records, g->first_timestamp, g->last_timestamp);
    if (first) partition_plan_roll(p);
    log_start_grew(&p->start, g->bytes, g->records);
    space_overwritten(&p->space, partition_file_end(p, s));
    STATS_STORE(p, size_bytes, log_start_served_bytes(&p->start));
    STATS_STORE(p, messages_count, log_start_served_messages(&p->start));
    if (p->level == LEVEL_DURABLE)
        STATS_STORE(p, unseen, partition_unseen(p)); /* first: readers of the page never see more than polls do */
    STATS_STORE(p, next_offset, history_end(&p->history));
    if (history_waiting(&p->history) >= INDEX_FLUSH_ENTRIES)
        partition_index_flush(p); /* what cannot be written waits; an EIO poisons the next appends */
    if (g->seals) {
        roll_wanted(&p->roll);
        partition_roll(p, g->last_timestamp); /* tried again by the next append */
    }
}

static void make_space(partition *p, const segment *s, int fd, uint64_t bytes) {
    space_make(&p->space, p->files.disk, fd, s->log_bytes, bytes, roll_size(&p->roll));
}

/* Writes one group from the front of the batches. Returns how many were acknowledged, or 0 and the status. */
static size_t append_group(partition *p, append_batch *batches, size_t count, uint64_t now_us, uint32_t *status) {
    struct iovec parts[1 + IOV_MAX]; /* the first one for the journal */
    group g;
    int fd = -1;
    do { /* twice when the segment has no positions left for the batch */
        *status = make_ready(p, now_us, &fd);
        segment *s = history_active(&p->history);
        if (*status == 0) *status = gather(p, s, batches, count, now_us, parts + 1, &g);
        if (*status != 0) return 0;
        if (g.batches == 0) continue;
        if (space_is_wanted(&p->space, g.bytes)) make_space(p, s, fd, g.bytes);
        *status = guard_has(&p->producers) ? partition_note_group(p, s, batches, g.batches, &fd) : 0;
        bool noted = *status == 0;
        bool taken = noted && p->level == LEVEL_MEMORY && !g.seals &&
                     journal_take(&p->journal, parts + 1, g.batches, g.bytes, g.records);
        if (noted && !taken) *status = partition_write_behind(p, s, fd, parts, g.batches);
        if (*status == 0) {
            if (guard_has(&p->producers)) guard_keep(&p->producers, batches, g.batches);
            commit(p, s, &g);
            return g.batches;
        }
        if (noted && guard_has(&p->producers)) partition_unnote_producers(p, batches, g.batches);
        history_index(&p->history)->count -= (uint32_t)g.records;
        return 0;
    } while (roll_is_wanted(&p->roll));
    *status = STATUS_CANNOT_WRITE_TO_FILE;
    return 0;
}

/* ---- a large batch, in parts ---- */

void partition_parts_end(partition *p) {
    large_append_free(p->large);
    p->large = NULL;
}

static log_tail tail_of(const partition *p, const segment *active) {
    return (log_tail){active->start_offset, active->log_bytes, history_end(&p->history), space_cuts(&p->space)};
}

static bool parts_stand(const partition *p, const append_batch *b) {
    if (p->closed || p->state != 0 || !journal_is_empty(&p->journal) || roll_is_wanted(&p->roll)) return false;
    log_tail tail = tail_of(p, history_active(&p->history));
    return large_append_stands(p->large, b, tail, history_last_timestamp(&p->history));
}

/* False: it goes in one write, or it will be told there why it cannot be written. */
static bool parts_begin(partition *p, const append_batch *b, uint64_t now_us) {
    int fd;
    partition_parts_end(p);
    if (make_ready(p, now_us, &fd) != 0 || partition_save(p) != 0) return false;
    const segment *s = history_active(&p->history);
    if (s->log_bytes + b->length > UINT32_MAX) { /* as in `gather` */
        if (s->count == 0) return false;
        roll_wanted(&p->roll);
        if (make_ready(p, now_us, &fd) != 0) return false;
        s = history_active(&p->history);
    }
    bool distinct = b->by.asks & APPEND_DISTINCT;
    uint64_t last = history_last_timestamp(&p->history);
    p->large = large_append_begin(b, tail_of(p, s), now_us > last ? now_us : last + distinct);
    return p->large != NULL;
}

/* Once more from the front, when a roll or a change of the level has cut it. Only once: it must come to an end. */
static bool parts_begin_anew(partition *p, const append_batch *b, uint64_t now_us) {
    if (!large_append_may_begin_anew(p->large, b) || !parts_begin(p, b, now_us)) return false;
    large_append_is_anew(p->large);
    return true;
}

bool partition_append_part(partition *p, append_batch *b, uint64_t now_us) {
    if (p->large == NULL ? !parts_begin(p, b, now_us) : !parts_stand(p, b) && !parts_begin_anew(p, b, now_us))
        return false;
    large_append *a = p->large;
    segment *s = history_active(&p->history);
    int fd = history_fd(&p->history, s, SEGMENT_LOG);
    if (fd < 0) {
        large_append_failed(a, partition_refused(p, errno));
        return false;
    }
    uint64_t at, written;
    large_append_assign(a, b, message_ids_source(&p->ids), s->count);
    struct iovec part = large_append_part(a, b, &at);
    uint64_t end = at + part.iov_len;
    if (!space_allocates_ahead(&p->space)) make_space(p, s, fd, end - s->log_bytes);
    s->log_dirty = true;
    partition_dirty_active(p);
    if (file_write(p->files.disk, fd, &part, 1, at, &written) != 0) {
        large_append_failed(a, partition_undo_write(p, s, fd, at + written));
        return false;
    }
    space_left_behind(&p->space, end);
    large_append_wrote(a, end - at);
    return large_append_written(a) < b->length;
}

/* 1: the batch is written and becomes visible. 0: not, with a status when it is refused. */
static size_t parts_finish(partition *p, append_batch *b, uint32_t *status) {
    const large_append *a = p->large;
    size_t done = 0;
    if (large_append_is_of(a, b)) *status = large_append_status(a);
    if (parts_stand(p, b) && large_append_written(a) == b->length) {
        index_entry *entries = index_cache_reserve(history_index(&p->history), b->count, INDEX_CACHE_MAX);
        segment *s = history_active(&p->history);
        if (entries == NULL) {
            *status = partition_refused(p, errno);
        } else {
            uint64_t last = large_append_end(a, b, entries);
            history_index(&p->history)->count += b->count;
            bool seals = roll_seals(&p->roll, s->log_bytes);
            commit(p, s, &(group){1, b->length, b->count, large_append_timestamp(a), last, seals});
            done = 1;
        }
    }
    partition_parts_end(p);
    return done;
}

void partition_append(partition *p, append_batch *batches, size_t count, uint64_t now_us) {
    size_t done = 0;
    uint32_t status = 0;
    if (p->large != NULL) done = parts_finish(p, batches, &status);
    while (done < count && status == 0) {
        size_t n = append_group(p, batches + done, count - done, now_us, &status);
        for (size_t i = 0; i < n; i++) batches[done + i].status = 0;
        done += n;
    }
    for (; done < count; done++) batches[done].status = status;
    ASSERT(partition_visible_end(p) <= history_end(&p->history) &&
           progress_durable_end(&p->sync) <= history_end(&p->history));
}
