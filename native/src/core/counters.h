/* What a worker counts. */
#ifndef SHARDD_ENGINE_COUNTERS_H
#define SHARDD_ENGINE_COUNTERS_H
#include <stdint.h>

typedef struct core_counters {
    uint64_t accepted, closed, refused_connections, refused_by_address, refused_before_login, refused_introductions;
    uint64_t frames, sends, polls, stores, messages_in, messages_out, bytes_in, bytes_out, forwarded, served_for_peers,
        moved_out, moved_in, commits, append_calls, syncs, sync_errors, turns, python_events, memory_waits,
        buffer_starved, throttled, timeouts, evicted, parked, damaged, refused_by_topic, reads_cached, reads_ring,
        route_misses, route_topics, turns_exchanged;
} core_counters;

/* Bucket 0 counts requests below 1 us, bucket i those of 2^(i-1) to 2^i - 1 us, the last one everything longer. */
#define LATENCY_BUCKETS 32u
#endif
