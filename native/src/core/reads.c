/* Poll jobs: the windows of one answer are read, verified and sent one after the other.
 *
 * A window is at most POLL_WINDOW_BYTES (or one larger record), so a slow reader holds a window and not a reply. Cached
 * pages are read at once (RWF_NOWAIT); only what must come from the device is an operation. Every record is
 * verified before it is sent: the index led here, but it is no evidence. When a record fails, nobody here can tell
 * whether log or index is wrong: Python surveys the segment (EVENT_DOUBT), the poll waits and starts again, once
 * for a segment. When a part of the answer is out already, the connection closes instead. */
#include "engine/engine.h"

#include "core/read_queue.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define BULK_READS_AGAIN_US 5000 /* without memory */

static void job_free(read_job *job) {
    engine *e = job->e;
    reads_leave_bulk(job);
    reads_leave_handle(job);
    if (job->wait.queued) engine_unwait(e, &job->wait);
    reads_free_window(job);
    partition_cursor_end(&job->cursor);
    owned_release(job->target);
    if (job->to.c != NULL) {
        job->to.c->job = NULL;
        if (job->to.c->closing) conn_ready(job->to.c);
    }
    if (job->next != NULL) job->next->previous = job->previous;
    if (job->previous != NULL) job->previous->next = job->next;
    else e->jobs = job->next;
    free(job);
}

static void put_poll_head(read_job *job, uint8_t *at) {
    uint32_t length = (uint32_t)(16 + job->cursor.total_bytes), count = (uint32_t)job->cursor.total_count;
    uint32_t partition = (uint32_t)(job->target->ns & 0xFFFFF);
    memset(at, 0, 4);
    memcpy(at + 4, &length, 4);
    memcpy(at + 8, &partition, 4);
    memcpy(at + 12, &job->cursor.current_offset, 8);
    memcpy(at + 20, &count, 4);
}

static void answer_status(read_job *job, uint32_t status) {
    engine *e = job->e;
    requester to = job->to;
    if (to.c != NULL) to.c->job = NULL;
    job->to.c = NULL;
    bool abandoned = job->abandoned;
    job_free(job);
    if (abandoned) {
        if (to.c != NULL) conn_ready(to.c);
        return;
    }
    if (to.c != NULL) execute_answer(to.c, status);
    else forward_answer_status(e, &to, status, 0);
}

/* The stored offset moves before the last bytes of the answer leave (docs/protocol/messages.md#auto-commit). */
static uint32_t commit_offset(read_job *job) {
    sync_mark_dirty(job->target);
    return partition_offset_store(job->target->p, job->consumer_kind, job->consumer_id, job->cursor.last_offset);
}

/* A part of the answer may be out already: the only honest end is to close. */
static void break_off(read_job *job) {
    if (job->to.c != NULL) {
        conn_close(job->to.c); /* abandons the job */
    } else {
        forward_answer_status(job->e, &job->to, 0, LINK_FLAG_BROKEN);
        job_free(job);
    }
}

static void fail(read_job *job, uint32_t status) {
    if (job->first_window) answer_status(job, status);
    else break_off(job);
}

/* Another member of the group has had the partition since the poll began. */
static bool is_lost(const read_job *job) {
    return job->auto_commit && !fences_pass(&job->target->fences, job->consumer_id, job->assignment);
}

/* The window leaves; with the last one everything that the answer promises has been done. */
static void release_window(read_job *job) {
    size_t bytes = job->head_bytes + job->have;
    bool more = job->cursor.remaining > 0;
    job->first_window = false;
    conn *c = job->to.c;
    if (c == NULL) {
        forward_answer_window(job, bytes, more);
    } else if (more) {
        conn_reply_bytes(c, job->block, bytes);
    } else { /* the connection keeps the last window; the job is done */
        execute_polled(c, job->cursor.total_count, job->cursor.last_offset);
        c->out_block = job->block;
        job->block = NULL;
        job_free(job);
        conn_reply_bytes(c, c->out_block, bytes);
    }
}

static void send_window(read_job *job) {
    bool last = job->cursor.remaining == 0, lost = last && is_lost(job);
    if (lost && job->first_window) {
        answer_status(job, STATUS_NOT_RESOLVED_CONSUMER);
        return;
    }
    job->e->counters.messages_out += job->window.count;
    bool commits = last && !lost && job->auto_commit && job->cursor.total_count > 0;
    uint32_t status = commits ? commit_offset(job) : 0;
    if (status != 0) {
        fail(job, status);
        return;
    }
    job->held = commits; /* before: the answer may come at once */
    if (commits && sync_hold_poll(job->target, job)) return;
    job->held = false;
    release_window(job);
}

