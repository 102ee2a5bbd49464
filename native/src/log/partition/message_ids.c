/* See message_ids.h. */
#include "log/partition/message_ids.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "log/expiry_clock.h"

#include <stdlib.h>
#include <string.h>

#define EXPIRE_STEP 1024u /* ids that leave for their age in one step, or twice what comes */
#define LOADED_BYTES 24u

bool message_ids_set_window(message_ids *ids, id_memory *memory, uint64_t entries_max, uint64_t age_us) {
    if (entries_max == 0) {
        if (ids->window != NULL) id_window_free(ids->window);
        free(ids->window);
        ids->window = NULL;
        return true;
    }
    if (ids->window != NULL) return id_window_change(ids->window, entries_max, age_us);
    ids->window = malloc(sizeof *ids->window);
    if (ids->window == NULL) return false;
    id_window_open(ids->window, memory, entries_max, age_us);
    return true;
}

bool message_ids_load(message_ids *ids, expiry_clock *clock, const uint8_t *entries, size_t count) {
    id_window *w = ids->window;
    ASSERT(w != NULL && clock != NULL);
    if (!id_window_reserve(w, count)) return false;
    uint32_t hashes[ID_GROUP_MAX];
    uint64_t now = expiry_clock_now(clock), steady = expiry_clock_steady(clock);
    for (size_t first = 0, end; first < count; first = end) {
        end = count - first < ID_GROUP_MAX ? count : first + ID_GROUP_MAX;
        for (size_t i = first; i < end; i++) {
            const uint64_t id[2] = {load_u64(entries + i * LOADED_BYTES), load_u64(entries + i * LOADED_BYTES + 8)};
            hashes[i - first] = id_window_hash(w, id);
        }
        for (size_t i = first; i < end; i++) {
            const uint8_t *entry = entries + i * LOADED_BYTES;
            const uint64_t id[2] = {load_u64(entry), load_u64(entry + 8)};
            uint64_t time_us = expiry_clock_steady_at(clock, load_u64(entry + 16), now, steady);
            id_window_add(w, id, hashes[i - first], time_us, true);
        }
    }
    return true;
}

void message_ids_expire(message_ids *ids, uint64_t now_us) {
    if (ids->window != NULL) id_window_expire(ids->window, now_us, 0);
}

bool message_ids_reserve(message_ids *ids, uint64_t count, uint64_t now_us) {
    if (ids->window == NULL) return true;
    uint64_t leave = count * 2 > EXPIRE_STEP ? count * 2 : EXPIRE_STEP;
    id_window_expire(ids->window, now_us, leave < UINT32_MAX ? (uint32_t)leave : UINT32_MAX);
    return id_window_reserve(ids->window, count);
}

static uint64_t size_of(const uint8_t *record) {
    return (uint64_t)RECORD_HEADER_SIZE + load_u32(record + 48) + load_u32(record + 52);
}

/* The next group: of this batch, and of those behind it. */
static void look_ahead(message_ids *ids, const append_batch *b, size_t behind, const id_filter *f, uint32_t most,
                       id_group *g) {
    uint64_t at = f->read_bytes;
    uint32_t read = f->read;
    g->count = g->used = 0;
    if (most > ID_GROUP_MAX) most = ID_GROUP_MAX;
    for (;; b++, behind--, at = 0, read = 0) {
        for (; read < b->count && g->count < most; read++, g->count++) {
            uint8_t *record = b->messages + at;
            at += size_of(record);
            g->fresh[g->count] = load_u64(record + 8) == 0 && load_u64(record + 16) == 0;
            if (g->fresh[g->count]) id_source_write(ids->source, record + 8);
            const uint64_t id[2] = {load_u64(record + 8), load_u64(record + 16)};
            if (ids->window != NULL) g->hashes[g->count] = id_window_hash(ids->window, id);
        }
        if (behind == 0 || g->count == most) break;
    }
    if (ids->window != NULL)
        id_window_prepare(ids->window, g->count + 1); /* the next batch looks how old the oldest is */
}

static void filter_group(message_ids *ids, append_batch *b, id_filter *f, id_group *g, uint32_t most,
                         uint64_t time_us) {
    id_window *w = ids->window;
    for (; most > 0 && f->read < b->count && g->used < g->count; most--, f->read++, g->used++) {
        uint8_t *record = b->messages + f->read_bytes;
        uint64_t size = size_of(record);
        const uint64_t id[2] = {load_u64(record + 8), load_u64(record + 16)};
        f->read_bytes += size;
        if (w != NULL && !id_window_add(w, id, g->hashes[g->used], time_us, g->fresh[g->used])) continue;
        if (f->read_bytes - size != f->kept_bytes) memmove(b->messages + f->kept_bytes, record, size);
        f->kept_bytes += size;
        f->kept++;
    }
}

bool message_ids_filter(message_ids *ids, append_batch *b, size_t behind, id_filter *f, id_group *g, uint32_t most,
                        uint64_t now_us) {
    while (most > 0 && f->read < b->count) {
        uint32_t before = f->read;
        if (g->used == g->count) look_ahead(ids, b, behind, f, most, g);
        filter_group(ids, b, f, g, most, now_us);
        most -= f->read - before;
    }
    if (f->read < b->count) return false;
    b->length = f->kept_bytes;
    b->count = f->kept;
    return true;
}

void message_ids_take_back(message_ids *ids, uint64_t count) {
    if (ids->window != NULL) id_window_take_back(ids->window, count);
}

bool message_ids_hold(message_ids *ids, uint64_t steady_us, uint64_t next_offset, uint64_t end) {
    if (ids->window == NULL) return false;
    id_window_expire(ids->window, steady_us, EXPIRE_STEP);
    return next_offset - ids->window->count < end && ids->window->count > 0;
}
