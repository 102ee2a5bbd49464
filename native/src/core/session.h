/* What the core knows of who asks on one connection, and what its request under way does to the memberships that are
 * lent to it. The core moves this state when it ends a request, before the caller hears of it (caller.c). */
#ifndef SHARDD_SESSION_H
#define SHARDD_SESSION_H
#include "core/event.h"
#include "core/request.h"
#include "core/seat.h"

typedef struct session {
    event_queue *events;
    uint64_t connection; /* what Python calls it */
    uint32_t user_id;
    bool authenticated;
    seat *seats;      /* what it may do as a member of groups */
    seat_work work;   /* the request of a seat that is under way */
    bool storing;     /* that request is a STORE */
    bool event_lost;  /* Python waits for an event for which there was no memory: the end of the connection tells it */
    bool group_asked; /* Python wants to know what comes of it */
    uint32_t streak_shard, streak; /* consecutive requests to one other shard */
} session;

/* The request in work is not carried out, or begins again. */
static inline void session_start_over(session *s) {
    s->group_asked = s->storing = false;
    if (s->work.seat != NULL) seat_undo(&s->work);
}
/* Its end: a poll was answered, an offset was stored, or it got a status. */
void session_polled(session *s, uint64_t count, uint64_t last_offset);
void session_committed(session *s);
void session_failed(session *s);
/* Consecutive requests to one other shard (`own` is this one) count towards moving there. */
static inline void session_count_streak(session *s, uint32_t shard, uint32_t own) {
    s->streak = shard == own ? 0 : shard == s->streak_shard ? s->streak + 1 : 1;
    if (shard != own) s->streak_shard = shard;
}
/* Takes a seat back (NULL: there is none); the caller frees it. Its request that is under way, if any, is in
 * `under_way`, and its end becomes EVENT_GROUP_POLLED. */
seat *session_take_seat(session *s, uint64_t group, seat_work *under_way);
#endif
