/* See commit.h. */
#include "core/commit.h"

#include "base/assert.h"
#include "base/status.h"
#include "core/once.h"
#include "core/producing.h"
#include "core/sync.h"

#include <errno.h>
#include <stdlib.h>

#define STAGED_FIRST 256u
#define STAGED_BYTES_MAX APPEND_LARGE_BYTES /* of one commit, so that those who look at the clock see what it takes */

struct staged {
    append_batch batch;
    caller from;
    uint8_t *block; /* own copy of a remote batch; NULL for local ones */
    uint32_t next;  /* index + 1 */
};

struct large_batch { /* or one that came behind it */
    large_batch *next;
    append_batch batch;
    caller from;
    uint8_t *block;
    bool begun;
    id_filter filter;
    send_limits *limits; /* that count it until its end; NULL: none */
    uint32_t send_place; /* there */
    uint32_t refused;    /* status, for want of room or by the limits of the topic */
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

static inline __attribute__((always_inline)) void stage(core *k, owned *target, const append_batch *batch,
                                                        const caller *from, uint8_t *block) {
    if (k->commit.count == k->commit.capacity && !staged_grow(k)) commit_all(k); /* the turn has two commits then */
    k->commit.bytes += batch->length;
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
    target->staged.special |= (batch->by.producer | batch->by.asks) != 0;
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

/* 0, or the status of what is refused for want of room. */
static uint32_t take_room(core *k, const partition *p, uint64_t bytes) {
    if (room_take(&k->commit.room, bytes)) return 0;
    commit_report_room(k);
    return partition_state(p) != 0 ? partition_state(p) : STATUS_CANNOT_WRITE_TO_FILE;
}

static inline __attribute__((always_inline)) void append_or_refuse(core *k, partition *p, append_batch *batches,
                                                                   size_t count, uint64_t stamp_us) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += batches[i].length;
    uint32_t status = take_room(k, p, bytes);
    if (status == 0) partition_append(p, batches, count, stamp_us);
    for (size_t i = 0; status != 0 && i < count; i++) batches[i].status = status;
}

/* Appends what the topic takes; the others have their status. */
static __attribute__((noinline)) void append_within_limits(core *k, owned *target, append_batch *batches, size_t count,
                                                           uint64_t stamp_us) {
    send_limits_judge(target->send_limits, target->p, target->send_place, batches, count, k->counters.commits);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first; end < count && batches[end].status == 0;) end++;
        if (end > first) append_or_refuse(k, target->p, batches + first, end - first, stamp_us);
        for (; end < count && batches[end].status != 0; end++) k->counters.refused_by_topic++;
    }
}

/* Each message once. What is there already is answered, not appended; where one batch cannot be written, none behind it
 * is either. */
static __attribute__((noinline)) void append_once(core *k, owned *target, append_batch *batches, size_t count,
                                                  uint64_t stamp_us) {
    once_judge(k, target, batches, count);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first; end < count && batches[end].count > 0;) end++;
        if (end > first) append_or_refuse(k, target->p, batches + first, end - first, stamp_us);
        for (; first < end && batches[first].status == 0;) first++;
        if (first < end) {
            once_failed(target, batches, first, count);
            return;
        }
        while (end < count && batches[end].count == 0) end++;
    }
}

/* What is under way when a partition becomes read only is finished; nothing begins. */
static uint32_t refusal_of(const owned *target) {
    if (target->removed) return STATUS_PARTITION_NOT_FOUND;
    return target->readonly ? STATUS_CANNOT_APPEND_MESSAGE : STATUS_OK;
}

static void refuse(core *k, const owned *target, append_batch *batches, size_t count) {
    for (size_t i = 0; i < count; i++) batches[i].status = refusal_of(target);
    k->counters.refused_by_topic += count;
}

static __attribute__((noinline)) void append_judged(core *k, owned *to, append_batch *batches, size_t n, uint64_t now) {
    if (to->readonly) refuse(k, to, batches, n);
    else if (partition_has_window(to->p)) append_once(k, to, batches, n, now);
    else if (to->send_limits != NULL) append_within_limits(k, to, batches, n, now);
    else append_or_refuse(k, to->p, batches, n, now);
    if (to->paused) once_paused(k, to, batches, n);
}

static inline __attribute__((always_inline)) void append_some(core *k, owned *target, append_batch *batches,
                                                              size_t count, uint64_t stamp_us) {
    if (!target->judged) append_or_refuse(k, target->p, batches, count, stamp_us);
    else append_judged(k, target, batches, count, stamp_us);
}

/* False, and it has its status: the partition goes on at another offset. */
static bool is_expected(const owned *target, append_batch *b) {
    if (!(b->by.asks & APPEND_EXPECTS) || refusal_of(target) != 0 || partition_state(target->p) != 0) return true;
    b->status = partition_next_offset(target->p) != b->by.sequence ? STATUS_UNEXPECTED_OFFSET : 0;
    return b->status == 0;
}