void reads_offset_stored(read_job *job, uint32_t status) {
    job->held = false;
    if (job->abandoned) job_free(job);
    else if (status != 0) fail(job, status);
    else release_window(job);
}

static void next_window(read_job *job);

#define POLL_SURVEYS_MAX 8u /* for which one poll waits */

/* A survey has told all there is to know of this segment, or the poll has waited long enough. */
static bool is_settled(const read_job *job, uint64_t segment) {
    return job->surveys == POLL_SURVEYS_MAX || (job->surveys > 0 && job->doubtful == segment);
}

/* Log and index of a segment contradict each other, or cannot be read. `status` if that still holds after a survey. */
static void doubt(read_job *job, uint64_t segment, uint32_t status) {
    engine *e = job->e;
    e->counters.damaged++;
    bool settled = is_settled(job, segment);
    if (!settled) engine_event(e, EVENT_DOUBT, job->target->ns)->number = segment;
    if (!job->first_window) {
        break_off(job);
    } else if (settled) {
        answer_status(job, status);
    } else {
        partition_cursor_end(&job->cursor);
        memset(&job->cursor, 0, sizeof job->cursor);
        job->held = job->surveying = true;
        job->doubtful = segment;
    }
}

static void start_poll(read_job *job) {
    uint32_t status = partition_poll(job->target->p, job->strategy, job->value, job->count, job->consumer_kind,
                                     job->consumer_id, &job->cursor);
    if (status == 0) next_window(job);
    else if (status == STATUS_CANNOT_READ) doubt(job, partition_suspect(job->target->p), status);
    else answer_status(job, status);
}

void reads_surveyed(owned *o, uint64_t segment) {
    bool again = true;
    while (again) { /* an answer may end other jobs: the list is walked from its beginning */
        again = false;
        for (read_job *job = o->e->jobs; job != NULL && !again; job = job->next) {
            if (!job->surveying || job->target != o || (segment != UINT64_MAX && job->doubtful != segment)) continue;
            job->held = job->surveying = false;
            job->surveys++;
            again = true;
            start_poll(job);
        }
    }
}

/* The record behind the first `good` ones, at `offset` or later, failed its check. After a survey those are sent. */
static void damaged(read_job *job, uint32_t good, uint64_t offset) {
    uint64_t first = job->window.first_offset, segment = partition_segment_of(job->target->p, offset);
    if (is_settled(job, segment) && job->first_window && good > 0) {
        partition_cursor_end(&job->cursor);
        memset(&job->cursor, 0, sizeof job->cursor);
        job->strategy = POLL_OFFSET;
        job->value = first;
        job->count = good;
        start_poll(job);
        return;
    }
    doubt(job, segment, STATUS_BAD_CHECKSUM);
}

static void window_read(read_job *job) {
    const poll_window *w = &job->window;
    record_good found;
    uint32_t good = record_verify(job->block + job->head_bytes, job->have, w->first_offset, w->end_offset, w->count,
                                  &found);
    if (good < w->count) damaged(job, good, found.next_offset);
    else send_window(job);
}

static void read_more(read_job *job) {
    engine *e = job->e;
    size_t left = job->window.length - job->have, slice = left < BULK_SLICE_BYTES ? left : BULK_SLICE_BYTES;
    struct iovec part = {job->block + job->head_bytes + job->have, slice};
    while (part.iov_len > 0) {
        off_t position = (off_t)(job->window.position + job->have);
        ssize_t got = preadv2(job->window.fd, &part, 1, position, RWF_NOWAIT);
        if (got < 0 && errno == EOPNOTSUPP)
            got = preadv(job->window.fd, &part, 1, position); /* tmpfs: always in memory */
        if (got <= 0) break;
        job->have += (size_t)got;
        part.iov_base = (uint8_t *)part.iov_base + got;
        part.iov_len -= (size_t)got;
    }
    if (part.iov_len == 0 && slice < left) {
        reads_enter_bulk(job);
        return;
    }
    if (part.iov_len == 0) {
        e->counters.reads_cached++;
        window_read(job);
        return;
    }
    e->counters.reads_ring++;
    io_read(&e->io, &job->operation, job->window.fd, part.iov_base, (uint32_t)(job->window.length - job->have),
            job->window.position + job->have);
    job->reading = true;
}

