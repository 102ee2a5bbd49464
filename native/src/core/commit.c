/* The commit of a turn: all batches that it brought, one append call per partition; then their answers. */
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t clock_wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void engine_stage(engine *e, owned *target, const append_batch *batch, const requester *from, uint8_t *block) {
    if (e->staged_count == e->staged_capacity) {
        uint32_t capacity = e->staged_capacity * 2;
        staged *larger = realloc(e->staged, capacity * sizeof *larger);
        append_batch *scratch = realloc(e->scratch, capacity * sizeof *scratch);
        if (larger == NULL || scratch == NULL) abort();
        e->staged = larger;
        e->scratch = scratch;
        e->staged_capacity = capacity;
    }
    uint32_t number = ++e->staged_count;
    e->staged[number - 1] = (staged){.batch = *batch, .from = *from, .block = block};
    if (target->first_staged == 0) {
        target->first_staged = number;
        target->next_touched = e->touched;
        e->touched = target;
        target->references++;
    } else {
        e->staged[target->last_staged - 1].next = number;
    }
    target->last_staged = number;
}

void engine_answer(engine *e, const requester *to, uint32_t status) {
    conn *c = to->c;
    if (c == NULL) {
        forward_answer_status(e, to, status, 0);
    } else if (c->closing) {
        c->state = CONN_RECEIVING;
        conn_ready(c);
    } else {
        conn_reply_status(c, status);
    }
}

/* One event for each change: sends are refused for want of room, or no more. */
void engine_report_room(engine *e) {
    if (e->room.refused == e->room_refusal_reported) return;
    e->room_refusal_reported = e->room.refused;
    engine_event(e, EVENT_ROOM, e->room.refused)->number = e->room.free_bytes;
}

static void append_or_refuse(engine *e, partition *p, size_t count, uint64_t wall_us) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += e->scratch[i].length;
    if (room_take(&e->room, bytes)) {
        partition_append(p, e->scratch, count, wall_us);
        return;
    }
    uint32_t status = partition_state(p) != 0 ? partition_state(p) : STATUS_CANNOT_WRITE;
    for (size_t i = 0; i < count; i++) e->scratch[i].status = status;
    engine_report_room(e);
}

/* One event for each segment that is sealed now, from the one that was active before. */
static void report_rolls(engine *e, const owned *target, uint64_t active) {
    for (uint64_t next; partition_next_start(target->p, active, &next); active = next)
        engine_event(e, EVENT_ROLLED, target->ns)->number = active;
}

static void commit_partition(engine *e, owned *target, uint64_t wall_us) {
    size_t count = 0;
    for (uint32_t n = target->first_staged; n != 0; n = e->staged[n - 1].next)
        e->scratch[count++] = e->staged[n - 1].batch;
    uint64_t active = partition_active_start(target->p);
    append_or_refuse(e, target->p, count, wall_us);
    report_rolls(e, target, active);
    e->counters.append_calls++;
    count = 0;
    for (uint32_t n = target->first_staged, next; n != 0; n = next) {
        next = e->staged[n - 1].next;
        staged *s = &e->staged[n - 1];
        if (s->block != NULL) pool_free(e->pool, s->block);
        sync_answer(target, &s->from, e->scratch[count++].status);
    }
    target->first_staged = target->last_staged = 0;
    sync_mark_dirty(target);
    if (partition_state(target->p) != 0) sync_report_poison(target, EIO);
    owned_release(target);
}

void engine_commit(engine *e) {
    if (e->touched == NULL) return;
    uint64_t wall_us = clock_wall_us();
    owned *list = e->touched;
    e->touched = NULL;
    while (list != NULL) {
        owned *target = list;
        list = target->next_touched;
        commit_partition(e, target, wall_us);
    }
    e->staged_count = 0;
    e->counters.commits++;
}
