/* The native engine of one worker: the request core, the connections, the peers, the calls of Python, and the loop over
 * them. */
#ifndef SHARDD_ENGINE_H
#define SHARDD_ENGINE_H
#include "core/core.h"
#include "engine/calls.h"
#include "engine/engine_options.h"
#include "net/net.h"
#include "peer/peers.h"

typedef struct engine {
    engine_options options;
    core core;
    net net;
    peers peers;
    calls calls;
    struct { /* operations that stand while the engine is open */
        operation accept, epoll, doorbell, handover;
        int listen_fd, epoll_fd;
        bool accept_armed, epoll_armed, epoll_ready, doorbell_armed, handover_armed;
        bool serving;
        int64_t accept_again_us;
        uint64_t doorbell_value;
    } standing;
    worker_page *page; /* ours */
    int64_t pass_us;   /* when this pass of the loop began */
    int64_t next_housekeeping_us;
    bool trimming; /* the pool gives memory back, in slices */
    int64_t next_trim_us;
} engine;
#endif
