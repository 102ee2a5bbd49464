/* The stored offsets of consumers: what others ask and store. */
#include "log/partition/inside.h"

#include "log/expiry_clock.h"
#include "log/partition/state.h"

bool partition_open_offsets(partition *p) { return stored_offsets_open(&p->offsets, partition_now(p), p->state == 0); }

uint32_t partition_look_for_offsets(partition *p) {
    int error = stored_offsets_look(&p->offsets, partition_now(p), p->state == 0);
    return error == 0 ? 0 : (uint32_t)STATUS_CANNOT_READ_FILE;
}

bool partition_offset_get(const partition *p, uint8_t kind, uint32_t id, uint64_t *value) {
    return !p->closed && offsets_get(stored_offsets_known(&p->offsets), kind, id, value);
}

bool partition_offset_is_of(const partition *p, uint32_t id, uint64_t name) {
    return p->closed || offsets_is_of(stored_offsets_known(&p->offsets), id, name);
}

bool partition_offset_read(partition *p, uint8_t kind, uint32_t id, uint64_t *value) {
    if (p->closed || stored_offsets_known(&p->offsets)->count == 0)
        return false; /* no look at the clock in each poll */
    return offsets_read(stored_offsets_table(&p->offsets), kind, id, partition_now(p), p->state == 0, value);
}

uint32_t partition_offsets_known(partition *p) { return p->closed ? 0 : partition_have_offsets(p); }

uint32_t partition_offset_place(partition *p, uint8_t kind, uint32_t id, uint64_t owner) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    uint32_t status = partition_have_offsets(p);
    if (status != 0) return status;
    return offsets_has_place(stored_offsets_table(&p->offsets), kind, id, owner)
               ? 0
               : (uint32_t)STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE;
}

uint32_t partition_offset_store_by(partition *p, uint8_t kind, uint32_t id, uint64_t value, const offset_user *by) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (value >= (p->level == LEVEL_DURABLE ? partition_visible_end(p) : history_end(&p->history)))
        return STATUS_INVALID_OFFSET;
    uint32_t status = partition_have_offsets(p);
    if (status != 0) return status;
    retention_barrier_moved(&p->retention);
    offset_use use = {.used_us = partition_now(p), .owner = by->owner, .name = by->name};
    return offsets_store(stored_offsets_table(&p->offsets), kind, id, value, &use);
}

uint32_t partition_offsets_unused(partition *p, uint32_t from, uint32_t count, uint64_t age_us, uint32_t *next,
                                  void (*visit)(void *context, const offsets_half *entry), void *context) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    uint32_t status = partition_have_offsets(p);
    if (status != 0) return status;
    uint64_t before = age_us == 0 ? UINT64_MAX : 0; /* what was used while a clock was doubted, when the doubt ended */
    if (age_us > 0 && p->clock != NULL) before = expiry_clock_first_younger(p->clock, partition_now(p), age_us);
    *next = offsets_unused(stored_offsets_table(&p->offsets), from, count, before, visit, context);
    return 0;
}

uint32_t partition_offset_delete(partition *p, uint8_t kind, uint32_t id) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    uint32_t status = partition_have_offsets(p);
    if (status != 0) return status;
    retention_barrier_moved(&p->retention);
    return offsets_delete(stored_offsets_table(&p->offsets), kind, id);
}

int partition_unread_offsets(const partition *p) { return stored_offsets_error(&p->offsets); }

bool partition_slowest(const partition *p, uint8_t *kind, uint32_t *id, uint64_t *value) {
    const offset_entry *slowest = NULL;
    const offsets *table = stored_offsets_known(&p->offsets);
    for (uint32_t i = 0; i < table->capacity; i++) {
        const offset_entry *e = &table->entries[i];
        if (e->kind != 0 && (slowest == NULL || e->value < slowest->value)) slowest = e;
    }
    if (slowest == NULL) return false;
    *kind = slowest->kind;
    *id = slowest->id;
    *value = slowest->value;
    return true;
}
