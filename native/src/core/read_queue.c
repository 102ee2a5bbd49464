#include "core/read_queue.h"

/* Those with a block go on with it; those without one wait for memory in a line of their own. */
static read_line *line_of(const read_job *job) {
    return &job->e->bulk_reads[job->block != NULL ? READS_WITH_BLOCK : READS_WITHOUT_BLOCK];
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
    if (job->previous_bulk != NULL) job->previous_bulk->next_bulk = job->next_bulk;
    else line->first = job->next_bulk;
    if (job->next_bulk != NULL) job->next_bulk->previous_bulk = job->previous_bulk;
    else line->last = job->previous_bulk;
}

/* ---- jobs for other shards by their handle ---- */

static read_job **place_of(engine *e, uint64_t handle) {
    read_job **place = &e->jobs_by_handle[handle % JOB_BUCKETS];
    while (*place != NULL && (*place)->handle != handle) place = &(*place)->next_in_bucket;
    return place;
}

read_job *reads_by_handle(engine *e, uint64_t handle) { return *place_of(e, handle); }

void reads_enter_handle(read_job *job) {
    engine *e = job->e;
    job->handle = ++e->next_handle;
    job->next_in_bucket = e->jobs_by_handle[job->handle % JOB_BUCKETS];
    e->jobs_by_handle[job->handle % JOB_BUCKETS] = job;
}

void reads_leave_handle(read_job *job) {
    if (job->handle != 0) *place_of(job->e, job->handle) = job->next_in_bucket;
}
