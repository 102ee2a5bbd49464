/* What could not go on for want of memory or of a free descriptor; tried again in order of arrival. */
#ifndef SHARDD_WAITERS_H
#define SHARDD_WAITERS_H
#include <stdbool.h>
#include <stdint.h>

typedef struct waiter {
    struct waiter *next, *previous;
    bool (*retry)(struct waiter *); /* true: done with waiting */
    bool queued;
} waiter;

typedef struct waiter_queue {
    waiter *first, *last;
} waiter_queue;

void waiters_add(waiter_queue *q, waiter *w, bool (*retry)(waiter *));
void waiters_remove(waiter_queue *q, waiter *w);
void waiters_run(waiter_queue *q, int64_t until_us);
#endif
