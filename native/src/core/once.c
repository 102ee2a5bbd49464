/* See once.h. */
#include "core/once.h"

#include "base/status.h"

#define SWEEP_US 1000000
#define FILTER_STEP 8192u /* messages of a large batch in one slice */

void once_changed(owned *o) {
    o->judged = o->readonly || o->paused || o->send_limits != NULL || partition_has_window(o->p);
}

void once_paused(core *k, owned *target, const append_batch *batches, size_t count) {
    size_t stored = 0;
    for (size_t i = 0; i < count; i++)
        stored += batches[i].status == 0 && batches[i].count > 0 && !(batches[i].by.asks & APPEND_DISTINCT);
    if (stored == 0 || events_add(&k->events, EVENT_RESUMED, target->ns) == NULL) return;
    target->paused = false;
    once_changed(target);
}

/* Windows in which everything is too old give their memory back. At most once in a second: there may be many. */
static bool sweep(core *k, uint64_t now_us) {
    if (k->ids_swept_us != 0 && k->now_us - k->ids_swept_us < SWEEP_US) return false;
    k->ids_swept_us = k->now_us;
    for (uint32_t i = 0; i < k->partitions.capacity; i++)
        if (k->partitions.slots[i] != NULL) partition_expire_ids(k->partitions.slots[i]->p, now_us);
    return true;
}

static uint32_t reserve(core *k, owned *target, uint64_t count, uint64_t now_us) {
    if (target->removed) return STATUS_PARTITION_NOT_FOUND;
    if (partition_state(target->p) != 0) return partition_state(target->p);
    if (partition_reserve_ids(target->p, count, now_us)) return 0;
    if (sweep(k, now_us) && partition_reserve_ids(target->p, count, now_us)) return 0;
    return STATUS_CANNOT_WRITE_TO_FILE;
}

void once_judge(core *k, owned *target, append_batch *batches, size_t count) {
    uint64_t now_us = expiry_clock_steady(&k->expiry);
    uint64_t taken = 0, taken_bytes = 0;
    id_group group;
    group.count = group.used = 0;
    for (size_t i = 0; i < count; i++) {
        append_batch *b = &batches[i];
        id_filter filter = {0};
        b->status = reserve(k, target, b->count, now_us);
        if (b->status != 0) {
            partition_filter_skips(&group, b->count);
        } else {
            partition_filter(target->p, b, count - i - 1, &filter, &group, UINT32_MAX, now_us);
            if (b->count > 0 && target->send_limits != NULL)
                send_limits_judge_behind(target->send_limits, target->p, taken, taken_bytes, target->send_place, b,
                                         k->counters.commits);
            if (b->status != 0) {
                partition_take_back_ids(target->p, b->count);
                k->counters.refused_by_topic++;
            }
        }
        if (b->status != 0) b->count = 0;
        taken += b->count;
        if (b->count > 0) taken_bytes += b->length;
    }
}

void once_failed(owned *target, append_batch *batches, size_t failed, size_t count) {
    uint32_t status = batches[failed].status;
    uint64_t lost = 0;
    for (size_t i = failed; i < count; i++) {
        lost += batches[i].count;
        if (batches[i].status == 0) batches[i].status = status;
    }
    partition_take_back_ids(target->p, lost);
}

bool once_filter_large(core *k, owned *target, append_batch *b, id_filter *f, uint32_t *status) {
    uint64_t now_us = expiry_clock_steady(&k->expiry);
    id_group group;
    group.count = group.used = 0;
    *status = 0;
    if (f->read == 0 && !partition_has_window(target->p)) return true;
    *status = reserve(k, target, b->count - f->read, now_us); /* the window may have changed since the last step */
    if (*status == 0) return partition_filter(target->p, b, 0, f, &group, FILTER_STEP, now_us);
    partition_take_back_ids(target->p, f->kept);
    return true;
}
