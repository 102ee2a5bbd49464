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
typedef struct event_queue {
    event *list;
    uint32_t count, capacity, promised;
    uint32_t anonymous; /* requests among them of the crowd without a login */
} event_queue;

int events_open(event_queue *q, uint32_t capacity); /* 0 or -ENOMEM */
void events_close(event_queue *q);
/* An event is valid until the next call. */
event *events_add(event_queue *q, event_kind kind, uint64_t connection); /* NULL: no memory */
bool events_promise(event_queue *q); /* events_promised will give one, or it is unpromised; false: no memory */
event *events_promised(event_queue *q, event_kind kind, uint64_t connection);
void events_unpromise(event_queue *q);
void events_clear(event_queue *q);

#endif
