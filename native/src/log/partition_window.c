/* No message twice: what a partition knows of the ids of its last messages (id_window.h), and the batches that go
 * through it. A partition without a window pays nothing. */
#include "log/partition_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define EXPIRE_STEP 1024u /* ids that leave for their age in one step, or twice what comes */
#define LOADED_BYTES 24u

bool partition_has_window(const partition *p) { return p->window != NULL; }

bool partition_set_window(partition *p, id_memory *memory, uint64_t entries_max, uint64_t age_us) {
    if (entries_max == 0) {
        if (p->window != NULL) id_window_free(p->window);
        free(p->window);
        p->window = NULL;
        return true;
    }
    if (p->window != NULL) return id_window_change(p->window, entries_max, age_us);
    p->window = malloc(sizeof *p->window);
    if (p->window == NULL) return false;
    id_window_open(p->window, memory, entries_max, age_us);
    return true;
}

bool partition_load_window(partition *p, const uint8_t *entries, size_t count) {
    id_window *w = p->window;
    ASSERT(w != NULL);
    if (!id_window_reserve(w, count)) return false;
    for (size_t i = 0; i < count; i++, entries += LOADED_BYTES) {
        uint64_t id[2] = {load_u64(entries), load_u64(entries + 8)};
        id_window_add(w, id, load_u64(entries + 16));
    }
    return true;
}

/* The clock of records, which never falls. */
static uint64_t time_of(const partition *p, uint64_t now_us) {
    return now_us > p->last_timestamp ? now_us : p->last_timestamp;
}

void partition_expire_ids(partition *p, uint64_t now_us) {
    if (p->window != NULL) id_window_expire(p->window, time_of(p, now_us), 0);
}

bool partition_reserve_ids(partition *p, uint64_t count, uint64_t now_us) {
    if (p->window == NULL) return true;
    uint64_t leave = count * 2 > EXPIRE_STEP ? count * 2 : EXPIRE_STEP;
    id_window_expire(p->window, time_of(p, now_us), leave < UINT32_MAX ? (uint32_t)leave : UINT32_MAX);
    return id_window_reserve(p->window, count);
}

bool partition_filter(partition *p, append_batch *b, id_filter *f, uint32_t most, uint64_t now_us) {
    id_window *w = p->window;
    uint64_t time_us = time_of(p, now_us);
    for (; most > 0 && f->read < b->count; most--, f->read++) {
        uint8_t *record = b->messages + f->read_bytes;
        uint64_t size = (uint64_t)RECORD_HEADER_SIZE + load_u32(record + 48) + load_u32(record + 52);
        f->read_bytes += size;
        uint64_t id[2] = {load_u64(record + 8), load_u64(record + 16)};
        if ((id[0] | id[1]) == 0) {
            id_source_write(p->ids, record + 8);
            id[0] = load_u64(record + 8);
            id[1] = load_u64(record + 16);
        } else if (w != NULL && id_window_has(w, id, time_us)) {
            continue;
        }
        if (w != NULL) id_window_add(w, id, time_us);
        if (f->read_bytes - size != f->kept_bytes) memmove(b->messages + f->kept_bytes, record, size);
        f->kept_bytes += size;
        f->kept++;
    }
    if (f->read < b->count) return false;
    b->length = f->kept_bytes;
    b->count = f->kept;
    return true;
}

void partition_take_back_ids(partition *p, uint64_t count) {
    if (p->window != NULL) id_window_take_back(p->window, count);
}

bool partition_window_holds(partition *p, uint64_t end) {
    if (p->window == NULL) return false;
    id_window_expire(p->window, time_of(p, clock_wall_us()), EXPIRE_STEP);
    return p->next_offset - p->window->count < end && p->window->count > 0;
}