/* Who asks where his messages are hears it also when all of them were there before: none, at the end. */
static void place_nothing(const owned *target, append_batch *b) {
    if (b->by.asks != 0 && b->status == 0 && b->made.kind == PRODUCED_NONE)
        b->made = (produced){.kind = PRODUCED_PLACED, .first = partition_next_offset(target->p)};
}

static bool goes_alone(const append_batch *b) { return b->by.producer != 0 || b->by.asks & APPEND_EXPECTS; }

/* Some are of producers, or expect an offset: each of these is judged when all before it are stored, and goes alone. */
static __attribute__((noinline)) void append_special(core *k, owned *target, size_t count, uint64_t stamp_us) {
    append_batch *batches = k->commit.scratch;
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first; end < count && !goes_alone(&batches[end]);) end++;
        if (end > first) append_some(k, target, batches + first, end - first, stamp_us);
        for (; end < count && goes_alone(&batches[end]); end++) {
            append_batch *b = &batches[end];
            if (b->by.producer != 0 ? !producing_judge(k, target, b) : !is_expected(target, b)) continue;
            append_some(k, target, b, 1, stamp_us);
            if (b->by.producer != 0) producing_done(target, b);
        }
    }
    for (size_t i = 0; i < count; i++) place_nothing(target, &batches[i]);
}

void commit_report_rolls(core *k, owned *target) {
    for (uint64_t next; partition_next_start(target->p, target->active_reported, &next);) {
        event *v = events_add(&k->events, EVENT_ROLLED, target->ns);
        if (v == NULL) return;
        v->number = target->active_reported;
        target->active_reported = next;
    }
    target->active_reported = partition_active_start(target->p); /* retention may have overtaken it */
}

static void commit_partition(core *k, owned *target, uint64_t stamp_us) {
    size_t count = 0;
    for (uint32_t n = target->staged.first; n != 0; n = k->commit.list[n - 1].next)
        k->commit.scratch[count++] = k->commit.list[n - 1].batch;
    if (target->staged.special) append_special(k, target, count, stamp_us);
    else append_some(k, target, k->commit.scratch, count, stamp_us);
    commit_report_rolls(k, target);
    k->counters.append_calls++;
    count = 0;
    for (uint32_t n = target->staged.first, next; n != 0; n = next) {
        next = k->commit.list[n - 1].next;
        staged *s = &k->commit.list[n - 1];
        if (s->block != NULL) pool_free(k->pool, s->block);
        const append_batch *b = &k->commit.scratch[count++];
        sync_answer(target, &s->from, &(outcome){.status = b->status, .made = b->made});
    }
    target->staged.first = target->staged.last = 0;
    target->staged.special = false;
    sync_mark_dirty(target);
    if (partition_state(target->p) != 0) sync_report_poison(target, EIO);
    if (target->has_waiting_polls) waiting_polls_wake(target);
    owned_release(target);
}

/* ---- large batches ---- */

/* Whether it is refused, before its first part. False: not yet, its ids are being compared. */
static bool begin(core *k, owned *target, large_batch *b) {
    bool fresh = b->filter.read == 0;
    if (fresh && (target->readonly || !is_expected(target, &b->batch))) {
        b->begun = true;
        if (target->readonly) refuse(k, target, &b->batch, 1);
        b->refused = b->batch.status;
        return true;
    }
    if (!once_filter_large(k, target, &b->batch, &b->filter, &b->refused)) return false;
    b->begun = true;
    if (b->refused != 0 || b->batch.count == 0) return true;
    b->refused = send_limits_large_begins(target->send_limits, target->p, target->send_place, &b->batch);
    if (b->refused != 0) {
        k->counters.refused_by_topic++;
        partition_take_back_ids(target->p, b->filter.kept);
        return true;
    }
    b->limits = send_limits_retain(target->send_limits);
    b->send_place = target->send_place;
    b->refused = take_room(k, target->p, b->batch.length);
    if (b->refused != 0) partition_take_back_ids(target->p, b->filter.kept);
    return true;
}

static void free_large(large_batch *b) {
    send_limits_large_ends(b->limits, b->send_place, &b->batch);
    send_limits_release(b->limits);
    free(b);
}

static bool is_large(const append_batch *b) { return b->length > APPEND_LARGE_BYTES; }

static void put_in_turn(core *k, owned *target) {
    target->parts.next = NULL;
    if (k->commit.in_parts == NULL) k->commit.in_parts = target;
    else k->commit.last_in_parts->parts.next = target;
    k->commit.last_in_parts = target;
}

static large_batch *take_first(owned *target) {
    large_batch *b = target->parts.first;
    target->parts.first = b->next;
    return b;
}

/* Makes the first one visible, or tells why not. Those behind it go on: small ones with the next commit. The target is
 * in no list then, unless another large one follows. */
