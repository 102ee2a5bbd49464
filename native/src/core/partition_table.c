/* See partition_table.h. */
#include "core/partition_table.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>

#include "base/hash.h"

#define CAPACITY_FIRST 1024u

int partitions_open(partition_table *t) {
    *t = (partition_table){.slots = calloc(CAPACITY_FIRST, sizeof *t->slots), .capacity = CAPACITY_FIRST};
    return t->slots != NULL ? 0 : -ENOMEM;
}

static uint32_t place_of(const partition_table *t, uint64_t ns) {
    uint32_t mask = t->capacity - 1, at = hash_place(ns) & mask;
    while (t->slots[at] != NULL && t->slots[at]->ns != ns) at = (at + 1) & mask;
    return at;
}

owned *partitions_find(const partition_table *t, uint64_t ns) { return t->slots[place_of(t, ns)]; }

void owned_release(owned *o) {
    ASSERT(o->references > 0);
    if (--o->references > 0) return;
    partition_release(o->p);
    fences_free(&o->fences);
    send_limits_release(o->send_limits);
    free(o);
}

void drop_route_partition(route_partition *r) {
    if (r->local != NULL) owned_release(r->local);
    r->local = NULL;
}

static bool grow(partition_table *t) {
    partition_table larger = {.slots = calloc((size_t)t->capacity * 2, sizeof *t->slots), .capacity = t->capacity * 2};
    if (larger.slots == NULL) return false;
    for (uint32_t i = 0; i < t->capacity; i++)
        if (t->slots[i] != NULL) larger.slots[place_of(&larger, t->slots[i]->ns)] = t->slots[i];
    larger.used = t->used;
    free(t->slots);
    *t = larger;
    return true;
}

int partitions_enter(partition_table *t, owned *o) {
    if ((t->used + 1) * 4 > t->capacity * 3 && !grow(t)) return -ENOMEM;
    uint32_t at = place_of(t, o->ns);
    if (t->slots[at] != NULL) return -EEXIST;
    t->slots[at] = o;
    t->used++;
    return 0;
}

void partitions_remove(partition_table *t, const owned *o) {
    uint32_t mask = t->capacity - 1, at = place_of(t, o->ns);
    t->slots[at] = NULL;
    t->used--;
    for (uint32_t next = (at + 1) & mask; t->slots[next] != NULL; next = (next + 1) & mask) { /* close the gap */
        owned *moved = t->slots[next];
        t->slots[next] = NULL;
        t->slots[place_of(t, moved->ns)] = moved;
    }
}
