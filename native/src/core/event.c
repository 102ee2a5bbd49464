/* See event.h. */
#include "core/event.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>

int events_open(event_queue *q, uint32_t capacity) {
    *q = (event_queue){.list = calloc(capacity, sizeof *q->list), .capacity = capacity, .wanted = EVENTS_MAX};
    return q->list != NULL ? 0 : -ENOMEM;
}

void events_close(event_queue *q) {
    if (q->list != NULL) events_clear(q);
    free(q->list);
    q->list = NULL;
}

/* Room for one more beside all that is promised. */
static bool make_room(event_queue *q) {
    if (q->count + q->promised < q->capacity) return true;
    uint32_t capacity = q->capacity * 2;
    event *larger = realloc(q->list, capacity * sizeof *larger);
    if (larger == NULL) return false;
    q->list = larger;
    q->capacity = capacity;
    return true;
}

static event *append(event_queue *q, event_kind kind, uint64_t connection) {
    ASSERT_ALWAYS(q->count < q->capacity);
    event *v = &q->list[q->count++];
    *v = (event){.kind = kind, .connection = connection};
    return v;
}

event *events_add(event_queue *q, event_kind kind, uint64_t connection) {
    return make_room(q) ? append(q, kind, connection) : NULL;
}

bool events_promise(event_queue *q) {
    if (!make_room(q)) return false;
    q->promised++;
    return true;
}

void events_unpromise(event_queue *q) {
    ASSERT(q->promised > 0);
    q->promised--;
}

event *events_promised(event_queue *q, event_kind kind, uint64_t connection) {
    events_unpromise(q);
    return append(q, kind, connection);
}

void events_clear(event_queue *q) {
    for (uint32_t i = 0; i < q->count; i++) free(q->list[i].data);
    q->count = q->anonymous = 0;
}
