/* What a turn of the engine tells Python. */
#ifndef SHARDD_EVENT_H
#define SHARDD_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct conn conn;
typedef struct engine engine;

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
    EVENT_ROLLED
} event_kind;

typedef struct event {
    event_kind kind;
    uint64_t connection;    /* or namespace, or token; 1: sends are refused, 0: no more (EVENT_ROOM) */
    uint32_t code, user_id; /* code: count of messages in EVENT_GROUP_POLLED */
    uint64_t number;        /* attempt, target shard, start offset of a segment, errno, status, free bytes */
    bool authenticated;     /* EVENT_GROUP_POLLED: an offset was stored, `number` */
    char address[56];
    uint8_t *data;             /* malloc'ed by the engine, freed after delivery */
    size_t data_length, split; /* split: length of the first of two identifiers */
} event;

/* engine_events.c; an event is valid until the next call */
event *engine_event(engine *e, event_kind kind, uint64_t connection); /* NULL: no memory */
bool engine_event_promise(engine *e); /* engine_event_promised will give one, or it is unpromised; false: no memory */
event *engine_event_promised(engine *e, event_kind kind, uint64_t connection);
void engine_event_unpromise(engine *e);
bool engine_events_full(const engine *e, const conn *c); /* for a frame of this connection */

#endif
