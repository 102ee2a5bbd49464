/* See id_window.h. */
#include "log/id_window.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#define CAPACITY_FIRST 64u
#define GROW_MAX 65536u
#define NUMBER_BITS 22u
#define NUMBER_MASK ((1u << NUMBER_BITS) - 1)
#define SLOTS (ID_BUCKET_WORDS - 1)
#define SWEEP_EVERY 8u /* ids: all buckets within half of the numbers */
#define LINE_BYTES 64u
#define LINE_ENTRIES (LINE_BYTES / sizeof(id_entry)) /* and a part */
_Static_assert(sizeof(id_bucket) == LINE_BYTES, "a bucket is one cache line");

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

/* ---- numbers ---- */

static inline uint32_t place(const id_window *w, uint32_t number) { /* of the number-th entry from the oldest */
    uint64_t at = (uint64_t)w->first + number;
    return (uint32_t)(at < w->capacity ? at : at - w->capacity);
}

/* How far the entry in a slot is from the oldest one; `count` and more: it has left, the slot is free. */
static inline uint32_t rank(const id_window *w, uint32_t word) { return (word - w->first_number) & NUMBER_MASK; }

static inline uint32_t left_last(const id_window *w) { return (w->first_number - 1) & NUMBER_MASK; }

static void drop_oldest(id_window *w, uint32_t count) {
    w->first = place(w, count);
    w->first_number = (w->first_number + count) & NUMBER_MASK;
    w->count -= count;
}

/* ---- buckets ---- */

static inline uint32_t tag_of(uint32_t hash) { return hash & ~NUMBER_MASK; }

static inline uint32_t oldest_in(const id_bucket *b) { return 1 + (b->words[0] >> NUMBER_BITS); }

static inline uint32_t next_in_turn(uint32_t slot) { return slot < SLOTS ? slot + 1 : 1; }

static inline uint32_t last_in_turn(uint32_t slot) { return slot > 1 ? slot - 1 : SLOTS; }

static inline void set_oldest(id_bucket *b, uint32_t slot) {
    b->words[0] = (slot - 1) << NUMBER_BITS | (b->words[0] & NUMBER_MASK);
}

static inline void note_full(id_bucket *b, uint32_t number) { b->words[0] = tag_of(b->words[0]) | number; }

/* An entry that is in the window had no room here. Those that were taken back may have had none after it: what is ahead
 * of the window counts, too. */
static inline bool goes_on(const id_window *w, const id_bucket *b) {
    return rank(w, b->words[0]) <= ID_WINDOW_ENTRIES_MAX;
}

/* Whether any slot has this part of a hash; the head may look like one. */
static inline bool has_tag(const id_bucket *b, uint32_t tag) {
    id_words hits = {0};
    for (uint32_t i = 0; i < ID_BUCKET_WORDS / 4; i++) hits |= (id_words)((b->fours[i] ^ tag) >> NUMBER_BITS == 0);
    return (hits[0] | hits[1] | hits[2] | hits[3]) != 0;
}

/* The slot that has the id; 0: none. */
static __attribute__((noinline)) uint32_t slot_with(const id_window *w, const id_bucket *b, const uint64_t id[2],
                                                    uint32_t tag) {
    for (uint32_t slot = 1; slot <= SLOTS; slot++) {
        uint32_t number = rank(w, b->words[slot]);
        if (tag_of(b->words[slot]) != tag || number >= w->count) continue;
        const id_entry *e = &w->ring[place(w, number)];
        if (e->id[0] == id[0] && e->id[1] == id[1]) return slot;
    }
    return 0;
}

/* The same of the table, and its bucket. */
static inline uint32_t find(const id_window *w, const uint64_t id[2], uint32_t hash, uint32_t *bucket) {
    for (uint32_t looked = 0, at = hash & w->mask; looked <= w->mask; looked++, at = (at + 1) & w->mask) {
        const id_bucket *b = &w->table[at];
        uint32_t slot = has_tag(b, tag_of(hash)) ? slot_with(w, b, id, tag_of(hash)) : 0;
        *bucket = at;
        if (slot != 0) return slot;
        if (!goes_on(w, b)) break;
    }
    return 0;
}

/* More slots than entries: one of them is free. */
static inline void enter(id_window *w, uint32_t hash, uint32_t number) {
    id_bucket *b = &w->table[hash & w->mask];
    while (rank(w, b->words[oldest_in(b)]) < w->count) {
        note_full(b, number);
        b = b < &w->table[w->mask] ? b + 1 : w->table;
    }
    uint32_t slot = oldest_in(b);
    b->words[slot] = tag_of(hash) | number;
    set_oldest(b, next_in_turn(slot));
}

/* A slot becomes the newest of its bucket. */
static __attribute__((noinline)) void renew(id_window *w, uint32_t hash, uint32_t number, uint32_t bucket,
                                            uint32_t slot) {
    for (uint32_t at = hash & w->mask; at != bucket; at = (at + 1) & w->mask) note_full(&w->table[at], number);
    id_bucket *b = &w->table[bucket];
    uint32_t newest = last_in_turn(oldest_in(b));
    for (; slot != newest; slot = next_in_turn(slot)) b->words[slot] = b->words[next_in_turn(slot)];
    b->words[newest] = tag_of(hash) | number;
}

