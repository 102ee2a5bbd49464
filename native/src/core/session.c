/* See session.h. */
#include "core/session.h"

#include <stddef.h>

static void report(session *s, uint64_t count, uint64_t offset, bool stored) {
    if (!s->group_asked) return;
    s->group_asked = false;
    event *v = events_add(s->events, EVENT_GROUP_POLLED, s->connection);
    s->event_lost = v == NULL;
    if (v == NULL) return;
    v->code = (uint32_t)count;
    v->number = offset;
    v->authenticated = stored;
}

void session_polled(session *s, uint64_t count, uint64_t last_offset) {
    if (s->work.seat != NULL) seat_polled(&s->work, count, last_offset);
    else report(s, count, last_offset, false);
}

void session_committed(session *s) {
    if (s->work.seat != NULL) seat_committed(&s->work, true);
    else report(s, 0, s->work.offset, true);
}

void session_failed(session *s) {
    if (s->work.seat == NULL) report(s, 0, 0, false);
    else if (s->storing) seat_committed(&s->work, false);
    else seat_polled(&s->work, 0, 0);
}

seat *session_take_seat(session *s, uint64_t group, seat_work *under_way) {
    seat *taken = seats_take(&s->seats, group);
    *under_way = (seat_work){0};
    if (taken == NULL || s->work.seat != taken) return taken;
    *under_way = s->work;
    s->work.seat = NULL;
    s->group_asked = true; /* Python hears of its end */
    return taken;
}
