/* Events for Python: an array that grows. Room for what has to be told is promised beforehand. */
#include "engine/engine_api.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

/* Room for one more beside all that is promised. */
static bool make_room(engine *e) {
    if (e->events_count + e->events_promised < e->events_capacity) return true;
    uint32_t capacity = e->events_capacity * 2;
    event *larger = realloc(e->events, capacity * sizeof *larger);
    if (larger == NULL) return false;
    e->events = larger;
    e->events_capacity = capacity;
    return true;
}

static event *append(engine *e, event_kind kind, uint64_t connection) {
    ASSERT_ALWAYS(e->events_count < e->events_capacity);
    event *v = &e->events[e->events_count++];
    *v = (event){.kind = kind, .connection = connection};
    return v;
}

event *engine_event(engine *e, event_kind kind, uint64_t connection) {
    return make_room(e) ? append(e, kind, connection) : NULL;
}

bool engine_event_promise(engine *e) {
    if (!make_room(e)) return false;
    e->events_promised++;
    return true;
}

void engine_event_unpromise(engine *e) {
    ASSERT(e->events_promised > 0);
    e->events_promised--;
}

event *engine_event_promised(engine *e, event_kind kind, uint64_t connection) {
    engine_event_unpromise(e);
    return append(e, kind, connection);
}

bool engine_events_full(const engine *e, const conn *c) {
    return e->events_count >= EVENTS_MAX || (!c->authenticated && e->events_anonymous >= EVENTS_ANONYMOUS_MAX);
}

void engine_events_clear(engine *e) {
    for (uint32_t i = 0; i < e->events_count; i++) free(e->events[i].data);
    e->events_count = e->events_anonymous = 0;
}
