/* See commit.h. */
#include "core/commit.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/sync.h"

#include <errno.h>
#include <stdlib.h>

#define STAGED_FIRST 256u

struct staged {
    append_batch batch;
    caller from;
    uint8_t *block; /* own copy of a remote batch; NULL for local ones */
    uint32_t next;  /* index + 1 */
};

int commit_open(core *k) {
    k->commit.capacity = STAGED_FIRST;
    k->commit.list = calloc(STAGED_FIRST, sizeof *k->commit.list);
    k->commit.scratch = calloc(STAGED_FIRST, sizeof *k->commit.scratch);
    return k->commit.list != NULL && k->commit.scratch != NULL ? 0 : -ENOMEM;
}

void commit_close(core *k) {
    free(k->commit.list);
    free(k->commit.scratch);
}

static bool staged_grow(core *k) {
    uint32_t capacity = k->commit.capacity * 2;
    staged *larger = realloc(k->commit.list, capacity * sizeof *larger);
    if (larger == NULL) return false;
    k->commit.list = larger;
    append_batch *scratch = realloc(k->commit.scratch, capacity * sizeof *scratch);
    if (scratch == NULL) return false;
    k->commit.scratch = scratch;
    k->commit.capacity = capacity;
    return true;
}

void commit_stage(core *k, owned *target, const append_batch *batch, const caller *from, uint8_t *block) {
    if (k->commit.count == k->commit.capacity && !staged_grow(k)) commit_all(k); /* the turn has two commits then */
    ASSERT(k->commit.count < k->commit.capacity);
    uint32_t number = ++k->commit.count;
    k->commit.list[number - 1] = (staged){.batch = *batch, .from = *from, .block = block};
    if (target->staged.first == 0) {
        target->staged.first = number;
        target->staged.next_touched = k->commit.touched;
        k->commit.touched = target;
        target->references++;
    } else {
        k->commit.list[target->staged.last - 1].next = number;
    }
    target->staged.last = number;
}

/* One event for each change: sends are refused for want of room, or no more. */
void commit_report_room(core *k) {
    if (k->commit.room.refused == k->commit.room_refusal_reported) return;
    event *v = events_add(&k->events, EVENT_ROOM, k->commit.room.refused);
    if (v == NULL) return;
    v->number = k->commit.room.free_bytes;
    v->free_inodes = k->commit.room.free_inodes;
    k->commit.room_refusal_reported = k->commit.room.refused;
}

static void append_or_refuse(core *k, partition *p, size_t count, uint64_t wall_us) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += k->commit.scratch[i].length;
    if (room_take(&k->commit.room, bytes)) {
        partition_append(p, k->commit.scratch, count, wall_us);
        return;
    }
    uint32_t status = partition_state(p) != 0 ? partition_state(p) : STATUS_CANNOT_WRITE_TO_FILE;
    for (size_t i = 0; i < count; i++) k->commit.scratch[i].status = status;
    commit_report_room(k);
}

/* One event for each segment that was sealed since the last one; without memory the next commit tells it. */
static void report_rolls(core *k, owned *target) {
    for (uint64_t next; partition_next_start(target->p, target->active_reported, &next);) {
        event *v = events_add(&k->events, EVENT_ROLLED, target->ns);
        if (v == NULL) return;
        v->number = target->active_reported;
        target->active_reported = next;
    }
    target->active_reported = partition_active_start(target->p); /* retention may have overtaken it */
}

static void commit_partition(core *k, owned *target, uint64_t wall_us) {
    size_t count = 0;
    for (uint32_t n = target->staged.first; n != 0; n = k->commit.list[n - 1].next)
        k->commit.scratch[count++] = k->commit.list[n - 1].batch;
    append_or_refuse(k, target->p, count, wall_us);
    report_rolls(k, target);
    k->counters.append_calls++;
    count = 0;
    for (uint32_t n = target->staged.first, next; n != 0; n = next) {
        next = k->commit.list[n - 1].next;
        staged *s = &k->commit.list[n - 1];
        if (s->block != NULL) pool_free(k->pool, s->block);
        sync_answer(target, &s->from, &(outcome){.status = k->commit.scratch[count++].status});
    }
    target->staged.first = target->staged.last = 0;
    sync_mark_dirty(target);
    if (partition_state(target->p) != 0) sync_report_poison(target, EIO);
    owned_release(target);
}

void commit_all(core *k) {
    if (k->commit.touched == NULL) return;
    uint64_t wall_us = clock_wall_us();
    owned *list = k->commit.touched;
    k->commit.touched = NULL;
    while (list != NULL) {
        owned *target = list;
        list = target->staged.next_touched;
        commit_partition(k, target, wall_us);
    }
    k->commit.count = 0;
    k->counters.commits++;
}
