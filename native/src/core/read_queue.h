/* Lists of poll jobs, and the memory that they share. */
#ifndef SHARDD_READ_QUEUE_H
#define SHARDD_READ_QUEUE_H
#include "engine/engine.h"

void reads_enter_bulk(read_job *job); /* much of its answer is to come: it waits for its turn, and for memory */
void reads_enter_bulk_first(read_job *job);
void reads_leave_bulk(read_job *job);
void reads_enter_handle(read_job *job); /* for another shard: it gets a handle */
void reads_leave_handle(read_job *job);
/* read_memory.c */
bool reads_ensure_room(read_job *job); /* a block for its window; false: not now */
void reads_free_window(read_job *job);
bool reads_next_fits(const engine *e); /* the first of those without a block could have one */
uint32_t reads_window_bytes(const engine *e);

read_job *reads_by_handle(engine *e, uint64_t handle); /* of another shard; NULL: there is none */
#endif
