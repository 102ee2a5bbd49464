/* See producers.h: the state machine. Memory: producers_table.c, the file: producers_file.c. */
#include "log/producers.h"

#include "base/status.h"
#include "log/producers_file.h"
#include "log/producers_table.h"

void producers_free(producers *p) {
    if (p->memory == NULL) return;
    producers_clear(p);
    producers_file_close(p);
}

static producer_slot slot_of(const producer_entry *e, const producer_batch *b, uint64_t first, uint32_t count) {
    return (producer_slot){.sequence = b->sequence,
                           .first_offset = first,
                           .count = count,
                           .epoch = b->epoch,
                           .running = e->running,
                           .digest = b->digest};
}

/* Of a batch that is stored. */
static produced duplicate(const producer_entry *e, const producer_batch *b) {
    for (uint32_t i = 0; i < PRODUCER_SLOTS; i++) {
        const producer_slot *s = &e->slots[i];
        if (s->epoch != b->epoch || s->sequence != b->sequence) continue;
        bool differs = s->digest != 0 && b->digest != 0 && s->digest != b->digest;
        return (produced){differs ? PRODUCED_DIFFERENT : PRODUCED_DUPLICATE, s->count, s->first_offset, 0};
    }
    return (produced){.kind = PRODUCED_DUPLICATE};
}

/* This slot leaves the file. If no sync is known to have brought it to the device, it was counted for the next one. */
static void overwritten(producers *p, const producer_slot *s) {
    if (s->epoch == UINT32_MAX || s->count == 0) return;
    if (p->proven == UINT64_MAX || s->first_offset + s->count > p->proven) p->counted += PRODUCERS_UNCOUNTED;
}

uint32_t producers_judge(producers *p, const producer_batch *b, produced *out) {
    producer_entry *e = producers_find(p, b->producer);
    *out = (produced){.kind = PRODUCED_STORED};
    if (e != NULL && b->epoch < e->epoch) {
        *out = (produced){.kind = PRODUCED_STALE, .count = e->epoch};
    } else if (p->lost || (e == NULL && (b->begun <= p->barrier || b->sequence > 0))) {
        *out = (produced){.kind = PRODUCED_UNKNOWN};
    } else if (e == NULL) {
        if (producers_enter(p, b->producer) == NULL) return STATUS_FEATURE_UNAVAILABLE;
        producers_begin_epoch(producers_find(p, b->producer), b->epoch);
    } else {
        if (b->epoch > e->epoch) {
            for (uint32_t i = 0; i < PRODUCER_SLOTS; i++) overwritten(p, &e->slots[i]);
            producers_begin_epoch(e, b->epoch);
        }
        if (b->sequence < e->next) *out = duplicate(e, b);
        else if (b->sequence > e->next) *out = (produced){.kind = PRODUCED_GAP, .first = e->next};
    }
    return 0;
}

uint32_t producers_write(producers *p, const producer_batch *b, uint64_t first, uint32_t count) {
    producer_entry *e = producers_find(p, b->producer);
    producer_slot s = slot_of(e, b, first, count);
    return producers_file_put(p, e, &s) == 0 ? 0 : (uint32_t)STATUS_CANNOT_WRITE_TO_FILE;
}

void producers_stored(producers *p, const producer_batch *b, uint64_t first, uint32_t count) {
    producer_entry *e = producers_find(p, b->producer);
    producer_slot s = slot_of(e, b, first, count);
    overwritten(p, &e->slots[e->running % PRODUCER_SLOTS]);
    producers_take(e, &s);
    producers_count(p, count);
}

bool producers_failed(producers *p, const producer_batch *b) {
    producer_entry *e = producers_find(p, b->producer);
    const producer_slot *before = &e->slots[e->running % PRODUCER_SLOTS];
    producer_slot none = {.running = e->running, .epoch = UINT32_MAX};
    p->counted += PRODUCERS_UNCOUNTED;
    p->lost |= producers_file_put(p, e, before->epoch != UINT32_MAX ? before : &none) != 0;
    return !p->lost;
}

void producers_sweep(producers *p, bool (*is_known)(void *context, uint64_t producer), void *context) {
    for (uint32_t i = 0; i < p->capacity;) {
        producer_entry *e = p->table[i];
        if (e == NULL || is_known(context, e->producer)) {
            i++;
            continue;
        }
        producers_file_drop(p, e);
        producers_forget(p, e); /* another one may be here now */
    }
}
