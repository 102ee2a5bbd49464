/* Life of the core and of its partitions. */
#include "core/core.h"

#include "core/commit.h"
#include "core/producing.h"
#include "core/reads.h"
#include "base/status.h"
#include "core/sync.h"

#include <errno.h>
#include <stdlib.h>

#define EVENTS_FIRST 256u

int core_open(core *k, const core_options *options) {
    k->expiry = expiry_clock_of_system();
    k->expiry.shared = k->links.clock;
    k->expiry.looks = options->shard == 0;
    k->options = *options;
    producing_open(k);
    k->sync.next_us = k->now_us + options->sync_interval_us;
    k->sync.next_save_us = k->now_us + options->save_interval_us;
    k->peer_is_down = calloc(options->shards, sizeof *k->peer_is_down);
    if (k->peer_is_down == NULL || id_source_seed(&k->ids) != 0) return -ENOMEM;
    int result = partitions_open(&k->partitions);
    if (result == 0) result = events_open(&k->events, EVENTS_FIRST);
    if (result == 0) result = commit_open(k);
    if (result == 0) result = waiting_polls_open(&k->waiting_polls);
    if (result == 0) result = routes_open(&k->routes, drop_route_partition);
    return result;
}

void core_close_partitions(core *k) {
    routes_end_all(&k->routes);
    reads_close(k);
    sync_close(k);
    commit_drop_parts(k);
    for (uint32_t i = 0; i < k->partitions.capacity; i++) {
        owned *o = k->partitions.slots[i];
        if (o == NULL) continue;
        partition_close(o->p);
        sync_free_held(o);
        owned_release(o);
    }
    k->partitions.capacity = k->partitions.used = 0;
}

void core_free(core *k) {
    routes_close(&k->routes);
    waiting_polls_close(&k->waiting_polls);
    events_close(&k->events);
    commit_close(k);
    free(k->partitions.slots);
    producer_table_free(&k->known_producers);
    offset_shares_clear(&k->producing.shares);
    known_users_free(&k->users);
    free(k->peer_is_down);
}

int core_partition_add(core *k, partition *p) {
    owned *o = calloc(1, sizeof *o);
    if (o == NULL) return -ENOMEM;
    *o = (owned){.core = k,
                 .p = p,
                 .ns = partition_namespace(p),
                 .incarnation = partition_incarnation(p),
                 .references = 1,
                 .active_reported = partition_active_start(p),
                 .poison_reported = partition_state(p) != 0}; /* opened read only: recovery has told why */
    int result = partitions_enter(&k->partitions, o);
    if (result != 0) {
        free(o);
        return result;
    }
    if (partition_state(p) == 0 && partition_is_dirty(p)) /* what recovery found may be in the page cache only */
        sync_mark_dirty(o);
    return 0;
}

bool core_partition_set_level(core *k, uint64_t ns, partition_level level) {
    owned *o = core_owned(k, ns);
    if (o == NULL) return false;
    partition_set_level(o->p, level);
    sync_level_changed(o);
    return true;
}

void core_partition_remove(core *k, uint64_t ns) {
    owned *o = core_owned(k, ns);
    if (o == NULL) return;
    o->removed = true;
    partition_close(o->p);
    sync_drop_held(o, STATUS_PARTITION_NOT_FOUND);
    reads_closed(o);
    if (o->has_waiting_polls) waiting_polls_ended(o);
    partitions_remove(&k->partitions, o);
    owned_release(o);
}
