/* The ids of the last messages of a partition, for who sends a message again (docs/adr/0070-deduplication.md): at most
 * `entries_max` of them, none older than `age_us`. Exact: an id is found if and only if it is one of these.
 *
 * Entries stand in a ring in the order of their messages, 24 bytes each; a table of places in it, at most two thirds
 * full, finds them by a hash whose key nobody outside knows, so that chosen ids do not collide. That is 36 bytes an id
 * at most when the window is full. A slot of the table says how far it is from where the hash begins, and has some bits
 * of it, so that nearly nothing is looked at in the ring but the id itself. Both grow by doubling up to GROW_MAX
 * entries, and then at once to the whole: no send waits for the move of more. One account bounds all windows of a
 * worker. Loop thread only. */
#ifndef SHARDD_ID_WINDOW_H
#define SHARDD_ID_WINDOW_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ID_WINDOW_ENTRIES_MAX ((1u << 21) - 2) /* what a slot of the table can say */

typedef struct id_memory { /* of all windows of a worker */
    uint64_t used_bytes, bytes_max;
    uint64_t key[2]; /* of the hash */
} id_memory;

typedef struct id_entry {
    uint64_t id[2];
    uint64_t time_us;
} id_entry;

typedef struct id_window {
    id_memory *memory;
    uint64_t entries_max, age_us;
    id_entry *ring;
    uint32_t *table; /* bits 0 to 20: place in the ring + 1, 0: free; 21 to 26: distance, 63 or more; 27 to 31: hash */
    uint32_t capacity, mask;
    uint32_t first, count; /* oldest entry, entries */
} id_window;

int id_memory_open(id_memory *m, uint64_t bytes_max); /* 0 or -1 and errno */
/* An empty window. It takes memory with its first entry. */
void id_window_open(id_window *w, id_memory *memory, uint64_t entries_max, uint64_t age_us);
void id_window_free(id_window *w);
/* New bounds; what is outside of them leaves. False: no memory now, nothing has changed. */
bool id_window_change(id_window *w, uint64_t entries_max, uint64_t age_us);
/* Up to `most` entries that are too old at `now_us` leave; where all are, the window gives its memory back. Those that
 * stay are not found any more. */
void id_window_expire(id_window *w, uint64_t now_us, uint32_t most);
/* Room for `more` entries; the oldest will leave when there are too many. False: no memory. */
bool id_window_reserve(id_window *w, uint64_t more);
/* What the other two calls want of an id. After this the table is on its way into the cache: a few hashes first, then
 * what they are for, is several times as fast as one id after the other. */
uint32_t id_window_hash(const id_window *w, const uint64_t id[2]);
/* The same for those that leave when `more` are added. */
void id_window_prepare(const id_window *w, uint32_t more);
bool id_window_has(const id_window *w, const uint64_t id[2], uint32_t hash, uint64_t now_us);
/* With room reserved. */
void id_window_add(id_window *w, const uint64_t id[2], uint32_t hash, uint64_t time_us);
/* The newest `count` were not stored in the end. What had left for them does not come back. */
void id_window_take_back(id_window *w, uint64_t count);
#endif
