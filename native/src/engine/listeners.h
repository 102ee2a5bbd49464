/* Where clients connect. A TCP socket, also one for WebSocket, is this worker's own, and the kernel deals connections
 * to the workers. The Unix socket is one for all of them: whoever is awake accepts, and deals what it has accepted to
 * all in turns. */
#ifndef SHARDD_LISTENERS_H
#define SHARDD_LISTENERS_H
#include "io/io.h"

typedef struct engine engine;

typedef enum listener_kind { LISTENER_TCP, LISTENER_UNIX, LISTENER_WEBSOCKET, LISTENER_KINDS } listener_kind;

typedef struct listener {
    operation accept;
    engine *engine;
    listener_kind kind;
    int fd; /* -1: there is none */
    bool armed;
    int64_t again_us; /* not before, after a failure */
} listener;

typedef struct listeners {
    listener of[LISTENER_KINDS];
    uint32_t dealt_to; /* the shard that got the last connection of the Unix socket */
} listeners;

void listeners_open(engine *e);
void listeners_add(engine *e, listener_kind kind, int fd); /* -1: none of this kind */
void listeners_arm(engine *e);
void listener_on_accept(listener *l, int result, bool more);
int64_t listeners_wait_limit(const engine *e, int64_t until_us); /* or the sooner moment when one is armed again */
void listeners_stop(engine *e);
#endif
