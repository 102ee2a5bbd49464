/* The partitions that this shard owns: open addressing by namespace, references counted. */
#include "engine/engine_api.h"

#include <errno.h>
#include <stdlib.h>

#include "base/hash.h"

static uint32_t partition_place(const engine *e, uint64_t ns) {
    uint32_t mask = e->partitions_capacity - 1, at = hash_place(ns) & mask;
    while (e->partitions[at] != NULL && e->partitions[at]->ns != ns) at = (at + 1) & mask;
    return at;
}

owned *engine_owned(engine *e, uint64_t ns) { return e->partitions[partition_place(e, ns)]; }

void owned_release(owned *o) {
    if (--o->references > 0) return;
    partition_release(o->p);
    fences_free(&o->fences);
    free(o);
}

void drop_route_partition(route_partition *r) {
    if (r->local != NULL) owned_release(r->local);
    r->local = NULL;
}

static bool partitions_grow(engine *e) {
    owned **old = e->partitions;
    uint32_t old_capacity = e->partitions_capacity;
    owned **larger = calloc(old_capacity * 2, sizeof *larger);
    if (larger == NULL) return false;
    e->partitions = larger;
    e->partitions_capacity = old_capacity * 2;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i] != NULL) larger[partition_place(e, old[i]->ns)] = old[i];
    free(old);
    return true;
}

int engine_partition_add(engine *e, partition *p) {
    if ((e->partitions_used + 1) * 4 > e->partitions_capacity * 3 && !partitions_grow(e)) return -ENOMEM;
    uint32_t at = partition_place(e, partition_namespace(p));
    if (e->partitions[at] != NULL) return -EEXIST;
    owned *o = calloc(1, sizeof *o);
    if (o == NULL) return -ENOMEM;
    *o = (owned){.e = e,
                 .p = p,
                 .ns = partition_namespace(p),
                 .incarnation = partition_incarnation(p),
                 .references = 1,
                 .poison_reported = partition_state(p) != 0}; /* opened read only: recovery has told why */
    e->partitions[at] = o;
    e->partitions_used++;
    if (partition_state(p) == 0 && partition_is_dirty(p)) /* what recovery found may be in the page cache only */
        sync_mark_dirty(o);
    return 0;
}

bool engine_partition_set_level(engine *e, uint64_t ns, partition_level level) {
    owned *o = engine_owned(e, ns);
    if (o == NULL) return false;
    partition_set_level(o->p, level);
    sync_level_changed(o);
    return true;
}

void engine_partition_remove(engine *e, uint64_t ns) {
    uint32_t mask = e->partitions_capacity - 1, at = partition_place(e, ns);
    owned *o = e->partitions[at];
    if (o == NULL) return;
    partition_close(o->p);
    sync_drop_held(o, STATUS_PARTITION_NOT_FOUND);
    reads_surveyed(o, UINT64_MAX);
    e->partitions[at] = NULL;
    e->partitions_used--;
    for (uint32_t next = (at + 1) & mask; e->partitions[next] != NULL; next = (next + 1) & mask) { /* close the gap */
        owned *moved = e->partitions[next];
        e->partitions[next] = NULL;
        e->partitions[partition_place(e, moved->ns)] = moved;
    }
    owned_release(o);
}
