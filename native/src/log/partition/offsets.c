/* What lies beside the log of a partition, stored offsets and producers: it never decides whether the log can be read.
 * A file that cannot be read costs its own kind, until it can be (docs/adr/0108-side-files.md). */
#include "log/partition/inside.h"

#include "base/clock.h"
#include "log/expiry_clock.h"
#include "log/partition/state.h"

#include <errno.h>

#define LOOK_AGAIN_US 1000000 /* a device may take its time to say that it cannot read */

bool side_is_due(partition_side *side) {
    int64_t now = clock_monotonic_us();
    if (now < side->next_us) return false;
    side->next_us = now + LOOK_AGAIN_US;
    return true;
}

void side_failed(partition_side *side, int error) {
    side->error = error;
    side->next_us = clock_monotonic_us() + LOOK_AGAIN_US; /* behind it: the attempt itself may have taken long */
}

bool side_passes(int error) {
    return error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM ||
           error == EINTR || error == EAGAIN;
}

bool side_is_foreign(int error) {
    return error == EPROTO || error == ELOOP || error == EISDIR || error == ENOTDIR || error == EACCES ||
           error == EPERM;
}

/* ---- consumer offsets ---- */

/* The log may have lost what consumers had processed. Best effort in the file: else the next start would skip what is
 * appended until then. The old values are on the device and must not come back behind a log that has grown. True: they
 * were changed, a sync is due. */
static bool lower_offsets(partition *p) {
    if (p->offsets.opened_end > 0)
        return offsets_lower(&p->offsets.table, p->offsets.opened_end - 1, p->state == 0) && p->state == 0;
    bool any = p->offsets.table.count > 0;
    offsets_clear(&p->offsets.table, p->state == 0);
    return any && p->state == 0;
}

bool partition_open_offsets(partition *p) {
    if (offsets_open(&p->offsets.table, partition_now(p)) != 0) {
        side_failed(&p->offsets.side, errno);
        return false;
    }
    p->offsets.side.error = 0;
    return lower_offsets(p);
}

uint32_t partition_look_for_offsets(partition *p) {
    if (side_is_due(&p->offsets.side)) partition_open_offsets(p);
    return p->offsets.side.error == 0 ? 0 : (uint32_t)STATUS_CANNOT_READ_FILE;
}

bool partition_offset_get(const partition *p, uint8_t kind, uint32_t id, uint64_t *value) {
    return !p->closed && offsets_get(&p->offsets.table, kind, id, value);
}

bool partition_offset_is_of(const partition *p, uint32_t id, uint64_t name) {
    return p->closed || offsets_is_of(&p->offsets.table, id, name);
}

bool partition_offset_read(partition *p, uint8_t kind, uint32_t id, uint64_t *value) {
    if (p->closed || p->offsets.table.count == 0) return false; /* no look at the clock in each poll */
    return offsets_read(&p->offsets.table, kind, id, partition_now(p), p->state == 0, value);
}

uint32_t partition_offsets_known(partition *p) { return p->closed ? 0 : partition_have_offsets(p); }

uint32_t partition_offset_place(partition *p, uint8_t kind, uint32_t id, uint64_t owner) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    uint32_t status = partition_have_offsets(p);
    if (status != 0) return status;
    return offsets_has_place(&p->offsets.table, kind, id, owner) ? 0
                                                                 : (uint32_t)STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE;
}

uint32_t partition_offset_store_by(partition *p, uint8_t kind, uint32_t id, uint64_t value, const offset_user *by) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (value >= (p->level == LEVEL_DURABLE ? partition_visible_end(p) : p->history.next_offset))
        return STATUS_INVALID_OFFSET;
    uint32_t status = partition_have_offsets(p);
    if (status != 0) return status;
    partition_barrier_moved(p);
    offset_use use = {.used_us = partition_now(p), .owner = by->owner, .name = by->name};
    return offsets_store(&p->offsets.table, kind, id, value, &use);
}

uint32_t partition_offsets_unused(partition *p, uint32_t from, uint32_t count, uint64_t age_us, uint32_t *next,
                                  void (*visit)(void *context, const offsets_half *entry), void *context) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    uint32_t status = partition_have_offsets(p);
    if (status != 0) return status;
    uint64_t before = age_us == 0 ? UINT64_MAX : 0; /* what was used while a clock was doubted, when the doubt ended */
    if (age_us > 0 && p->clock != NULL) before = expiry_clock_first_younger(p->clock, partition_now(p), age_us);
    *next = offsets_unused(&p->offsets.table, from, count, before, visit, context);
    return 0;
}

uint32_t partition_offset_delete(partition *p, uint8_t kind, uint32_t id) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    uint32_t status = partition_have_offsets(p);
    if (status != 0) return status;
    partition_barrier_moved(p);
    return offsets_delete(&p->offsets.table, kind, id);
}

/* ---- for who tells of it ---- */

int partition_unread_offsets(const partition *p) { return p->offsets.side.error; }

int partition_unread_producers(const partition *p) { return p->producers.side.error; }
