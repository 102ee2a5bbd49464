/* See waiters.h. */
#include "core/waiters.h"

#include "base/assert.h"
#include "base/clock.h"

#include <stddef.h>

#define RETRIES_BETWEEN_LOOKS 16u /* at the clock */

void waiters_add(waiter_queue *q, waiter *w, bool (*retry)(waiter *)) {
    ASSERT(!w->queued);
    *w = (waiter){.retry = retry, .queued = true, .previous = q->last};
    if (q->first == NULL) q->first = w;
    else q->last->next = w;
    q->last = w;
}

void waiters_remove(waiter_queue *q, waiter *w) {
    if (!w->queued) return;
    if (w->previous == NULL) q->first = w->next;
    else w->previous->next = w->next;
    if (w->next == NULL) q->last = w->previous;
    else w->next->previous = w->previous;
    w->queued = false;
}

void waiters_run(waiter_queue *q, int64_t until_us) {
    waiter *last = q->last;
    uint32_t count = 0;
    for (bool more = q->first != NULL; more && q->first != NULL;) {
        waiter *w = q->first;
        more = w != last;
        bool (*retry)(waiter *) = w->retry;
        waiters_remove(q, w);
        if (!retry(w) && !w->queued) waiters_add(q, w, retry);
        if (more && ++count % RETRIES_BETWEEN_LOOKS == 0 && clock_monotonic_us() > until_us) return;
    }
}
