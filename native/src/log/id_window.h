/* The ids of the last messages of a partition, for who sends a message again (docs/adr/0070-deduplication.md): at most
 * `entries_max` of them, none older than `age_us`. Exact: an id is found if and only if it is one of these.
 *
 * Entries stand in a ring in the order of their messages, 24 bytes each, and have numbers in that order, modulo 2^22. A
 * table finds them by a hash whose key nobody outside knows, so that chosen ids do not collide. Its buckets are lines
 * of the cache: an id costs one line, known or new (docs/adr/0102-a-line-for-an-id.md). A bucket is a ring itself: its
 * oldest slot gets the next id that begins there, if the entry in it has left the window. Else that id goes to the next
 * bucket, and the head of this one says so, for as long as it is in the window. Who leaves the window is not looked
 * for: a number below those of the window is a free slot. One bucket for every few ids is swept before such a number
 * comes again.
 *
 * That is 36 bytes an id at most when the window is full: at most two thirds of the words of the table are used. Both
 * grow by doubling up to GROW_MAX entries, and then at once to the whole: no send waits for the move of more. One
 * account bounds all windows of a worker. Loop thread only. */
#ifndef SHARDD_ID_WINDOW_H
#define SHARDD_ID_WINDOW_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ID_WINDOW_ENTRIES_MAX ((1u << 21) - 2) /* half of the numbers: the others are free slots */
#define ID_BUCKET_WORDS 16u

typedef struct id_memory { /* of all windows of a worker */
    uint64_t used_bytes, bytes_max;
    uint64_t key[2]; /* of the hash */
} id_memory;

typedef struct id_entry {
    uint64_t id[2];
    uint64_t time_us;
} id_entry;

typedef uint32_t id_words __attribute__((vector_size(16)));

typedef union id_bucket { /* a line of the cache */
    /* The first one is the head. Bits 0 to 21: number of the last entry that had no room here; 22 to 25: the oldest
     * slot. The others are slots. Bits 0 to 21: number of the entry; 22 to 31: of its hash. */
    uint32_t words[ID_BUCKET_WORDS];
    id_words fours[ID_BUCKET_WORDS / 4];
} id_bucket;

typedef struct id_window {
    id_memory *memory;
    uint64_t entries_max, age_us;
    id_entry *ring;
    id_bucket *table;
    void *table_block;       /* that was allocated, a line more */
    uint32_t capacity, mask; /* entries of the ring; buckets - 1 */
    uint32_t first, count;   /* oldest entry, entries */
    uint32_t first_number;   /* of the oldest entry */
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
/* What the calls below want of an id. After this its bucket is on its way into the cache: many hashes first, then what
 * they are for, is several times as fast as one id after the other. */
uint32_t id_window_hash(const id_window *w, const uint64_t id[2]);
/* The same for the places of the next `more` entries in the ring. */
void id_window_prepare(const id_window *w, uint32_t more);
bool id_window_has(const id_window *w, const uint64_t id[2], uint32_t hash, uint64_t now_us);
/* With room reserved. False: it has this id, and nothing has changed; `again`: it enters all the same. */
bool id_window_add(id_window *w, const uint64_t id[2], uint32_t hash, uint64_t time_us, bool again);
/* The newest `count` were not stored in the end. What had left for them does not come back. */
void id_window_take_back(id_window *w, uint64_t count);
#endif
