/* Where clients connect. A TCP socket, also one for WebSocket, is this worker's own, and the kernel deals connections
 * to the workers by a hash. The Unix socket is one for all of them: whoever is awake accepts. A worker that has more
 * connections than another one gives it what it accepts (peer/handover.c). */
#ifndef SHARDD_LISTENERS_H
#define SHARDD_LISTENERS_H
#include "net/net.h"

typedef struct engine engine;

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
} listeners;

void listeners_open(engine *e);
void listeners_add(engine *e, listener_kind kind, int fd); /* -1: none of this kind */
void listeners_limit(engine *e); /* how long connections from now on may take nothing, when limits have changed */
void listeners_arm(engine *e);
void listener_on_accept(listener *l, int result, bool more);
int64_t listeners_wait_limit(const engine *e, int64_t until_us); /* or the sooner moment when one is armed again */
void listeners_stop(engine *e);
#endif
