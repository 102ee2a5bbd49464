/* See read_queue.h. */
#include "core/read_queue.h"

#include "core/output.h"

static read_line *line_of(read_job *job) {
    job->pending.waits_for = WAITS_FOR_MEMORY;
    return &job->core->reads.bulk[job->block != NULL ? READS_WITH_BLOCK : READS_WITHOUT_BLOCK];
}

void reads_enter_bulk(read_job *job) {
    read_line *line = job->bulk = line_of(job);
    job->next_bulk = NULL;
    job->previous_bulk = line->last;
    if (line->last != NULL) line->last->next_bulk = job;
    else line->first = job;
    line->last = job;
}

void reads_enter_bulk_first(read_job *job) {
    read_line *line = job->bulk = line_of(job);
    job->previous_bulk = NULL;
    job->next_bulk = line->first;
    if (line->first != NULL) line->first->previous_bulk = job;
    else line->last = job;
    line->first = job;
}

void reads_leave_bulk(read_job *job) {
    read_line *line = job->bulk;
    if (line == NULL) return;
    job->bulk = NULL;
    job->pending.waits_for = WAITS_FOR_NOTHING;
    if (job->previous_bulk != NULL) job->previous_bulk->next_bulk = job->next_bulk;
    else line->first = job->next_bulk;
    if (job->next_bulk != NULL) job->next_bulk->previous_bulk = job->previous_bulk;
    else line->last = job->previous_bulk;
}

bool reads_next_fits(const core *k) {
    const read_job *job = k->reads.bulk[READS_WITHOUT_BLOCK].first;
    if (job == NULL || k->now_us < k->reads.bulk_again_us) return false;
    return output_fits(k, job->window_known ? job->head_bytes + job->window.length : BULK_BYTES_MIN);
}
