/* Figures for metrics that nobody has to keep up to date. */
#include "engine/engine_gauges.h"

uint32_t latency_bucket(int64_t us) {
    if (us <= 0) return 0;
    uint32_t bucket = 64u - (uint32_t)__builtin_clzll((unsigned long long)us);
    return bucket < LATENCY_BUCKETS ? bucket : LATENCY_BUCKETS - 1;
}

void engine_read_gauges(const engine *e, engine_gauges *gauges) {
    *gauges = (engine_gauges){.receive_buffers_free = e->io.free_buffers[BUFFERS_LOGGED_IN],
                              .anonymous_buffers_free = e->io.free_buffers[BUFFERS_ANONYMOUS],
                              .partial_bytes = shares_bytes(e),
                              .throttled_connections = shares_waiting(e),
                              .output_bytes = e->output_bytes};
    for (const owned *o = e->dirty; o != NULL; o = o->next_dirty) gauges->partitions_dirty++;
    for (const owned *o = e->sync_pending; o != NULL; o = o->next_pending) gauges->syncs_waiting++;
    for (const waiter *w = e->waiters; w != NULL; w = w->next) gauges->waiters++;
    for (const read_job *job = e->jobs; job != NULL; job = job->next) {
        gauges->read_jobs++;
        gauges->polls_surveying += job->surveying;
    }
    for (uint32_t peer = 0; peer < e->options.shards; peer++) {
        if (peer == e->options.shard) continue;
        uint64_t out = links_depth(&e->links, e->options.shard, peer);
        gauges->links_out += out;
        gauges->links_out_max = out > gauges->links_out_max ? out : gauges->links_out_max;
        gauges->links_in += links_depth(&e->links, peer, e->options.shard);
    }
}
