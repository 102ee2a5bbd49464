/* See producer_table.h. */
#include "core/producer_table.h"

#include "base/hash.h"

#include <stdlib.h>

#define CAPACITY_FIRST 16u

static uint32_t place_of(const producer_table *t, uint64_t id) {
    uint32_t mask = t->capacity - 1, at = hash_place(id) & mask;
    while (t->slots[at].id != 0 && t->slots[at].id != id) at = (at + 1) & mask;
    return at;
}

const known_producer *producer_table_find(const producer_table *t, uint64_t id) {
    if (t->slots == NULL || id == 0) return NULL;
    const known_producer *found = &t->slots[place_of(t, id)];
    return found->id != 0 ? found : NULL;
}

static bool grow(producer_table *t) {
    producer_table larger = {.capacity = t->capacity > 0 ? t->capacity * 2 : CAPACITY_FIRST, .count = t->count};
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (larger.slots == NULL) return false;
    for (uint32_t i = 0; i < t->capacity; i++)
        if (t->slots[i].id != 0) larger.slots[place_of(&larger, t->slots[i].id)] = t->slots[i];
    free(t->slots);
    *t = larger;
    return true;
}

bool producer_table_put(producer_table *t, const known_producer *producer) {
    if ((t->count + 1) * 2 > t->capacity && !grow(t)) return false;
    known_producer *place = &t->slots[place_of(t, producer->id)];
    t->count += place->id == 0;
    *place = *producer;
    return true;
}

void producer_table_drop(producer_table *t, uint64_t id) {
    if (producer_table_find(t, id) == NULL) return;
    uint32_t mask = t->capacity - 1, at = place_of(t, id);
    t->slots[at].id = 0;
    t->count--;
    for (uint32_t next = (at + 1) & mask; t->slots[next].id != 0; next = (next + 1) & mask) { /* close the gap */
        known_producer moved = t->slots[next];
        t->slots[next].id = 0;
        t->slots[place_of(t, moved.id)] = moved;
    }
}

void producer_table_free(producer_table *t) {
    free(t->slots);
    *t = (producer_table){0};
}
