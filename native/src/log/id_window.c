/* See id_window.h. */
#include "log/id_window.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CAPACITY_FIRST 64u
#define GROW_MAX 65536u
#define PLACE_MASK ((1u << 21) - 1)
#define DISTANCE_SHIFT 21
#define DISTANCE_MAX 63u
#define TAG_SHIFT 27

int id_memory_open(id_memory *m, uint64_t bytes_max) {
    *m = (id_memory){.bytes_max = bytes_max};
    return getrandom(m->key, sizeof m->key, 0) == (ssize_t)sizeof m->key ? 0 : -1;
}

/* ---- SipHash-1-3 of 16 bytes (Aumasson, Bernstein) ---- */

static inline uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

static inline uint32_t hash_of(const id_window *w, const uint64_t id[2]) {
    const uint64_t *key = w->memory->key;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    const uint64_t words[3] = {id[0], id[1], (uint64_t)16 << 56};
    for (int i = 0; i < 3; i++) {
        v[3] ^= words[i];
        sip_round(v);
        v[0] ^= words[i];
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) sip_round(v);
    return (uint32_t)(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

/* ---- ring and table ---- */

static inline uint32_t place(const id_window *w, uint32_t number) { /* of the number-th entry from the oldest */
    uint64_t at = (uint64_t)w->first + number;
    return (uint32_t)(at < w->capacity ? at : at - w->capacity);
}

static inline uint32_t slot_value(uint32_t at, uint32_t distance, uint32_t hash) {
    if (distance > DISTANCE_MAX) distance = DISTANCE_MAX;
    return hash >> TAG_SHIFT << TAG_SHIFT | distance << DISTANCE_SHIFT | (at + 1);
}

static inline uint32_t place_in(uint32_t value) { return (value & PLACE_MASK) - 1; }
static inline uint32_t distance_in(uint32_t value) { return value >> DISTANCE_SHIFT & DISTANCE_MAX; }

/* Where the id stands in the table, or the free slot where it would. */
static inline uint32_t slot_of(const id_window *w, const uint64_t id[2], uint32_t hash) {
    uint32_t slot = hash & w->mask;
    for (uint32_t distance = 0; w->table[slot] != 0; slot = (slot + 1) & w->mask, distance++) {
        uint32_t value = w->table[slot];
        if ((value ^ slot_value(0, distance, hash)) >> DISTANCE_SHIFT != 0) continue;
        const id_entry *e = &w->ring[place_in(value)];
        if (e->id[0] == id[0] && e->id[1] == id[1]) break;
    }
    return slot;
}

/* How far the entry in a slot is from where its hash begins. */
static uint32_t distance_of(const id_window *w, uint32_t slot) {
    uint32_t distance = distance_in(w->table[slot]);
    if (distance < DISTANCE_MAX) return distance;
    return (slot - hash_of(w, w->ring[place_in(w->table[slot])].id)) & w->mask;
}

static void forget(id_window *w, uint32_t at) {
    uint32_t gap = hash_of(w, w->ring[at].id) & w->mask;
    while (w->table[gap] != 0 && place_in(w->table[gap]) != at) gap = (gap + 1) & w->mask;
    if (w->table[gap] == 0) return; /* a newer message has the same id */
    for (uint32_t next = (gap + 1) & w->mask; w->table[next] != 0; next = (next + 1) & w->mask) {
        uint32_t distance = distance_of(w, next), moved = (next - gap) & w->mask;
        if (distance < moved) continue; /* it would stand before its home */
        w->table[gap] = slot_value(place_in(w->table[next]), distance - moved, w->table[next]);
        gap = next;
    }
    w->table[gap] = 0;
}

static void drop_oldest(id_window *w) {
    forget(w, w->first);
    w->first = place(w, 1);
    w->count--;
}

static uint64_t bytes_of(uint32_t capacity, uint32_t mask) {
    return (uint64_t)capacity * sizeof(id_entry) + ((uint64_t)mask + 1) * sizeof(uint32_t);
}

static void give_back(id_window *w) {
    if (w->capacity > 0) w->memory->used_bytes -= bytes_of(w->capacity, w->mask);
    free(w->ring);
    free(w->table);
    w->ring = NULL;
    w->table = NULL;
    w->capacity = w->mask = w->first = w->count = 0;
}

static bool resize(id_window *w, uint32_t capacity) {
    uint32_t slots = CAPACITY_FIRST;
    while ((uint64_t)slots * 2 < (uint64_t)capacity * 3) slots *= 2;
    uint64_t bytes = bytes_of(capacity, slots - 1);
    if (bytes > w->memory->bytes_max - w->memory->used_bytes) return false;
    id_window larger = *w;
    larger.ring = malloc((size_t)capacity * sizeof *larger.ring);
    larger.table = calloc(slots, sizeof *larger.table);
    if (larger.ring == NULL || larger.table == NULL) {
        free(larger.ring);
        free(larger.table);
        return false;
    }
    larger.capacity = capacity;
    larger.mask = slots - 1;
    larger.first = larger.count = 0;
    larger.memory->used_bytes += bytes;
    for (uint32_t i = 0; i < w->count; i++) {
        const id_entry *e = &w->ring[place(w, i)];
        id_window_add(&larger, e->id, hash_of(w, e->id), e->time_us);
    }
    give_back(w);
    *w = larger;
    return true;
}

/* ---- the window ---- */

void id_window_open(id_window *w, id_memory *memory, uint64_t entries_max, uint64_t age_us) {
    ASSERT(entries_max <= ID_WINDOW_ENTRIES_MAX);
    *w = (id_window){.memory = memory, .entries_max = entries_max, .age_us = age_us};
}

void id_window_free(id_window *w) { give_back(w); }

bool id_window_change(id_window *w, uint64_t entries_max, uint64_t age_us) {
    ASSERT(entries_max <= ID_WINDOW_ENTRIES_MAX);
    while (w->count > entries_max) drop_oldest(w);
    if (w->count == 0) give_back(w);
    if (w->capacity > entries_max && !resize(w, (uint32_t)entries_max)) return false;
    w->entries_max = entries_max;
    w->age_us = age_us;
    return true;
}

static bool is_old(const id_window *w, const id_entry *e, uint64_t now_us) {
    return now_us > e->time_us && now_us - e->time_us >= w->age_us;
}

void id_window_expire(id_window *w, uint64_t now_us, uint32_t most) {
    if (w->count == 0) return;
    if (is_old(w, &w->ring[place(w, w->count - 1)], now_us)) {
        give_back(w);
        return;
    }
    while (most-- > 0 && is_old(w, &w->ring[w->first], now_us)) drop_oldest(w);
}

bool id_window_reserve(id_window *w, uint64_t more) {
    uint64_t wanted = w->count + more;
    if (wanted > w->entries_max) wanted = w->entries_max;
    if (wanted <= w->capacity) return true;
    uint64_t capacity = CAPACITY_FIRST;
    while (capacity < wanted && capacity < GROW_MAX) capacity *= 2;
    if (capacity < wanted || capacity > w->entries_max) capacity = w->entries_max;
    return resize(w, (uint32_t)capacity);
}

uint32_t id_window_hash(const id_window *w, const uint64_t id[2]) {
    uint32_t hash = hash_of(w, id);
    if (w->table != NULL) __builtin_prefetch(&w->table[hash & w->mask], 1);
    return hash;
}

void id_window_prepare(const id_window *w, uint32_t more) {
    uint64_t after = (uint64_t)w->count + more;
    if (after <= w->entries_max) return;
    uint64_t leave = after - w->entries_max < w->count ? after - w->entries_max : w->count;
    for (uint32_t i = 0; i < leave; i++) id_window_hash(w, w->ring[place(w, i)].id);
}

bool id_window_has(const id_window *w, const uint64_t id[2], uint32_t hash, uint64_t now_us) {
    if (w->count == 0) return false;
    uint32_t found = w->table[slot_of(w, id, hash)];
    return found != 0 && !is_old(w, &w->ring[place_in(found)], now_us);
}

void id_window_add(id_window *w, const uint64_t id[2], uint32_t hash, uint64_t time_us) {
    if (w->count == w->entries_max) drop_oldest(w);
    ASSERT(w->count < w->capacity);
    uint32_t at = place(w, w->count), slot = slot_of(w, id, hash);
    w->ring[at] = (id_entry){.id = {id[0], id[1]}, .time_us = time_us};
    w->table[slot] = slot_value(at, (slot - hash) & w->mask, hash); /* of the newer one when it is there twice */
    w->count++;
}

void id_window_take_back(id_window *w, uint64_t count) {
    for (; count > 0 && w->count > 0; count--) {
        forget(w, place(w, w->count - 1));
        w->count--;
    }
}