static void end_first(core *k, owned *target) {
    large_batch *b = take_first(target);
    while (!b->begun) begin(k, target, b);
    uint32_t status = b->refused;
    if (status == 0 && b->batch.count > 0) {
        partition_append(target->p, &b->batch, 1, expiry_clock_stamp(&k->expiry));
        status = b->batch.status;
        if (status != 0) partition_take_back_ids(target->p, b->filter.kept);
        else if (target->paused) once_paused(k, target, &b->batch, 1);
    }
    if (status == 0) place_nothing(target, &b->batch);
    commit_report_rolls(k, target);
    k->counters.append_calls++;
    if (b->block != NULL) pool_free(k->pool, b->block);
    sync_answer(target, &b->from, &(outcome){.status = status, .made = b->batch.made});
    free_large(b);
    sync_mark_dirty(target);
    if (partition_state(target->p) != 0) sync_report_poison(target, EIO);
    if (target->has_waiting_polls) waiting_polls_wake(target);
}

static void stage_with_room(core *k, owned *target, const append_batch *batch, const caller *from, uint8_t *block) {
    if (k->commit.bytes + batch->length > STAGED_BYTES_MAX) commit_all(k);
    stage(k, target, batch, from, block);
}

static void stage_small(core *k, owned *target) {
    while (target->parts.first != NULL && !is_large(&target->parts.first->batch)) {
        large_batch *b = take_first(target);
        stage_with_room(k, target, &b->batch, &b->from, b->block);
        free(b);
    }
}

/* False: no memory; it is staged like any other, when nobody is before it. */
static bool wait_in_parts(core *k, owned *target, const append_batch *batch, const caller *from, uint8_t *block) {
    large_batch *b = malloc(sizeof *b);
    if (b == NULL) return false;
    *b = (large_batch){.batch = *batch, .from = *from, .block = block};
    if (target->parts.first != NULL) {
        target->parts.last->next = b;
    } else {
        target->parts.first = b;
        target->references++;
        put_in_turn(k, target);
    }
    target->parts.last = b;
    return true;
}

static void leave_turn(core *k, owned *target) {
    owned **place = &k->commit.in_parts, *before = NULL;
    for (; *place != target; place = &(*place)->parts.next) before = *place;
    *place = target->parts.next;
    if (k->commit.last_in_parts == target) k->commit.last_in_parts = before;
}

/* All that waits at a partition, at once. */
static void end_all(core *k, owned *target) {
    leave_turn(k, target);
    while (target->parts.first != NULL) {
        commit_all(k);
        end_first(k, target);
        stage_small(k, target);
    }
    owned_release(target);
}

/* Not as all the others are: it is large, comes behind a large one, or is too much for this commit. */
static __attribute__((noinline)) bool stage_otherwise(core *k, owned *target, const append_batch *batch,
                                                      const caller *from, uint8_t *block) {
    append_batch b = *batch;
    bool waits = target->parts.first != NULL;
    if (waits && block == NULL && !from->calls->lend(from, &b.messages)) return false;
    if ((waits || is_large(&b)) && wait_in_parts(k, target, &b, from, block)) return true;
    target->references++;
    if (waits) end_all(k, target);
    stage_with_room(k, target, &b, from, block);
    owned_release(target);
    return true;
}

bool commit_stage(core *k, owned *target, const append_batch *batch, const caller *from, uint8_t *block) {
    if (k->commit.bytes + batch->length > STAGED_BYTES_MAX || target->parts.first != NULL)
        return stage_otherwise(k, target, batch, from, block);
    stage(k, target, batch, from, block);
    return true;
}

void commit_next_part(core *k) {
    owned *target = k->commit.in_parts;
    commit_all(k); /* what came before it */
    large_batch *b = target->parts.first;
    bool more = !b->begun && !begin(k, target, b); /* one step of it, or the first part */
    if (!more)
        more = b->refused == 0 && b->batch.count > 0 &&
               partition_append_part(target->p, &b->batch, expiry_clock_stamp(&k->expiry));
    if (!more) {
        end_first(k, target);
        stage_small(k, target);
    }
    k->commit.in_parts = target->parts.next;
    if (target->parts.first != NULL) put_in_turn(k, target);
    else owned_release(target);
}

void commit_drop_parts(core *k) {
    while (k->commit.in_parts != NULL) {
        owned *target = k->commit.in_parts;
        k->commit.in_parts = target->parts.next;
        while (target->parts.first != NULL) free_large(take_first(target));
        owned_release(target);
    }
}

void commit_all(core *k) {
    if (k->commit.touched == NULL) return;
    uint64_t stamp_us = expiry_clock_stamp(&k->expiry);
    owned *list = k->commit.touched;
    k->commit.touched = NULL;
    while (list != NULL) {
        owned *target = list;
        list = target->staged.next_touched;
        commit_partition(k, target, stamp_us);
    }
    k->commit.count = 0;
    k->commit.bytes = 0;
    k->counters.commits++;
}
