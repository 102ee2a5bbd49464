/* See waiters.h. */
#include "core/waiters.h"

#include "base/clock.h"

#include <assert.h>
#include <stddef.h>

#define RETRIES_BETWEEN_LOOKS 16u /* at the clock */

void waiters_add(waiter_queue *q, waiter *w, bool (*retry)(waiter *)) {
    assert(!w->queued);
    *w = (waiter){.retry = retry, .queued = true};
    if (q->first == NULL) q->first = w;
    else q->last->next = w;
    q->last = w;
}

void waiters_remove(waiter_queue *q, waiter *w) {
    waiter *before = NULL;
    for (waiter *at = q->first; at != NULL; before = at, at = at->next) {
        if (at != w) continue;
        if (before == NULL) q->first = w->next;
        else before->next = w->next;
        if (q->last == w) q->last = before;
        break;
    }
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
