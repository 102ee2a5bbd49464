/* How a poll job gives out its windows and how it ends. */
#include "core/read_answer.h"

#include "base/status.h"
#include "core/output.h"
#include "core/read_queue.h"
#include "core/sync.h"

#include <stdlib.h>

void read_free_window(read_job *job) {
    output_free(job->core, job->block);
    job->block = NULL;
    job->block_size = 0;
}

/* The caller knows the job no more; what it hears comes after that. */
static void job_free(read_job *job) {
    core *k = job->core;
    reads_leave_bulk(job);
    if (job->wait.queued) waiters_remove(&k->waiters, &job->wait);
    if (job->fetching) segment_wait_cancel(&job->fetch);
    caller_parked(&job->to, NULL);
    read_free_window(job);
    partition_cursor_end(&job->cursor);
    owned_release(job->target);
    if (job->next != NULL) job->next->previous = job->previous;
    if (job->previous != NULL) job->previous->next = job->next;
    else k->reads.jobs = job->next;
    free(job);
}

poll_summary read_summary(const read_job *job) {
    const poll_cursor *c = &job->cursor;
    return (poll_summary){.partition = (uint32_t)(job->target->ns & 0xFFFFF),
                          .is_sparse = partition_is_sparse(job->target->p),
                          .current_offset = c->current_offset,
                          .total_bytes = c->total_bytes,
                          .total_count = c->total_count,
                          .last_offset = c->last_offset,
                          .incarnation = job->target->incarnation,
                          .first_offset = partition_first_offset(job->target->p)};
}

void read_answer_status(read_job *job, uint32_t status) {
    caller to = job->to;
    bool abandoned = job->abandoned;
    job_free(job);
    if (abandoned) caller_dropped(&to);
    else caller_status(&to, status);
}

/* The stored offset moves before the last bytes of the answer leave (docs/protocol/messages.md#auto-commit). */
static uint32_t commit_offset(read_job *job) {
    sync_mark_dirty(job->target);
    return partition_offset_store_by(job->target->p, job->what.consumer_kind, job->what.consumer_id,
                                     job->cursor.last_offset, &job->what.by_user);
}

void read_break_off(read_job *job) {
    caller to = job->to;
    job_free(job);
    caller_gone(&to);
}

void read_fail(read_job *job, uint32_t status) {
    if (job->first_window) read_answer_status(job, status);
    else read_break_off(job);
}

/* Another member of the group has had the partition since the poll began. */
static bool is_lost(const read_job *job) {
    return job->what.auto_commit && !fences_pass(&job->target->fences, job->what.consumer_id, job->what.assignment);
}

/* The window leaves; with the last one everything that the answer promises has been done, and the job with it. */
static void release_window(read_job *job) {
    answer_window w = {.bytes = job->block,
                       .length = job->head_bytes + job->have,
                       .last = job->cursor.remaining == 0,
                       .whole = read_summary(job)};
    caller to = job->to;
    job->first_window = false;
    if (w.last) {
        w.block = job->block;
        job->block = NULL;
        job_free(job);
    }
    caller_window(&to, &w);
}

static void offset_stored(void *context, uint32_t status) {
    read_job *job = context;
    job->held = NULL;
    job->pending.waits_for = WAITS_FOR_NOTHING;
    if (status != 0) read_fail(job, status);
    else release_window(job);
}

/* Found out before the first of several windows: after it only a close could say so, and the next poll would meet it
 * again. */
static uint32_t place_for_commit(const read_job *job) {
    if (!job->what.auto_commit) return 0;
    return partition_offset_place(job->target->p, job->what.consumer_kind, job->what.consumer_id,
                                  job->what.by_user.owner);
}

/* The window is the whole answer, whose head can be written now. */
static void convert(read_job *job) {
    job->have = job->to.calls->convert(&job->to, job->block + job->head_bytes, job->have);
    poll_summary whole = read_summary(job);
    whole.total_bytes = job->have;
    job->to.calls->put_head(&job->to, job->block, &whole);
}

void read_send_window(read_job *job) {
    bool last = job->cursor.remaining == 0, lost = last && is_lost(job);
    uint32_t refused = !last && job->first_window ? place_for_commit(job) : 0;
    if (refused != 0) {
        read_answer_status(job, refused);
        return;
    }
    if (lost && job->first_window) {
        read_answer_status(job, STATUS_NOT_RESOLVED_CONSUMER);
        return;
    }
    job->core->counters.messages_out += job->window.count;
    if (job->to.one_window && job->have > 0) convert(job);
    bool commits = last && !lost && job->what.auto_commit && job->cursor.total_count > 0;
    uint32_t status = commits ? commit_offset(job) : 0;
    if (status != 0) {
        read_fail(job, status);
        return;
    }
    job->pending.waits_for = WAITS_FOR_DEVICE; /* before: the answer may come at once */
    if (commits && sync_hold(job->target, job, offset_stored, &job->held)) return;
    job->pending.waits_for = WAITS_FOR_NOTHING;
    release_window(job);
}
