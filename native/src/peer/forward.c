/* Requests to the owner on another shard. Whoever asks is a caller, so all that is known of an answer is here. */
#include "peer/peers.h"

#include "base/assert.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PLACES_FIRST 256u

struct forwarded {
    pending pending; /* first */
    peers *peers;
    caller to;
    request_kind kind;
    uint64_t value; /* STORE: the offset */
    uint32_t index, shard;
    uint64_t position; /* in the ring */
    uint64_t sequence;
    int64_t deadline_us; /* 0: the owner lives */
    uint64_t lease;      /* handle of the window that the caller has */
    bool out;            /* the owner has the request, or will; otherwise the caller has a window */
    bool more, cancelled;
};

/* ---- the table ---- */

static bool grow(peers *p) {
    uint32_t capacity = p->asked.capacity > 0 ? p->asked.capacity * 2 : PLACES_FIRST;
    forwarded **places = realloc(p->asked.places, capacity * sizeof(forwarded *));
    if (places != NULL) p->asked.places = places;
    uint32_t *generations = realloc(p->asked.generations, capacity * sizeof *generations);
    if (generations != NULL) p->asked.generations = generations;
    uint32_t *indexes = realloc(p->asked.free_indexes, capacity * sizeof *indexes);
    if (indexes != NULL) p->asked.free_indexes = indexes;
    if (places == NULL || generations == NULL || indexes == NULL) return false;
    for (uint32_t i = capacity; i-- > p->asked.capacity;) {
        places[i] = NULL;
        generations[i] = 0;
        indexes[p->asked.free_count++] = i;
    }
    p->asked.capacity = capacity;
    return true;
}

static forwarded *enter(peers *p) {
    if (p->asked.free_count == 0 && !grow(p)) return NULL;
    forwarded *f = calloc(1, sizeof *f);
    if (f == NULL) return NULL;
    f->peers = p;
    f->index = p->asked.free_indexes[--p->asked.free_count];
    p->asked.places[f->index] = f;
    return f;
}

static void leave(forwarded *f) {
    peers *p = f->peers;
    p->asked.places[f->index] = NULL;
    p->asked.generations[f->index]++;
    p->asked.free_indexes[p->asked.free_count++] = f->index;
    free(f);
}

static uint64_t name_of(const forwarded *f) { return (uint64_t)f->peers->asked.generations[f->index] << 32 | f->index; }

static forwarded *find(const peers *p, uint32_t from, const descriptor *d) {
    uint32_t index = (uint32_t)d->connection;
    forwarded *f = index < p->asked.capacity ? p->asked.places[index] : NULL;
    bool right = f != NULL && d->requester_generation == p->core->links.generation && name_of(f) == d->connection &&
                 f->out && f->sequence == d->sequence && f->shard == from;
    return right ? f : NULL;
}

/* The request is not ours any more: who asked, for the end that it hears next. */
static caller finish(forwarded *f) {
    caller to = f->to;
    leave(f);
    caller_parked(&to, NULL);
    return to;
}

/* ---- out ---- */

static void give_back(forwarded *f, bool stop) {
    descriptor next = {.operation = LINK_NEXT, .handle = f->lease, .flags = stop ? LINK_FLAG_STOP : 0};
    peers_post(f->peers, f->shard, &next);
}

static void next(pending *p) {
    forwarded *f = (forwarded *)p;
    ASSERT(!f->out);
    give_back(f, false);
    f->out = f->more;
    f->pending.waits_for = WAITS_FOR_PEER;
    if (!f->more) finish(f);
}

/* What the owner may still read stays as it is until it has answered or died. What a dead one had not taken is taken
 * back: its successor, which is not admitted yet, would carry it out without what came before it on the connection and
 * died with the owner. */
static void cancel(pending *p) {
    forwarded *f = (forwarded *)p;
    core *k = f->peers->core;
    f->cancelled = true;
    if (f->out && (!k->peer_is_down[f->shard] || !links_cancel(&k->links, f->shard, f->position))) return;
    if (!f->out) give_back(f, true);
    caller to = finish(f);
    caller_dropped(&to);
}

static descriptor descriptor_of(const forwarded *f, const partition_request *what) {
    static const uint8_t operations[] = {
        [REQUEST_SEND] = LINK_SEND, [REQUEST_POLL] = LINK_POLL, [REQUEST_STORE] = LINK_STORE};
    descriptor d = {.operation = operations[what->kind],
                    .connection = name_of(f),
                    .sequence = f->sequence,
                    .ns = what->ns,
                    .incarnation = what->incarnation,
                    .count = what->count,
                    .strategy = what->strategy,
                    .consumer_kind = what->consumer_kind,
                    .consumer_id = what->consumer_id,
                    .value = what->value,
                    .assignment = what->assignment,
                    .owner = what->by_user.owner,
                    .name = what->by_user.name,
                    .dialect = f->to.dialect,
                    .bytes_max = what->bytes_max,
                    .flags = (uint8_t)((what->auto_commit ? LINK_FLAG_AUTO_COMMIT : 0) |
                                       (what->own_name ? LINK_FLAG_OWN_NAME : 0))};
    if (what->kind != REQUEST_SEND) return d;
    d.assignment = what->by.producer;
    d.value = what->by.sequence;
    d.consumer_id = what->by.epoch;
    d.strategy = what->by.asks;
    d.handle = what->by.digest;
    d.lease_offset = pool_offset(f->peers->core->pool, what->records);
    d.lease_length = what->records_length;
    return d;
}

