/* See producer_guard.h. */
#include "log/partition/producer_guard.h"

#include <errno.h>
#include <stdlib.h>

static producers *make(const producer_guard *g, const log_files *files, file_cache *cache, bool durable) {
    producers *made = malloc(sizeof *made);
    if (made == NULL) return NULL;
    *made = (producers){.incarnation = files->incarnation,
                        .barrier = g->unproduced ? 0 : g->memory->barrier,
                        .covered = UINT64_MAX,
                        .proven = UINT64_MAX,
                        .fd = -1,
                        .durable = durable,
                        .memory = g->memory,
                        .disk = files->disk,
                        .files = cache,
                        .directory = files->directory};
    return made;
}

int guard_open(producer_guard *g, const log_files *files, file_cache *cache, uint64_t next_offset, bool durable) {
    producers *found = make(g, files, cache, durable);
    int error = found == NULL || producers_open(found, next_offset) != 0 ? errno : 0;
    if (error == 0 && found->exists) {
        g->known = found;
        return 0;
    }
    if (found != NULL) producers_free(found);
    free(found);
    return error;
}

void guard_free(producer_guard *g) {
    if (g->known != NULL) producers_free(g->known);
    free(g->known);
    g->known = NULL;
}

bool guard_begin(producer_guard *g, const log_files *files, file_cache *cache, bool durable) {
    if (g->known == NULL && g->memory != NULL) g->known = make(g, files, cache, durable);
    return g->known != NULL;
}

size_t guard_note(producer_guard *g, const append_batch *batches, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const append_batch *b = &batches[i];
        bool noted = b->by.producer == 0 || producers_write(g->known, &b->by, b->first_offset, b->count) == 0;
        if (!noted) return i;
    }
    return count;
}

bool guard_unnote(producer_guard *g, const append_batch *batches, size_t count, bool stays) {
    bool gone = true;
    while (count-- > 0) {
        const append_batch *b = &batches[count];
        if (b->by.producer != 0 && (stays || !producers_failed(g->known, &b->by))) gone = false;
    }
    return gone;
}

void guard_keep(producer_guard *g, const append_batch *batches, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const append_batch *b = &batches[i];
        if (b->by.producer != 0) producers_stored(g->known, &b->by, b->first_offset, b->count);
    }
}

bool guard_collect(producer_guard *g, sync_collection *c, uint64_t end, bool durable) {
    producers *known = g->known;
    if (known == NULL) return true;
    if (!producers_cover(known, end, durable) && durable) {
        c->failed |= file_error_poisons(errno); /* no answer is given that the file does not cover */
        return false;
    }
    if (!known->dirty) return true;
    if (c->count == c->max || !sync_collect(c, producers_duplicate(known))) return false;
    known->dirty = false;
    return !known->directory_dirty;
}
