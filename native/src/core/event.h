/* What a turn of the engine tells Python. */
#ifndef SHARDD_EVENT_H
#define SHARDD_EVENT_H

#include "log/producers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum event_kind {
    EVENT_ACCEPTED = 1,
    EVENT_CLOSED,
    EVENT_REQUEST,
    EVENT_ROUTE_MISS,
    EVENT_MOVE,
    EVENT_MOVED_IN,
    EVENT_DOUBT,
    EVENT_POISONED,
    EVENT_GROUP_POLLED,
    EVENT_ROOM,
    EVENT_SYNCED,
    EVENT_ROLLED,
    EVENT_RESUMED,
    EVENT_CALL,
    EVENT_CERTIFIED
} event_kind;

typedef struct event {
    event_kind kind;
    uint64_t connection;    /* or namespace, or token; 1: sends are refused, 0: no more (EVENT_ROOM) */
    uint32_t code, user_id; /* code: count of messages in EVENT_GROUP_POLLED, outcome in EVENT_CALL (calls.h), transport
                               in EVENT_ACCEPTED (net.h) */
    uint64_t number;        /* attempt, target shard, start offset of a segment, errno, status, free bytes */
    uint64_t free_inodes;   /* EVENT_ROOM */
    uint8_t dialect;        /* EVENT_REQUEST: of its connection */
    produced made;          /* EVENT_CALL: of an append that is done */
    bool authenticated;     /* EVENT_GROUP_POLLED: an offset was stored, `number` */
    char address[56];
    uint8_t *data;             /* malloc'ed by the engine, freed after delivery */
    size_t data_length, split; /* split: length of the first of two identifiers */
} event;

/* In the order in which they happened; Python takes all of them after a turn. Room for what has to be told is promised
 * beforehand. */
#define EVENTS_MAX 128u          /* per turn; no further frame is looked at until Python took them */
#define EVENTS_MIN 32u           /* the same, after turns of Python that were long */
#define EVENTS_ANONYMOUS_MAX 32u /* requests among them of the crowd without a login */
#define EVENTS_ANONYMOUS_PART 4u /* and at most this part of `wanted` */
#define PYTHON_TURN_US 10000     /* a longer turn of Python is long */

typedef struct event_queue {
    event *list;
    uint32_t count, capacity, promised;
    uint32_t anonymous; /* requests among them of the crowd without a login */
    uint32_t wanted;    /* EVENTS_MIN to EVENTS_MAX: no further frame is looked at when there are so many */
} event_queue;

/* What the engine does alone (sends, polls) waits while Python computes. So Python gets half as many events after a
 * turn that was long, as the loops of doors do, and twice as many after a short one. */
static inline void events_after_turn_of_python(event_queue *q, int64_t python_us) {
    if (python_us > PYTHON_TURN_US) q->wanted = q->wanted / 2 > EVENTS_MIN ? q->wanted / 2 : EVENTS_MIN;
    else if (python_us < PYTHON_TURN_US / 4) q->wanted = q->wanted * 2 < EVENTS_MAX ? q->wanted * 2 : EVENTS_MAX;
}

static inline bool events_are_enough(const event_queue *q, bool anonymous) {
    uint32_t strangers_max = q->wanted / EVENTS_ANONYMOUS_PART;
    if (strangers_max > EVENTS_ANONYMOUS_MAX) strangers_max = EVENTS_ANONYMOUS_MAX;
    return q->count >= q->wanted || (anonymous && q->anonymous >= strangers_max);
}

int events_open(event_queue *q, uint32_t capacity); /* 0 or -ENOMEM */
void events_close(event_queue *q);
/* An event is valid until the next call. */
event *events_add(event_queue *q, event_kind kind, uint64_t connection); /* NULL: no memory */
bool events_promise(event_queue *q); /* events_promised will give one, or it is unpromised; false: no memory */
event *events_promised(event_queue *q, event_kind kind, uint64_t connection);
void events_unpromise(event_queue *q);
void events_clear(event_queue *q);

#endif
