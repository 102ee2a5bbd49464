/* See output.h. */
#include "core/output.h"

#define OUTPUT_POOL_PART 2u       /* windows and answers of Python take at most one part of the pool in so many */
#define SMALL_OUTPUT_POOL_PART 8u /* beside it, for small ones */
#define MADE_OUTPUT_POOL_PART 16u /* and for what is made of a window */

static uint64_t budget(const core *k) { return pool_capacity(k->pool) / OUTPUT_POOL_PART; }

bool output_fits(const core *k, size_t bytes) { return k->output.bytes == 0 || k->output.bytes + bytes <= budget(k); }

/* All windows together leave the rest of the pool to what comes in; one alone may be as large as it has to. */
uint8_t *output_allocate(core *k, size_t bytes, bool small) {
    uint64_t most = budget(k) + (small ? pool_capacity(k->pool) / SMALL_OUTPUT_POOL_PART : 0);
    uint8_t *block = NULL;
    if (k->output.bytes == 0 || k->output.bytes + bytes <= most) block = pool_alloc(k->pool, bytes);
    if (block == NULL) k->output.refused = true;
    else k->output.bytes += pool_block_size(k->pool, block);
    return block;
}

void output_free(core *k, uint8_t *block) {
    if (block == NULL) return;
    k->output.bytes -= pool_block_size(k->pool, block);
    pool_free(k->pool, block);
}

uint8_t *output_allocate_beside(core *k, size_t bytes) {
    uint64_t most = pool_capacity(k->pool) / MADE_OUTPUT_POOL_PART;
    uint8_t *block = NULL;
    if (k->output.made_bytes == 0 || k->output.made_bytes + bytes <= most) block = pool_alloc(k->pool, bytes);
    if (block == NULL) k->output.refused = true;
    else k->output.made_bytes += pool_block_size(k->pool, block);
    return block;
}

void output_free_beside(core *k, uint8_t *block) {
    if (block == NULL) return;
    k->output.made_bytes -= pool_block_size(k->pool, block);
    pool_free(k->pool, block);
}

bool output_is_plenty(const core *k) { return k->output.bytes < budget(k) / 2; }

void output_look(core *k, bool waits) {
    k->output.contended = k->output.refused || waits || k->output.bytes > budget(k);
    k->output.refused = false;
    links_mark_output_contended(&k->links, k->output.contended);
}
