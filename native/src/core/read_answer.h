/* How a poll job gives out its windows and how it ends (read_answer.c). Whoever ends it frees it. */
#ifndef SHARDD_READ_ANSWER_H
#define SHARDD_READ_ANSWER_H
#include "core/reads.h"

void read_free_window(read_job *job);
poll_summary read_summary(const read_job *job);
void read_answer_status(read_job *job, uint32_t status); /* ends it; `dropped` for an abandoned one */
void read_break_off(read_job *job); /* ends it: a part of the answer may be out already, there is no honest end */
void read_fail(read_job *job, uint32_t status); /* the one or the other */
void read_send_window(read_job *job);           /* whole and verified; ends the job with the last one */
#endif
