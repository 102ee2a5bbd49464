/* Poll jobs of which much is still to come: they wait for their turn, and for memory, in two lines. */
#ifndef SHARDD_READ_QUEUE_H
#define SHARDD_READ_QUEUE_H
#include "core/reads.h"

enum { READS_WITH_BLOCK, READS_WITHOUT_BLOCK };

void reads_enter_bulk(read_job *job); /* those with a block go on with it; the others wait for one */
void reads_enter_bulk_first(read_job *job);
void reads_leave_bulk(read_job *job);
bool reads_next_fits(const core *k); /* the first of those without a block could have one */
#endif
