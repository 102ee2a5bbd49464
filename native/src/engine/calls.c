/* See calls.h. */
#include "engine/calls.h"

#include "base/assert.h"
#include "core/commit.h"
#include "core/execute.h"
#include "core/output.h"
#include "base/status.h"
#include "wire/dialect.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct call_entry {
    waiter wait; /* first: for a place among the descriptors to another shard */
    waiting_poll waiting_poll;
    calls *calls;
    uint32_t index, generation; /* the generation grows when it begins and when it ends: odd while it is under way */
    uint32_t owner;
    bool promised;  /* room for its next event */
    bool cancelled; /* `dropped`, or its end, frees the place */
    bool tells;     /* cancelled: when that has happened */
    bool lost;      /* its owner died while Python had a window: the next one is `gone` */
    bool last;      /* the window */
    bool filling;   /* its records are not all there yet: nothing has begun */
    size_t filled;
    partition_request what;
    uint64_t record_bytes; /* counted in the table */
    pending *work;
    const uint8_t *window; /* NULL: Python has none */
    size_t window_length;
    uint8_t *block; /* of that window, when it is ours */
    bool summarized;
    poll_summary whole;
};

/* ---- the table ---- */

int calls_open(calls *c, core *k, uint64_t batch_bytes_max) {
    *c = (calls){.core = k, .batch_bytes_max = batch_bytes_max};
    c->places = calloc(CALLS_MAX, sizeof *c->places);
    c->free_indexes = calloc(CALLS_MAX, sizeof *c->free_indexes);
    if (c->places == NULL || c->free_indexes == NULL) return -ENOMEM;
    for (uint32_t i = CALLS_MAX; i-- > 0;) c->free_indexes[c->free_count++] = i;
    return 0;
}

void calls_close(calls *c) {
    free(c->places);
    free(c->free_indexes);
}

static uint64_t token_of(const call_entry *c) { return (uint64_t)c->generation << 32 | c->index; }

static call_entry *find(const calls *c, uint64_t token) {
    uint32_t index = (uint32_t)token, generation = (uint32_t)(token >> 32);
    call_entry *found = index < CALLS_MAX ? &c->places[index] : NULL;
    return found != NULL && generation % 2 == 1 && found->generation == generation ? found : NULL;
}

static call_entry *enter(calls *c, uint32_t owner, const partition_request *what) {
    ASSERT(owner < c->core->options.shards);
    if (c->free_count == 0 || !events_promise(&c->core->events)) {
        c->refused++;
        return NULL;
    }
    uint32_t index = c->free_indexes[--c->free_count];
    call_entry *entered = &c->places[index];
    *entered = (call_entry){.calls = c,
                            .index = index,
                            .generation = entered->generation + 1,
                            .owner = owner,
                            .promised = true,
                            .what = *what};
    return entered;
}

static event *tell(call_entry *c, call_outcome outcome, uint32_t status) {
    ASSERT(c->promised);
    c->promised = false;
    event *v = events_promised(&c->calls->core->events, EVENT_CALL, token_of(c));
    v->code = outcome;
    v->number = status;
    return v;
}

static void free_records(call_entry *c) {
    if (c->what.records != NULL) pool_free(c->calls->core->pool, c->what.records);
    c->what.records = NULL;
}

static void leave(call_entry *c) {
    calls *all = c->calls;
    ASSERT(c->generation % 2 == 1 && !c->wait.queued && c->work == NULL && c->block == NULL);
    free_records(c);
    if (c->tells) tell(c, CALL_LET_GO, 0);
    if (c->promised) events_unpromise(&all->core->events);
    all->record_bytes -= c->record_bytes;
    c->generation++;
    all->free_indexes[all->free_count++] = c->index;
}

/* ---- what the core says ---- */

static void end(call_entry *c, call_outcome outcome, uint32_t status) {
    if (!c->cancelled) tell(c, outcome, status);
    leave(c);
}

static void on_status(const caller *to, uint32_t status) { end(to->owner, CALL_STATUS, status); }

static void on_committed(const caller *to, uint64_t offset) {
    (void)offset; /* Python knows what it asked */
    end(to->owner, CALL_STATUS, 0);
}

static void on_produced(const caller *to, const produced *made) {
    call_entry *c = to->owner;
    if (!c->cancelled) tell(c, CALL_STATUS, 0)->made = *made;
    leave(c);
}

static void on_again(const caller *to) { end(to->owner, CALL_AGAIN, 0); }

