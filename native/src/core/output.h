/* Memory for answers on their way: windows of polls (pool) and answers of Python (malloc) share one budget. */
#ifndef SHARDD_OUTPUT_H
#define SHARDD_OUTPUT_H
#include "core/core.h"

/* A block for a window; NULL when the answers under way have used the budget up. */
uint8_t *output_allocate(core *k, size_t bytes);
void output_free(core *k, uint8_t *block);
bool output_is_plenty(const core *k); /* less than half of the budget is in use */
void output_look(core *k);            /* now and then: do polls wait for memory? */
#endif
