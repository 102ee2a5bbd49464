/* One request of a floor server, and its reply. */
#ifndef LOAD_FLOOR_ANSWER_H
#define LOAD_FLOOR_ANSWER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "floor.h"

enum { FLOOR_FRAME_MAX = 1 << 30, FLOOR_REPLY_MAX = 1 << 30 };

typedef struct floor_reply {
    uint8_t *data;
    size_t length, room;
} floor_reply;

/* Before the first request. */
void floor_answer_open(const floor_options *options);
/* Room for so many bytes, kept when there is no memory. */
bool floor_grow(uint8_t **buffer, size_t *room, size_t wanted);
/* Puts the reply behind those that are there. `turn`: of the connection, for what the server chooses a partition for.
 * False ends the connection. */
bool floor_answer(floor_reply *reply, uint32_t *turn, uint32_t code, const uint8_t *payload, size_t length);
#endif
