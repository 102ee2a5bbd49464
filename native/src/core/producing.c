/* See producing.h. */
#include "core/producing.h"

#include "base/status.h"

#define SWEEP_US 1000000

bool producing_allowed(const core *k, uint32_t user_id, const producer_batch *b, produced *out) {
    const known_producer *known = producer_table_find(&k->known_producers, b->producer);
    *out = (produced){.kind = PRODUCED_UNKNOWN};
    return known != NULL && known->user_id == user_id;
}

static uint64_t owner_of(const void *context, uint64_t producer) { /* root is 0 */
    const known_producer *known = producer_table_find(context, producer);
    return known != NULL ? known->user_id : 0;
}

void producing_open(core *k) {
    k->producing.owner_of = owner_of;
    k->producing.context = &k->known_producers;
}

static bool is_known(void *context, uint64_t producer) {
    return producer_table_find(&((core *)context)->known_producers, producer) != NULL;
}

/* Those that the metadata have forgotten give their room back. At most once in a second: there may be many. */
static void sweep(core *k) {
    if (k->producers_swept_us != 0 && k->now_us - k->producers_swept_us < SWEEP_US) return;
    k->producers_swept_us = k->now_us;
    for (uint32_t i = 0; i < k->partitions.capacity; i++)
        if (k->partitions.slots[i] != NULL) partition_sweep_producers(k->partitions.slots[i]->p, is_known, k);
}

bool producing_judge(core *k, owned *target, append_batch *b) {
    const known_producer *known = producer_table_find(&k->known_producers, b->by.producer);
    b->status = 0;
    if (target->removed) {
        b->status = STATUS_PARTITION_NOT_FOUND;
    } else if (known == NULL || b->by.epoch > known->epoch) {
        b->made = (produced){.kind = PRODUCED_UNKNOWN};
    } else if (b->by.epoch < known->epoch) {
        b->made = (produced){.kind = PRODUCED_STALE, .count = known->epoch};
    } else if (partition_level_of(target->p) == LEVEL_MEMORY) {
        b->made = (produced){.kind = PRODUCED_REFUSED};
    } else {
        b->by.begun = known->begun;
        b->status = partition_judge_producer(target->p, b);
        if (b->status == STATUS_FEATURE_UNAVAILABLE) {
            sweep(k);
            b->status = partition_judge_producer(target->p, b);
        }
    }
    return b->status == 0 && b->made.kind == PRODUCED_STORED;
}

void producing_done(owned *target, append_batch *b) {
    if (b->status == 0 && b->count == 0) b->status = partition_produced_nothing(target->p, b);
    b->made = b->status == 0 ? (produced){PRODUCED_STORED, b->count, b->first_offset, 0} : (produced){0};
}
