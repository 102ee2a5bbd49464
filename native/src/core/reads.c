/* Poll jobs: the windows of one answer are read, verified and sent one after the other.
 *
 * A window is at most POLL_WINDOW_BYTES (or one larger record), so a slow reader holds a window and not a reply. Where
 * its records lie is the business of the segment's reader (log/segment_reader.h): what is in memory is copied at once,
 * what must come from the device is an operation, and what somebody has to bring here first is waited for. Every record
 * is verified before it is sent: the index led here, but it is no evidence. When a record fails, nobody here can tell
 * whether log or index is wrong: Python surveys the segment (EVENT_DOUBT), the poll waits and starts again, once
 * for a segment. When a part of the answer is out already, the connection closes instead. */
#include "core/reads.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/output.h"
#include "core/read_answer.h"
#include "core/read_queue.h"
#include "core/sync.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define POLL_WINDOW_SMALL_BYTES 32768u /* when the memory for output is half in use */
#define BULK_READS_AGAIN_US 5000       /* without memory */

static void next_window(read_job *job);
static void start_poll(read_job *job);

#define POLL_SURVEYS_MAX 8u /* for which one poll waits */

/* A survey has told all there is to know of this segment, or the poll has waited long enough. */
static bool is_settled(const read_job *job, uint64_t segment) {
    return job->surveys == POLL_SURVEYS_MAX || (job->surveys > 0 && job->doubtful == segment);
}

/* Log and index of a segment contradict each other, or cannot be read. `status` if that still holds after a survey. */
static void doubt(read_job *job, uint64_t segment, uint32_t status) {
    core *k = job->core;
    k->counters.damaged++;
    event *v = is_settled(job, segment) ? NULL : events_add(&k->events, EVENT_DOUBT, job->target->ns);
    bool settled = v == NULL; /* without memory for the event nobody would end the doubt */
    if (v != NULL) v->number = segment;
    if (!job->first_window) {
        read_break_off(job);
    } else if (settled) {
        read_answer_status(job, status);
    } else {
        partition_cursor_end(&job->cursor);
        memset(&job->cursor, 0, sizeof job->cursor);
        job->surveying = true;
        job->doubtful = segment;
    }
}

static void go_on(read_job *job) {
    job->fetching = false;
    job->pending.waits_for = WAITS_FOR_NOTHING;
    if (job->cursor.owner == NULL) start_poll(job);
    else if (!job->is_bulk) next_window(job);
    else { /* the first in line, while what was brought is still there */ job->window_known = false;
        reads_enter_bulk_first(job);
    }
}

static void fetched(segment_wait *w) { go_on((read_job *)(void *)((char *)w - offsetof(read_job, fetch))); }

/* The reader of the segment waits for somebody. */
static void fetch(read_job *job) {
    job->fetch = (segment_wait){.resume = fetched};
    job->pending.waits_for = WAITS_FOR_RECORDS;
    job->fetching = partition_fetch(job->target->p, &job->fetch);
    if (!job->fetching) read_fail(job, STATUS_CANNOT_READ_FILE);
}

static void start_poll(read_job *job) {
    const partition_request *what = &job->what;
    if (what->own_name && !partition_offset_is_of(job->target->p, what->consumer_id, what->by_user.name)) {
        read_answer_status(job, STATUS_CONSUMER_NAME_TAKEN);
        return;
    }
    partition_asks(job->target->p, &job->fetch);
    uint32_t status = partition_poll_within(job->target->p, job->what.strategy, job->what.value, job->what.count,
                                            job->what.consumer_kind, job->what.consumer_id, job->what.bytes_max,
                                            &job->cursor);
    partition_asks(job->target->p, NULL);
    if (status == 0) next_window(job);
    else if (status == PARTITION_WAITS) fetch(job);
    else if (status == STATUS_CANNOT_READ_FILE) doubt(job, partition_suspect(job->target->p), status);
    else read_answer_status(job, status);
}

void reads_surveyed(owned *o, uint64_t segment) {
    for (read_job *job = o->core->reads.jobs; job != NULL;) {
        bool waits = job->surveying && job->target == o && (segment == UINT64_MAX || job->doubtful == segment);
        if (waits) {
            job->surveying = false;
            job->surveys++;
            start_poll(job);
        }
        job = waits ? o->core->reads.jobs : job->next; /* an answer may end other jobs */
    }
}