void reads_on_read(read_job *job, int result) {
    job->reading = false;
    if (job->abandoned) {
        job_free(job);
        return;
    }
    if (result > 0) job->have += (size_t)result;
    if (result > 0 && job->have == job->window.length) window_read(job);
    else if (result > 0 || result == -EINTR || result == -EAGAIN) read_more(job);
    else if (result == 0) damaged(job, 0, job->window.first_offset); /* the file is shorter than its index says */
    else fail(job, STATUS_CANNOT_READ);
}

static bool retry_window(waiter *w);

static void fill_window(read_job *job);

bool reads_may_go_on(const engine *e) { return e->bulk_reads[READS_WITH_BLOCK].first != NULL || reads_next_fits(e); }

static void fill_window(read_job *job) {
    if (job->have == 0 && job->head_bytes > 0) put_poll_head(job, job->block);
    if (job->window.length == 0) send_window(job);
    else read_more(job);
}

static bool retry_window(waiter *w) {
    read_job *job = (read_job *)w;
    if (!reads_ensure_room(job)) return false;
    fill_window(job);
    return true;
}

static void begin_window(read_job *job) {
    if (reads_ensure_room(job)) {
        fill_window(job);
    } else if (job->is_bulk) { /* the first in line: no smaller one passes it for ever */
        reads_enter_bulk_first(job);
        job->e->bulk_reads_again_us = job->e->now_us + BULK_READS_AGAIN_US;
    } else {
        engine_wait(job->e, &job->wait, retry_window);
    }
}

static void take_window(read_job *job) {
    uint32_t status = 0;
    bool any = partition_cursor_next(&job->cursor, reads_window_bytes(job->e) - POLL_HEAD_BYTES, &job->window, &status);
    job->window_known = true;
    if (status == STATUS_CANNOT_READ) {
        doubt(job, partition_suspect(job->target->p), status);
    } else if (status != 0) {
        fail(job, status);
    } else if (any || job->first_window) {
        begin_window(job);
    } else { /* a remote job whose last window was sent */
        assert(job->to.c == NULL);
        job_free(job);
    }
}

static void next_window(read_job *job) {
    job->head_bytes = job->first_window ? POLL_HEAD_BYTES : 0;
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

void reads_run_bulk(engine *e, int64_t until_us) {
    read_line *with = &e->bulk_reads[READS_WITH_BLOCK], *without = &e->bulk_reads[READS_WITHOUT_BLOCK];
    const read_job *last_with = with->last, *last_without = without->last;
    while (last_with != NULL || last_without != NULL) { /* in turns; who enters meanwhile is for the next call */
        if (with->first == NULL) last_with = NULL;
        if (last_with != NULL) {
            if (with->first == last_with) last_with = NULL;
            run_first(with);
        }
        if (!reads_next_fits(e)) last_without = NULL;
        if (last_without != NULL) {
            if (without->first == last_without) last_without = NULL;
            run_first(without);
        }
        if (clock_monotonic_us() > until_us) return;
    }
}

void reads_next_window(read_job *job) { next_window(job); }

void reads_start(engine *e, owned *target, const requester *to, const descriptor *d) {
    read_job *job = calloc(1, sizeof *job);
    if (job == NULL) abort();
    job->e = e;
    job->operation = operation_of(OPERATION_READ, job);
    job->target = target;
    target->references++;
    job->to = *to;
    job->strategy = d->strategy;
    job->value = d->value;
    job->count = d->count;
    job->consumer_kind = d->consumer_kind;
    job->consumer_id = d->consumer_id;
    job->assignment = d->assignment;
    job->auto_commit = (d->flags & LINK_FLAG_AUTO_COMMIT) != 0;
    job->first_window = true;
    if (to->c == NULL) reads_enter_handle(job);
    job->next = e->jobs;
    if (job->next != NULL) job->next->previous = job;
    e->jobs = job;
    if (to->c != NULL) to->c->job = job;
    if (fences_pass(&target->fences, d->consumer_id, d->assignment)) start_poll(job);
    else answer_status(job, STATUS_NOT_RESOLVED_CONSUMER);
}

void reads_abandon(read_job *job) {
    job->abandoned = true;
    if (!job->reading && (!job->held || job->surveying)) job_free(job);
}