/* Numbers that have left become the last one that has, so that none comes again before it is gone. */
static void sweep(id_window *w, id_bucket *b) {
    uint32_t last = left_last(w);
    if (!goes_on(w, b)) note_full(b, last);
    for (uint32_t slot = 1; slot <= SLOTS; slot++)
        b->words[slot] = rank(w, b->words[slot]) < w->count ? b->words[slot] : last;
}

static uint64_t bytes_of(uint32_t capacity, uint32_t mask) {
    return (uint64_t)capacity * sizeof(id_entry) + ((uint64_t)mask + 2) * sizeof(id_bucket);
}

static void give_back(id_window *w) {
    if (w->capacity > 0) w->memory->used_bytes -= bytes_of(w->capacity, w->mask);
    free(w->ring);
    free(w->table_block);
    w->ring = NULL;
    w->table = NULL;
    w->table_block = NULL;
    w->capacity = w->mask = w->first = w->count = 0;
}

static bool resize(id_window *w, uint32_t capacity) {
    uint32_t buckets = CAPACITY_FIRST / ID_BUCKET_WORDS;
    while ((uint64_t)buckets * ID_BUCKET_WORDS * 2 < (uint64_t)capacity * 3) buckets *= 2;
    uint64_t bytes = bytes_of(capacity, buckets - 1);
    if (bytes > w->memory->bytes_max - w->memory->used_bytes) return false;
    id_window larger = *w;
    larger.ring = malloc((size_t)capacity * sizeof *larger.ring);
    larger.table_block = calloc((size_t)buckets + 1, sizeof *larger.table); /* a large one is cleared as it is used */
    if (larger.ring == NULL || larger.table_block == NULL) {
        free(larger.ring);
        free(larger.table_block);
        return false;
    }
    larger.table = (id_bucket *)(((uintptr_t)larger.table_block + LINE_BYTES - 1) & ~(uintptr_t)(LINE_BYTES - 1));
    larger.capacity = capacity;
    larger.mask = buckets - 1;
    larger.first = larger.count = 0;
    larger.first_number = 1;
    larger.memory->used_bytes += bytes;
    for (uint32_t i = 0; i < w->count; i++) {
        const id_entry *e = &w->ring[place(w, i)];
        id_window_add(&larger, e->id, hash_of(w, e->id), e->time_us, true);
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
    if (w->count > entries_max) drop_oldest(w, w->count - (uint32_t)entries_max);
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
    while (most-- > 0 && is_old(w, &w->ring[w->first], now_us)) drop_oldest(w, 1);
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
    uint64_t at = (uint64_t)w->first + w->count;
    for (uint32_t i = 0; i < more && i < w->capacity; i += LINE_ENTRIES, at += LINE_ENTRIES) {
        while (at >= w->capacity) at -= w->capacity;
        __builtin_prefetch(&w->ring[at], 1);
    }
}

bool id_window_has(const id_window *w, const uint64_t id[2], uint32_t hash, uint64_t now_us) {
    uint32_t bucket;
    if (w->count == 0) return false;
    uint32_t slot = find(w, id, hash, &bucket);
    return slot != 0 && !is_old(w, &w->ring[place(w, rank(w, w->table[bucket].words[slot]))], now_us);
}

bool id_window_add(id_window *w, const uint64_t id[2], uint32_t hash, uint64_t time_us, bool again) {
    uint32_t bucket, slot = find(w, id, hash, &bucket);
    if (slot != 0 && !again && !is_old(w, &w->ring[place(w, rank(w, w->table[bucket].words[slot]))], time_us))
        return false;
    if (w->count == w->entries_max) drop_oldest(w, 1);
    ASSERT(w->count < w->capacity);
    uint32_t number = (w->first_number + w->count) & NUMBER_MASK;
    if (number % SWEEP_EVERY == 0) sweep(w, &w->table[number / SWEEP_EVERY & w->mask]);
    w->ring[place(w, w->count)] = (id_entry){.id = {id[0], id[1]}, .time_us = time_us};
    if (slot == 0) enter(w, hash, number);
    else renew(w, hash, number, bucket, slot);
    w->count++;
    return true;
}

static void take_back_newest(id_window *w) {
    uint32_t number = (w->first_number + --w->count) & NUMBER_MASK;
    uint32_t at = hash_of(w, w->ring[place(w, w->count)].id) & w->mask;
    for (uint32_t looked = 0; looked <= w->mask; looked++, at = (at + 1) & w->mask) {
        id_bucket *b = &w->table[at];
        uint32_t slot = last_in_turn(oldest_in(b));
        if ((b->words[slot] & NUMBER_MASK) == number) {
            b->words[slot] = left_last(w);
            set_oldest(b, slot);
            return;
        }
        if (!goes_on(w, b)) return; /* its slot has become that of a newer one with the same id, which is gone */
    }
}

void id_window_take_back(id_window *w, uint64_t count) {
    for (; count > 0 && w->count > 0; count--) take_back_newest(w);
}
