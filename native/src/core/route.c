/* See route.h. */
#include "core/route.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CAPACITY_FIRST 256u

static void route_free(route *r, void (*drop)(route_partition *)) {
    for (uint32_t i = 0; i < r->partitions_count; i++) drop(&r->partitions[i]);
    free(r->partitions);
    free(r);
}

int routes_open(route_table *t) {
    memset(t, 0, sizeof *t);
    t->slots = calloc(CAPACITY_FIRST, sizeof(route *));
    if (t->slots == NULL) return -ENOMEM;
    t->capacity = CAPACITY_FIRST;
    return 0;
}

void routes_clear(route_table *t, void (*drop)(route_partition *)) {
    if (t->count == 0) return;
    for (uint32_t i = 0; i < t->capacity; i++) {
        if (t->slots[i] == NULL) continue;
        route_free(t->slots[i], drop);
        t->slots[i] = NULL;
    }
    t->count = 0;
}

void routes_close(route_table *t, void (*drop)(route_partition *)) {
    if (t->slots != NULL) routes_clear(t, drop);
    free(t->slots);
    t->slots = NULL;
}

static uint64_t hash_key(uint32_t user_id, const uint8_t *key, uint32_t key_length) {
    return XXH3_64bits_withSeed(key, key_length, user_id);
}

static uint32_t place_of(const route_table *t, uint64_t hash, uint32_t user_id, const uint8_t *key,
                         uint32_t key_length) {
    uint32_t mask = t->capacity - 1, at = (uint32_t)hash & mask;
    for (const route *r; (r = t->slots[at]) != NULL; at = (at + 1) & mask)
        if (r->hash == hash && r->user_id == user_id && r->key_length == key_length &&
            memcmp(r->key, key, key_length) == 0)
            break;
    return at;
}

route *routes_find(route_table *t, uint32_t user_id, const uint8_t *key, uint32_t key_length) {
    route *found = t->slots[place_of(t, hash_key(user_id, key, key_length), user_id, key, key_length)];
    if (found == NULL) t->misses++;
    else t->hits++;
    return found;
}

static bool grow(route_table *t) {
    route **old = t->slots;
    uint32_t old_capacity = t->capacity;
    route **slots = calloc((size_t)old_capacity * 2, sizeof(route *));
    if (slots == NULL) return false;
    t->slots = slots;
    t->capacity = old_capacity * 2;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i] != NULL) slots[place_of(t, old[i]->hash, old[i]->user_id, old[i]->key, old[i]->key_length)] = old[i];
    free(old);
    return true;
}

route *routes_put(route_table *t, uint32_t user_id, const uint8_t *key, uint32_t key_length, uint32_t partitions_count,
                  void (*drop)(route_partition *)) {
    if (t->count >= ROUTES_MAX) routes_clear(t, drop);
    if ((t->count + 1) * 4 > t->capacity * 3 && !grow(t)) return NULL;
    route *r = calloc(1, sizeof *r + key_length);
    if (r == NULL) return NULL;
    r->partitions = calloc(partitions_count > 0 ? partitions_count : 1, sizeof *r->partitions);
    if (r->partitions == NULL) {
        free(r);
        return NULL;
    }
    r->user_id = user_id;
    r->key_length = key_length;
    r->hash = hash_key(user_id, key, key_length);
    r->partitions_count = partitions_count;
    memcpy(r->key, key, key_length);
    uint32_t at = place_of(t, r->hash, user_id, key, key_length);
    if (t->slots[at] != NULL) route_free(t->slots[at], drop);
    else t->count++;
    t->slots[at] = r;
    return r;
}
