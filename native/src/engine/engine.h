/* The native engine of one worker: the request core, the connections, the peers, the calls of Python, and the loop over
 * them. */
#ifndef SHARDD_ENGINE_H
#define SHARDD_ENGINE_H
#include "core/core.h"
#include "engine/calls.h"
#include "engine/engine_options.h"
#include "engine/listeners.h"
#include "engine/turn_watch.h"
#include "net/net.h"
#include "peer/peers.h"

struct engine {
    engine_options options;
    core core;
    net net;
    peers peers;
    calls calls;
    struct { /* operations that stand while the engine is open */
        operation epoll, doorbell, handover;
        int epoll_fd;
        bool epoll_armed, epoll_ready, doorbell_armed, handover_armed;
        bool serving;
        uint64_t doorbell_value;
    } standing;
    listeners listeners;
    worker_page *page; /* ours */
    struct {
        uint64_t served;   /* requests of clients and peers so far */
        int64_t served_us; /* when there was one more */
    } busy_poll;
    int64_t pass_us;   /* when this pass of the loop began */
    int64_t python_us; /* when Python got its last turn */
    turn_watch watch;
    int64_t next_housekeeping_us;
    bool trimming; /* the pool gives memory back, in slices */
    int64_t next_trim_us;
};
#endif
