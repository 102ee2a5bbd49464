/* Figures for metrics that nobody has to keep up to date. */
#include "engine/gauges.h"

#include "core/reads.h"

void engine_read_gauges(const engine *e, engine_gauges *gauges) {
    *gauges = (engine_gauges){.receive_buffers_free = e->core.io.free_buffers[BUFFERS_LOGGED_IN],
                              .anonymous_buffers_free = e->core.io.free_buffers[BUFFERS_ANONYMOUS],
                              .partial_bytes = shares_bytes(&e->net),
                              .throttled_connections = shares_waiting(&e->net),
                              .output_bytes = e->core.output.bytes + e->core.output.made_bytes,
                              .polls_waiting = e->core.waiting_polls.count,
                              .calls = calls_under_way(&e->calls),
                              .call_record_bytes = e->calls.record_bytes,
                              .index_pages_bytes = e->core.files.indexes.bytes,
                              .disk_free_bytes = e->core.commit.room.free_bytes,
                              .disk_free_inodes = e->core.commit.room.free_inodes,
                              .disk_refuses = e->core.commit.room.refused || e->core.commit.room.read_only};
    for (const owned *o = e->core.sync.dirty; o != NULL; o = o->sync.next_dirty) gauges->partitions_dirty++;
    for (const owned *o = e->core.sync.pending; o != NULL; o = o->sync.next_pending) gauges->syncs_waiting++;
    for (const waiter *w = e->core.waiters.first; w != NULL; w = w->next) gauges->waiters++;
    for (const read_job *job = e->core.reads.jobs; job != NULL; job = job->next) {
        gauges->read_jobs++;
        gauges->polls_surveying += job->surveying;
    }
    for (uint32_t peer = 0; peer < e->options.shards; peer++) {
        if (peer == e->options.shard) continue;
        uint64_t out = links_depth(&e->core.links, e->options.shard, peer);
        gauges->links_out += out;
        gauges->links_out_max = out > gauges->links_out_max ? out : gauges->links_out_max;
        gauges->links_in += links_depth(&e->core.links, peer, e->options.shard);
    }
}