void reads_closed(owned *o) {
    for (read_job *job = o->core->reads.jobs; job != NULL;) {
        bool waits = job->fetching && job->target == o;
        if (waits) {
            segment_wait_cancel(&job->fetch);
            go_on(job);
        }
        job = waits ? o->core->reads.jobs : job->next;
    }
    reads_surveyed(o, UINT64_MAX);
}

/* The record behind the first `good` ones, at `offset` or later, failed its check. After a survey those are sent. */
static void damaged(read_job *job, uint32_t good, uint64_t offset) {
    uint64_t first = job->window.first_offset, segment = partition_segment_of(job->target->p, offset);
    if (is_settled(job, segment) && job->first_window && good > 0) {
        partition_cursor_end(&job->cursor);
        memset(&job->cursor, 0, sizeof job->cursor);
        job->what.strategy = POLL_OFFSET;
        job->what.value = first;
        job->what.count = good;
        start_poll(job);
        return;
    }
    doubt(job, segment, STATUS_INVALID_MESSAGE_CHECKSUM);
}

/* An answer that is one window ends with it, whatever else the poll has found. */
static void end_with_window(read_job *job) {
    poll_cursor *c = &job->cursor;
    if (!job->to.one_window || c->remaining == 0) return;
    c->remaining = 0;
    c->total_count = job->window.count;
    c->total_bytes = job->window.length;
    job->cut = true;
}

static void window_read(read_job *job) {
    partition_cursor_release(&job->cursor);
    const poll_window *w = &job->window;
    record_good found;
    uint32_t good = record_verify(job->block + job->head_bytes, job->have, w->first_offset, w->end_offset, w->count,
                                  &found);
    if (good < w->count) damaged(job, good, found.next_offset);
    else {
        if (job->cut) job->cursor.last_offset = found.next_offset - 1;
        read_send_window(job);
    }
}

static void read_more(read_job *job) {
    core *k = job->core;
    const segment_records *records = job->window.records;
    size_t left = job->window.length - job->have, slice = left < BULK_SLICE_BYTES ? left : BULK_SLICE_BYTES;
    uint8_t *window = job->block + job->head_bytes;
    size_t taken = segment_records_take(records, &k->io, window + job->have, job->have, slice);
    job->have += taken;
    if (taken == slice && slice < left) {
        reads_enter_bulk(job);
        return;
    }
    if (taken == slice) {
        k->counters.reads_cached++;
        window_read(job);
        return;
    }
    k->counters.reads_ring++;
    segment_records_read(records, &k->io, &job->operation, window + job->have, job->have, (uint32_t)(left - taken));
    job->reading = true;
}

void reads_on_read(read_job *job, int result) {
    job->reading = false;
    if (job->abandoned) {
        read_answer_status(job, 0);
        return;
    }
    if (result > 0) job->have += (size_t)result;
    if (result > 0 && job->have == job->window.length) window_read(job);
    else if (result > 0 || result == -EINTR || result == -EAGAIN) read_more(job);
    else if (result == 0) damaged(job, 0, job->window.first_offset); /* the file is shorter than its index says */
    else read_fail(job, STATUS_CANNOT_READ_FILE);
}

static bool retry_window(waiter *w);

static bool ensure_room(read_job *job) {
    size_t wanted = job->head_bytes + job->window.length;
    if (job->block_size >= wanted) return true;
    read_free_window(job);
    job->block = output_allocate(job->core, wanted, !job->is_bulk);
    if (job->block == NULL) return false;
    job->block_size = pool_block_size(job->core->pool, job->block);
    return true;
}

static void fill_window(read_job *job) {
    if (job->have == 0 && job->head_bytes > 0) {
        poll_summary whole = read_summary(job);
        job->to.calls->put_head(&job->to, job->block, &whole);
    }
    if (job->window.length == 0) read_send_window(job);
    else read_more(job);
}

static bool retry_window(waiter *w) {
    read_job *job = (read_job *)w;
    if (!ensure_room(job)) return false;
    job->pending.waits_for = WAITS_FOR_NOTHING;
    fill_window(job);
    return true;
}

static void begin_window(read_job *job) {
    if (ensure_room(job)) {
        fill_window(job);
    } else if (job->is_bulk) { /* the first in line: no smaller one passes it for ever */
        reads_enter_bulk_first(job);
        job->core->reads.bulk_again_us = job->core->now_us + BULK_READS_AGAIN_US;
    } else {
        job->pending.waits_for = WAITS_FOR_MEMORY;
        core_wait(job->core, &job->wait, retry_window);
    }
}

