/* What a worker tells its engine when it makes it. */
#ifndef SHARDD_ENGINE_OPTIONS_H
#define SHARDD_ENGINE_OPTIONS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/waiting_polls.h"
#include "io/io.h"
#include "log/index_pages.h"
#include "net/admission.h"
#include "net/tls.h"
#include "net/websocket.h"
#include "wire/dialect.h"

#define BUSY_POLL_US_MAX 1000u

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
    uint32_t consumer_offsets_max;                    /* of a partition that is opened */
    bool socket_migration;
    const dialect *dialect;            /* of those who connect */
    uint32_t pipeline_window_requests; /* of one connection, in work at a time */
    waiting_polls_limits waiting_polls;
    const char *data_directory; /* whose file system is watched for room; NULL: none */
    uint64_t disk_reserve_bytes;
    index_mode cache_indexes;
    io_engine io_engine;
    websocket_settings websocket;
    const char *tcp_proxies, *websocket_proxies; /* lines of trusted.h; NULL: none */
    tls_mode tls[TLS_PORTS];
    bool clients_have_names; /* by their certificates */
    uint32_t
        busy_poll_us; /* how long the loop looks for more before it sleeps, after a request; 0: it sleeps at once */
    uint32_t sample_every; /* of the requests that never reach Python; 0: none is traced */
} engine_options;

#endif
