/* Figures of the engine for metrics. */
#ifndef SHARDD_GAUGES_H
#define SHARDD_GAUGES_H
#include "engine/engine.h"

/* What there is now of everything that can queue up. Walks lists: for whoever asks, never for a request. */
typedef struct engine_gauges {
    uint64_t partitions_dirty, syncs_waiting, links_out, links_out_max, links_in, waiters, throttled_connections,
        receive_buffers_free, anonymous_buffers_free, partial_bytes, output_bytes, read_jobs, polls_surveying,
        polls_waiting, calls, call_record_bytes, index_pages_bytes;
    uint64_t disk_free_bytes, disk_free_inodes; /* of the disk: at the last look */
    uint64_t disk_refuses;                      /* 1: it has no room for sends, or can only be read */
} engine_gauges;

void engine_read_gauges(const engine *e, engine_gauges *gauges);
#endif