static void take_window(read_job *job) {
    uint32_t status = 0, plenty = job->to.one_window ? POLL_ONE_WINDOW_BYTES : POLL_WINDOW_BYTES;
    uint32_t bytes_max = output_is_plenty(job->core) ? plenty : POLL_WINDOW_SMALL_BYTES;
    partition *p = job->cursor.owner;
    partition_asks(p, &job->fetch);
    bool any = partition_cursor_next(&job->cursor, bytes_max - job->to.head_bytes, &job->window, &status);
    partition_asks(p, NULL);
    ASSERT(any || status != 0 || job->first_window); /* the job ends with the window after which nothing remains */
    job->window_known = true;
    if (any) end_with_window(job);
    bool damaged = status == STATUS_CANNOT_READ_FILE || status == STATUS_INVALID_MESSAGE_CHECKSUM;
    if (status == PARTITION_WAITS) fetch(job);
    else if (damaged) doubt(job, partition_suspect(job->target->p), status);
    else if (status != 0) read_fail(job, status);
    else begin_window(job);
}

static void next_window(read_job *job) {
    job->head_bytes = job->first_window ? job->to.head_bytes : 0;
    job->have = 0;
    job->window_known = false;
    job->window = (poll_window){0};
    job->is_bulk = job->cursor.total_bytes - job->cursor.sent_bytes > BULK_BYTES_MIN;
    if (job->is_bulk) reads_enter_bulk(job);
    else take_window(job);
}

static void run_first(read_line *line) {
    read_job *job = line->first;
    reads_leave_bulk(job);
    if (job->window_known) begin_window(job);
    else take_window(job);
}

bool reads_may_go_on(const core *k) { return k->reads.bulk[READS_WITH_BLOCK].first != NULL || reads_next_fits(k); }

void reads_run_bulk(core *k, int64_t until_us) {
    read_line *with = &k->reads.bulk[READS_WITH_BLOCK], *without = &k->reads.bulk[READS_WITHOUT_BLOCK];
    const read_job *last_with = with->last, *last_without = without->last;
    while (last_with != NULL || last_without != NULL) { /* in turns; who enters meanwhile is for the next call */
        if (with->first == NULL) last_with = NULL;
        if (last_with != NULL) {
            if (with->first == last_with) last_with = NULL;
            run_first(with);
        }
        if (!reads_next_fits(k)) last_without = NULL;
        if (last_without != NULL) {
            if (without->first == last_without) last_without = NULL;
            run_first(without);
        }
        if (clock_monotonic_us() > until_us) return;
    }
}

void reads_look_at_output(core *k) {
    output_look(k, k->reads.bulk[READS_WITHOUT_BLOCK].first != NULL && !reads_next_fits(k));
}

static read_job *job_of(pending *p) { return (read_job *)(void *)((char *)p - offsetof(read_job, pending)); }

static void next(pending *p) { next_window(job_of(p)); }

static void cancel(pending *p) {
    read_job *job = job_of(p);
    job->abandoned = true;
    if (job->held != NULL) sync_leave(job->held);
    job->held = NULL;
    if (!job->reading) read_answer_status(job, 0);
}

void reads_start(core *k, owned *target, const partition_request *what, const caller *to) {
    static const pending_calls calls = {.cancel = cancel, .next = next};
    read_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        caller_status(to, STATUS_CANNOT_READ_FILE);
        return;
    }
    job->pending = (pending){.calls = &calls, .memory_shard = k->options.shard};
    job->core = k;
    job->operation = operation_of(OPERATION_READ, job);
    job->target = target;
    target->references++;
    job->to = *to;
    job->what = *what;
    job->first_window = true;
    job->next = k->reads.jobs;
    if (job->next != NULL) job->next->previous = job;
    k->reads.jobs = job;
    caller_parked(to, &job->pending);
    if (fences_pass(&target->fences, what->consumer_id, what->assignment)) start_poll(job);
    else read_answer_status(job, STATUS_NOT_RESOLVED_CONSUMER);
}

void reads_close(core *k) {
    while (k->reads.jobs != NULL) {
        read_job *job = k->reads.jobs;
        k->reads.jobs = job->next;
        if (job->fetching) segment_wait_cancel(&job->fetch);
        partition_cursor_end(&job->cursor);
        owned_release(job->target);
        free(job);
    }
}