static void on_window(const caller *to, const answer_window *w) {
    call_entry *c = to->owner;
    ASSERT(!c->cancelled && c->window == NULL);
    size_t head_bytes = c->summarized ? 0 : sizeof c->whole;
    if (head_bytes > w->length) head_bytes = w->length; /* what a peer says is not believed */
    memcpy(&c->whole, w->bytes, head_bytes);
    c->summarized = true;
    c->window = w->bytes + head_bytes;
    c->window_length = w->length - head_bytes;
    c->block = w->block;
    c->last = w->last;
    tell(c, w->last ? CALL_LAST_WINDOW : CALL_WINDOW, 0);
}

/* Who has a window of a dead owner gives it back by a cancel, and hears of the end when it asks for the next one. */
static void on_gone(const caller *to) {
    call_entry *c = to->owner;
    if (c->window == NULL) {
        end(c, CALL_GONE, 0);
        return;
    }
    c->lost = true;
    if (c->work != NULL) pending_cancel(c->work);
}

static void on_dropped(const caller *to) {
    call_entry *c = to->owner;
    c->window = NULL;
    if (!c->lost || c->cancelled) leave(c);
}

static void on_parked(const caller *to, pending *p) { ((call_entry *)to->owner)->work = p; }

static bool is_wanted(const caller *to) { return !((const call_entry *)to->owner)->cancelled; }

static void put_head(const caller *to, uint8_t *at, const poll_summary *whole) {
    (void)to;
    dialect_values.put_poll_head(at, whole);
}

static caller caller_of(call_entry *c) {
    static const caller_calls calls = {.status = on_status,
                                       .committed = on_committed,
                                       .produced = on_produced,
                                       .window = on_window,
                                       .gone = on_gone,
                                       .again = on_again,
                                       .dropped = on_dropped,
                                       .parked = on_parked,
                                       .wanted = is_wanted,
                                       .put_head = put_head};
    return (caller){
        .calls = &calls, .owner = c, .dialect = dialect_values.number, .head_bytes = dialect_values.poll_head_bytes};
}

/* ---- what Python says ---- */

/* False: no place among the descriptors now. */
static bool ask(call_entry *c) {
    core *k = c->calls->core;
    caller from = caller_of(c);
    if (c->owner != k->options.shard) return k->remote->forward(k->remote, c->owner, &c->what, &from);
    owned *target = core_owned(k, c->what.ns);
    if (target == NULL || target->incarnation != c->what.incarnation) {
        caller_again(&from);
    } else if (c->what.kind == REQUEST_SEND) {
        append_batch batch = {
            .messages = c->what.records, .length = c->what.records_length, .count = c->what.count, .by = c->what.by};
        c->what.records = NULL; /* the commit frees them */
        commit_stage(k, target, &batch, &from, batch.messages);
    } else {
        execute_here(k, target, &c->what, &from);
    }
    return true;
}

static bool retry(waiter *w) { return ask((call_entry *)w); }

static uint64_t begin(call_entry *c) {
    uint64_t token = token_of(c); /* it may be over at once */
    if (!ask(c)) core_wait(c->calls->core, &c->wait, retry);
    return token;
}

static uint64_t refuse(call_entry *c, uint32_t status) {
    uint64_t token = token_of(c);
    end(c, CALL_STATUS, status);
    return token;
}

/* Room for the records in the pool. False: too many of other calls are there, or none. */
static bool take_room(call_entry *c, size_t length) {
    calls *all = c->calls;
    pool *p = all->core->pool;
    uint8_t *block = pool_alloc(p, length);
    if (block == NULL) return false;
    c->what.records = block;
    c->what.records_length = length;
    c->record_bytes = pool_block_size(p, block);
    all->record_bytes += c->record_bytes;
    bool alone = all->record_bytes == c->record_bytes;
    return alone || all->record_bytes <= pool_capacity(p) / CALLS_POOL_PART;
}

uint64_t calls_prepare(calls *all, uint32_t owner, const partition_request *what, const uint8_t *batch, size_t length) {
    call_entry *c = enter(all, owner, what);
    if (c == NULL) return 0;
    if (length > all->batch_bytes_max) return refuse(c, STATUS_INVALID_COMMAND);
    uint32_t status = batch_check(batch, length, what->count);
    if (status != 0) return refuse(c, status);
    if (!take_room(c, length - (size_t)what->count * INDEX_ENTRY_SIZE)) {
        all->refused++;
        leave(c);
        return 0;
    }
    c->filling = true;
    return token_of(c);
}

