/* Poll jobs (reads.c). */
#ifndef SHARDD_READS_H
#define SHARDD_READS_H
#include "core/core.h"

#define POLL_WINDOW_BYTES (256u << 10)   /* read, verified and sent at a time */
#define POLL_ONE_WINDOW_BYTES (1u << 20) /* of an answer that is one window, or one larger record */

struct read_job {
    waiter wait; /* first */
    pending pending;
    operation operation;
    core *core;
    owned *target;
    partition_request what;
    caller to;
    poll_cursor cursor;
    poll_window window;
    segment_wait fetch; /* of what a segment does not have here */
    uint8_t *block;
    size_t block_size, head_bytes, have;
    bool first_window, reading, fetching, abandoned;
    bool cut;         /* the answer is one window, and more was found */
    held *held;       /* the stored offset waits for the device */
    bool surveying;   /* waits for a survey of the segment at `doubtful` */
    uint32_t surveys; /* for which it has waited, the last one for that segment */
    uint64_t doubtful;
    bool is_bulk; /* much is still to come */
    bool window_known;
    read_line *bulk;                     /* where it waits for its turn, or for memory */
    read_job *next_bulk, *previous_bulk; /* those that do */
    read_job *next, *previous;           /* all jobs of the core */
};

void reads_start(core *k, owned *target, const partition_request *what, const caller *to);
void reads_close(core *k); /* the process ends: nobody hears anything, the pool goes with its blocks */
void reads_on_read(read_job *job, int result);
bool reads_may_go_on(const core *k);             /* reads_run_bulk would do something */
void reads_run_bulk(core *k, int64_t until_us);  /* large windows: one slice at least */
void reads_look_at_output(core *k);              /* now and then: do polls wait for memory? */
void reads_closed(owned *o);                     /* the partition is: nobody waits for what it might bring */
void reads_surveyed(owned *o, uint64_t segment); /* polls that wait for it start again; UINT64_MAX: for any segment */
#endif