bool forward_request(remote *r, uint32_t shard, const partition_request *what, const caller *from) {
    static const pending_calls calls = {.cancel = cancel, .next = next};
    peers *p = (peers *)r;
    core *k = p->core;
    forwarded *f = enter(p);
    if (f == NULL) return false;
    f->pending = (pending){.calls = &calls, .waits_for = WAITS_FOR_PEER, .memory_shard = shard};
    f->to = *from;
    f->kind = what->kind;
    f->value = what->value;
    f->shard = shard;
    f->sequence = ++p->asked.sequence;
    f->out = true;
    descriptor d = descriptor_of(f, what);
    if (!links_post(&k->links, shard, &d, &f->position)) {
        leave(f);
        return false;
    }
    k->counters.forwarded++;
    f->deadline_us = k->peer_is_down[shard] ? k->now_us + HELD_REQUEST_US : 0;
    caller_parked(from, &f->pending);
    return true;
}

/* ---- answers ---- */

static void take_window(forwarded *f, const descriptor *d, const uint8_t *bytes) {
    f->out = false;
    f->more = (d->flags & LINK_FLAG_MORE) != 0;
    f->lease = d->handle;
    f->pending.waits_for = WAITS_FOR_NOTHING;
    answer_window w = {.bytes = bytes,
                       .length = d->lease_length,
                       .last = !f->more,
                       .whole = {.total_count = d->count, .last_offset = d->value}};
    caller to = f->to;
    caller_window(&to, &w); /* it gives the window back, maybe at once */
}

static void take_end(forwarded *f, const descriptor *d) {
    bool stored = f->kind == REQUEST_STORE && d->status == 0;
    outcome end = {.status = d->status, .committed = stored, .offset = f->value};
    if (d->flags & LINK_FLAG_PRODUCED)
        end.made = (produced){(produced_kind)d->strategy, d->count, d->value, d->timestamp};
    bool cancelled = f->cancelled;
    caller to = finish(f);
    if (cancelled) caller_dropped(&to);
    else if (d->operation == LINK_WINDOW || d->flags & LINK_FLAG_BROKEN) caller_gone(&to);
    else if (d->flags & LINK_FLAG_UNKNOWN_PARTITION) caller_again(&to);
    else caller_end(&to, &end);
}

void forward_take_answer(peers *p, uint32_t from, const descriptor *d) {
    forwarded *f = find(p, from, d);
    const uint8_t *bytes = d->operation == LINK_WINDOW ? links_lease(&p->core->links, from, d) : NULL;
    if (d->operation == LINK_WINDOW && (f == NULL || f->cancelled)) {
        descriptor stop = {.operation = LINK_NEXT, .handle = d->handle, .flags = LINK_FLAG_STOP};
        peers_post(p, from, &stop);
    }
    if (f == NULL) return;
    if (bytes != NULL && !f->cancelled) take_window(f, d, bytes);
    else take_end(f, d);
}

/* ---- death and return of an owner ---- */

static bool was_taken(const forwarded *f) {
    const links *l = &f->peers->core->links;
    link_ring *r = links_ring(l, l->shard, f->shard);
    return atomic_load(&r->tail) > f->position;
}

static void give_up(forwarded *f) {
    core *k = f->peers->core;
    if (!links_cancel(&k->links, f->shard, f->position)) {
        f->deadline_us = 0; /* a new owner has just taken it */
        return;
    }
    k->counters.timeouts++;
    bool cancelled = f->cancelled;
    caller to = finish(f);
    if (cancelled) caller_dropped(&to);
    else caller_status(&to, STATUS_SHARD_COMMUNICATION_ERROR);
}

void forward_check_times(peers *p) {
    for (uint32_t i = 0; i < p->asked.capacity; i++) {
        forwarded *f = p->asked.places[i];
        if (f != NULL && f->out && f->deadline_us != 0 && p->core->now_us >= f->deadline_us) give_up(f);
    }
}

void forward_peer_down(peers *p, uint32_t shard) {
    for (uint32_t i = 0; i < p->asked.capacity; i++) {
        forwarded *f = p->asked.places[i];
        if (f == NULL || f->shard != shard) continue;
        if (f->out && !was_taken(f)) {
            if (f->cancelled) cancel(&f->pending); /* whose client may be sending it again */
            else f->deadline_us = p->core->now_us + HELD_REQUEST_US;
        } else { /* who has a window gives it back by a cancel */
            caller to = f->out ? finish(f) : f->to;
            caller_gone(&to);
        }
    }
}

void forward_peer_up(peers *p, uint32_t shard) {
    for (uint32_t i = 0; i < p->asked.capacity; i++)
        if (p->asked.places[i] != NULL && p->asked.places[i]->shard == shard) p->asked.places[i]->deadline_us = 0;
}

void forward_free(peers *p) {
    for (uint32_t i = 0; i < p->asked.capacity; i++) free(p->asked.places[i]);
    free(p->asked.places);
    free(p->asked.generations);
    free(p->asked.free_indexes);
}
