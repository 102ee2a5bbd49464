/* Memory for the windows of polls: a budget for all of them, a part beside it for small answers. */
#include "core/read_queue.h"

#define OUTPUT_POOL_PART 2u            /* windows and answers of Python take at most one part of the pool in so many */
#define SMALL_OUTPUT_POOL_PART 8u      /* beside it, for windows below BULK_BYTES_MIN */
#define POLL_WINDOW_SMALL_BYTES 32768u /* when half of that is in use */

void reads_free_window(read_job *job) {
    if (job->block == NULL) return;
    job->e->output_bytes -= job->block_size;
    pool_free(job->e->pool, job->block);
    job->block = NULL;
    job->block_size = 0;
}

static uint64_t output_budget(const engine *e) { return pool_capacity(e->pool) / OUTPUT_POOL_PART; }

/* All windows together leave the rest of the pool to what comes in; one alone may be as large as it has to. Small
 * answers have a part of their own, so that readers of large ones who do not read cannot stop them. */
bool reads_ensure_room(read_job *job) {
    engine *e = job->e;
    size_t wanted = job->head_bytes + job->window.length;
    if (job->block_size >= wanted) return true;
    reads_free_window(job);
    uint64_t budget = output_budget(e) + (job->is_bulk ? 0 : pool_capacity(e->pool) / SMALL_OUTPUT_POOL_PART);
    if (e->output_bytes == 0 || e->output_bytes + wanted <= budget) job->block = engine_allocate(e, wanted, false);
    if (job->block == NULL) {
        e->output_refused = true;
        return false;
    }
    job->block_size = pool_block_size(e->pool, job->block);
    e->output_bytes += job->block_size;
    return true;
}

/* The first of those without a block could have one. */
bool reads_next_fits(const engine *e) {
    const read_job *job = e->bulk_reads[READS_WITHOUT_BLOCK].first;
    if (job == NULL || e->now_us < e->bulk_reads_again_us) return false;
    size_t wanted = job->window_known ? job->head_bytes + job->window.length : BULK_BYTES_MIN;
    return e->output_bytes == 0 || e->output_bytes + wanted <= output_budget(e);
}

void reads_look_at_output(engine *e) {
    bool waits = e->bulk_reads[READS_WITHOUT_BLOCK].first != NULL && !reads_next_fits(e);
    e->output_contended = e->output_refused || waits || e->output_bytes > output_budget(e);
    e->output_refused = false;
    links_mark_output_contended(&e->links, e->output_contended);
}

uint32_t reads_window_bytes(const engine *e) {
    return e->output_bytes < output_budget(e) / 2 ? POLL_WINDOW_BYTES : POLL_WINDOW_SMALL_BYTES;
}
