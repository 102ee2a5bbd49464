/* Plain bytes of compressed segments that were unpacked, of one worker: what polls read now, and what they may read
 * next. A run is a few blocks of one segment, one after the other. What nobody reads is dropped, the least recently
 * used first, as soon as all runs together are larger than the bound.
 * Single-threaded. Knows no segments: they have numbers that are never used twice. */
#ifndef SHARDD_UNPACKED_H
#define SHARDD_UNPACKED_H
#include <stdbool.h>
#include <stdint.h>

#include "io/io.h"

#define UNPACKED_BYTES_MAX (16u << 20) /* kept; more only while polls read them */
#define UNPACKED_FETCHES_MAX 8u        /* at once; others stand in line */

typedef struct unpacked_run {
    struct unpacked_run *newer, *older;
    struct unpacked_cache *cache;
    uint64_t segment, position, length; /* of the plain log */
    uint32_t readers;
    bool dropped; /* the last reader frees it */
    uint8_t bytes[];
} unpacked_run;

typedef struct unpacked_cache {
    io *io; /* NULL: whoever needs something waits for the device (tools, tests) */
    unpacked_run *newest, *oldest;
    uint64_t bytes, bytes_max;
    uint64_t segments;                                      /* numbers given */
    struct compressed_fetch *first, *last;                  /* fetches that stand in line */
    struct compressed_fetch *running[UNPACKED_FETCHES_MAX]; /* NULL: a free place */
    void (*abandon)(struct compressed_fetch *f);            /* frees one that will never complete */
    uint64_t hits, blocks;                                  /* asked for and here; unpacked */
} unpacked_cache;

void unpacked_open(unpacked_cache *c);
void unpacked_close(unpacked_cache *c);       /* nobody reads any more */
uint64_t unpacked_segment(unpacked_cache *c); /* a number for one more; not 0 */
/* The run that holds all of [position, position + length); NULL: none does. */
unpacked_run *unpacked_find(unpacked_cache *c, uint64_t segment, uint64_t position, uint64_t length);
/* Memory for one, not in the cache yet: `unpacked_keep` or free(). NULL: none. */
unpacked_run *unpacked_make(unpacked_cache *c, uint64_t segment, uint64_t position, uint64_t length);
void unpacked_keep(unpacked_run *r); /* it is the newest one */
static inline void unpacked_read(unpacked_run *r) { r->readers++; }
void unpacked_read_end(unpacked_run *r);
#endif
