/* Memory for answers on their way: windows of polls (pool) and answers of Python (malloc) share one budget. */
#ifndef SHARDD_OUTPUT_H
#define SHARDD_OUTPUT_H
#include "core/core.h"

#define BULK_BYTES_MIN 65536u /* larger parts of answers are read and sent after the others, in slices */
#define BULK_SLICE_BYTES 262144u

/* A block for a window; NULL when the answers under way have used the budget up. Small answers have a part of their
 * own, so that readers of large ones who do not read cannot stop them. */
uint8_t *output_allocate(core *k, size_t bytes, bool small);
bool output_fits(const core *k, size_t bytes); /* of a large one */
void output_free(core *k, uint8_t *block);
/* For what is made of a window while that is held: a part of its own, so that windows cannot wait for each other. */
uint8_t *output_allocate_beside(core *k, size_t bytes);
void output_free_beside(core *k, uint8_t *block);
bool output_is_plenty(const core *k);  /* less than half of the budget is in use */
void output_look(core *k, bool waits); /* now and then: `waits`: polls wait for memory */
#endif
