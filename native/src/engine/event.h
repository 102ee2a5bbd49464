/* What a turn of the engine tells Python. */
#ifndef SHARDD_EVENT_H
#define SHARDD_EVENT_H

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

#endif