size_t calls_batch_bytes(const calls *all, uint64_t token) {
    const call_entry *c = find(all, token);
    return c != NULL && c->filling ? (size_t)c->what.count * INDEX_ENTRY_SIZE + c->what.records_length : 0;
}

bool calls_fill(calls *all, uint64_t token, const uint8_t *batch, size_t bytes) {
    call_entry *c = find(all, token);
    if (c == NULL || !c->filling) return false;
    size_t left = c->what.records_length - c->filled;
    if (bytes > left) bytes = left;
    memcpy(c->what.records + c->filled, batch + (size_t)c->what.count * INDEX_ENTRY_SIZE + c->filled, bytes);
    c->filled += bytes;
    if (bytes < left) return true;
    c->filling = false;
    all->core->counters.sends++;
    all->core->counters.messages_in += c->what.count;
    begin(c);
    return false;
}

uint64_t calls_append(calls *all, uint32_t owner, const partition_request *what, const uint8_t *batch, size_t length) {
    uint64_t token = calls_prepare(all, owner, what, batch, length);
    calls_fill(all, token, batch, length);
    return token;
}

uint64_t calls_ask(calls *all, uint32_t owner, const partition_request *what) {
    call_entry *c = enter(all, owner, what);
    if (c == NULL) return 0;
    if (what->kind == REQUEST_POLL) all->core->counters.polls++;
    else all->core->counters.stores++;
    return begin(c);
}

static void on_woken(waiting_poll *w) {
    end((call_entry *)(void *)((uint8_t *)w - offsetof(call_entry, waiting_poll)), CALL_STATUS, 0);
}

uint64_t calls_wait(calls *all, uint32_t owner, uint64_t ns, uint64_t incarnation, uint32_t user_id, int64_t wait_us) {
    core *k = all->core;
    call_entry *c = enter(all, owner, &(partition_request){.ns = ns, .incarnation = incarnation});
    if (c == NULL) return 0;
    c->waiting_poll.woken = on_woken;
    if (!waiting_poll_enter(k, &c->waiting_poll, user_id, k->now_us + wait_us)) {
        all->refused++;
        leave(c);
        return 0;
    }
    uint64_t token = token_of(c);
    if (!waiting_poll_add(k, &c->waiting_poll,
                          &(route_partition){.ns = ns, .incarnation = incarnation, .owner = owner})) {
        waiting_poll_leave(k, &c->waiting_poll);
        end(c, CALL_AGAIN, 0);
    }
    return token;
}

bool calls_window(const calls *all, uint64_t token, call_window *out) {
    const call_entry *c = find(all, token);
    if (c == NULL || c->window == NULL || c->cancelled) return false;
    *out = (call_window){.records = c->window, .length = c->window_length, .whole = c->whole};
    return true;
}

/* The memory of the window goes back; with one that is not the last the request goes on. */
static void give_back(call_entry *c) {
    c->window = NULL;
    output_free(c->calls->core, c->block);
    c->block = NULL;
    if (c->work != NULL) pending_next(c->work);
}

void calls_took(calls *all, uint64_t token) {
    call_entry *c = find(all, token);
    if (c == NULL || c->window == NULL || !c->last) return;
    give_back(c);
    leave(c);
}

bool calls_next(calls *all, uint64_t token) {
    call_entry *c = find(all, token);
    if (c == NULL || c->promised || c->last || c->cancelled) return true; /* nothing more is to come, or is asked for */
    if (!events_promise(&all->core->events)) return false;
    c->promised = true;
    if (c->lost) end(c, CALL_GONE, 0);
    else give_back(c);
    return true;
}

bool calls_cancel(calls *all, uint64_t token) {
    call_entry *c = find(all, token);
    if (c == NULL || c->cancelled) return false;
    c->cancelled = true;
    if (c->waiting_poll.at != 0) {
        waiting_poll_leave(all->core, &c->waiting_poll);
        leave(c);
    } else if (c->filling) {
        leave(c);
    } else if (c->wait.queued) {
        waiters_remove(&all->core->waiters, &c->wait);
        leave(c);
    } else if (c->work != NULL) {
        pending_cancel(c->work);
    } else if (c->window != NULL || c->lost) {
        output_free(all->core, c->block);
        c->block = NULL;
        leave(c);
    } /* otherwise its records are staged: the commit ends it */
    if (find(all, token) == NULL) return false;
    c->promised = c->promised || events_promise(&all->core->events);
    c->tells = c->promised;
    return c->tells;
}
