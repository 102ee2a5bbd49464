/* WebSocket of one worker (RFC 6455): what is allowed, and room for the stream whose turn it is. Streams over it are in
 * stream_websocket.c. */
#ifndef SHARDD_WEBSOCKET_H
#define SHARDD_WEBSOCKET_H
#include "net/stream.h"
#include "net/websocket_frames.h"

#define WEBSOCKET_ROOM_BYTES 65536u /* to put a head before what follows */

typedef struct websocket_settings {
    frame_limits limits;
    const char *origins; /* as upgrade_feed wants them */
} websocket_settings;

typedef struct websocket_counters {
    uint64_t opened, refused, broken; /* upgraded; not; ended by what is no frame */
} websocket_counters;

typedef struct websockets {
    frame_limits limits;
    char *origins;
    uint8_t *in, *out; /* FEED_ROOM_BYTES, WEBSOCKET_ROOM_BYTES */
    websocket_counters counters;
} websockets;

int websockets_open(websockets *w, const websocket_settings *settings); /* 0 or -ENOMEM */
void websockets_close(websockets *w);
/* Over a socket, or over TLS: takes it. False: no memory, it is closed. */
bool stream_websocket(stream *out, websockets *w, stream below);
#endif
