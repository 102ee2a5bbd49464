/* Plain bytes of compressed segments. */
#include "log/unpacked.h"

#include "base/assert.h"

#include <stdlib.h>

void unpacked_open(unpacked_cache *c) { *c = (unpacked_cache){.bytes_max = UNPACKED_BYTES_MAX}; }

static void take_out(unpacked_run *r) {
    unpacked_cache *c = r->cache;
    *(r->newer != NULL ? &r->newer->older : &c->newest) = r->older;
    *(r->older != NULL ? &r->older->newer : &c->oldest) = r->newer;
    r->newer = r->older = NULL;
}

static void put_first(unpacked_run *r) {
    unpacked_cache *c = r->cache;
    r->older = c->newest;
    *(r->older != NULL ? &r->older->newer : &c->oldest) = r;
    c->newest = r;
}

static void drop(unpacked_run *r) {
    take_out(r);
    r->cache->bytes -= r->length;
    if (r->readers == 0) free(r);
    else r->dropped = true;
}

/* All but the newest one, which was made for somebody who asks right now. */
static void trim(unpacked_cache *c) {
    for (unpacked_run *r = c->oldest, *newer; r != NULL && r != c->newest && c->bytes > c->bytes_max; r = newer) {
        newer = r->newer;
        if (r->readers == 0) drop(r);
    }
}

void unpacked_close(unpacked_cache *c) {
    for (unsigned i = 0; i < UNPACKED_FETCHES_MAX; i++)
        if (c->running[i] != NULL) c->abandon(c->running[i]);
    while (c->newest != NULL) drop(c->newest);
}

uint64_t unpacked_segment(unpacked_cache *c) { return ++c->segments; }

unpacked_run *unpacked_find(unpacked_cache *c, uint64_t segment, uint64_t position, uint64_t length) {
    for (unpacked_run *r = c->newest; r != NULL; r = r->older) {
        if (r->segment != segment || position < r->position || position - r->position > r->length ||
            length > r->length - (position - r->position))
            continue;
        take_out(r);
        put_first(r);
        c->hits++;
        return r;
    }
    return NULL;
}

unpacked_run *unpacked_make(unpacked_cache *c, uint64_t segment, uint64_t position, uint64_t length) {
    unpacked_run *r = malloc(sizeof *r + length);
    if (r != NULL) *r = (unpacked_run){.cache = c, .segment = segment, .position = position, .length = length};
    return r;
}

void unpacked_keep(unpacked_run *r) {
    put_first(r);
    r->cache->bytes += r->length;
    trim(r->cache);
}

void unpacked_read_end(unpacked_run *r) {
    ASSERT(r->readers > 0);
    if (--r->readers > 0) return;
    if (r->dropped) free(r);
    else trim(r->cache);
}
