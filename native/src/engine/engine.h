/* The native engine of one worker: the request core, the connections, the peers, and the loop over them. */
#ifndef SHARDD_ENGINE_H
#define SHARDD_ENGINE_H
#include "core/core.h"
#include "net/net.h"
#include "peer/peers.h"

typedef struct engine_options {
    uint32_t shard, shards;
    int shared_fd, handover_receive_fd;
    const int *pool_fds, *doorbell_fds, *handover_send_fds; /* [shards] each */
    size_t pool_bytes;
    admission_limits limits;
    int64_t partial_frame_timeout_us, slow_reader_timeout_us, sync_interval_us, login_timeout_us, request_timeout_us;
    int64_t idle_timeout_us;                          /* 0: none */
    int64_t save_interval_us;                         /* of the journals of `memory`; 0: no saver */
    bool save_syncs;                                  /* what the saver writes is synced, too */
    uint64_t journal_messages_max, journal_bytes_max; /* of a partition that is opened */
    bool socket_migration;
    const char *data_directory; /* whose file system is watched for room; NULL: none */
    uint64_t disk_reserve_bytes;
    io_engine io_engine;
} engine_options;

typedef struct engine {
    engine_options options;
    core core;
    net net;
    peers peers;
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
} engine;
#endif
