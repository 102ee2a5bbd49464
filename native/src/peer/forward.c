/* Requests to the owner on another shard, and requests of other shards to us.
 *
 * Bytes stay where they are: a SEND leases its records in our pool until the owner answers; a POLL answer leases a
 * window in the owner's pool until we have sent it (LINK_NEXT gives it back). A dead owner: what it had not taken is
 * held for HELD_REQUEST_US, what it had taken ends with the connection, because nobody can know. */
#include "core/read_queue.h"
#include "engine/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_BETWEEN_LOOKS 8u /* at the clock */

/* ---- posting; a full ring makes the descriptor wait its turn ---- */

typedef struct outgoing {
    waiter wait;
    engine *e;
    uint32_t shard;
    descriptor d;
} outgoing;

static bool retry_outgoing(waiter *w) {
    outgoing *o = (outgoing *)w;
    if (!links_post(&o->e->links, o->shard, &o->d, NULL)) return false;
    free(o);
    return true;
}

static void post(engine *e, uint32_t shard, const descriptor *d) {
    if (links_post(&e->links, shard, d, NULL)) return;
    outgoing *o = calloc(1, sizeof *o);
    if (o == NULL) abort();
    o->e = e;
    o->shard = shard;
    o->d = *d;
    engine_wait(e, &o->wait, retry_outgoing);
}

/* ---- our requests ---- */

void forward_request(conn *c, uint32_t shard, descriptor *d) {
    engine *e = c->e;
    d->connection = conn_id(c);
    d->sequence = ++c->sequence;
    if (!links_post(&e->links, shard, d, &c->forward_position)) {
        c->state = CONN_WAITING;
        engine_wait(e, &c->wait, execute_retry);
        return;
    }
    e->counters.forwarded++;
    c->state = CONN_FORWARDED;
    c->forwarded = true;
    c->forward_shard = shard;
    c->forward_deadline_us = e->peer_is_down[shard] ? e->now_us + HELD_REQUEST_US : 0;
}

void forward_give_up(conn *c) {
    if (!links_cancel(&c->e->links, c->forward_shard, c->forward_position)) {
        c->forward_deadline_us = 0; /* a new owner has just taken it */
        return;
    }
    c->forwarded = false;
    c->e->counters.timeouts++;
    conn_reply_status(c, STATUS_SHARD_UNREACHABLE);
}

static void give_back(engine *e, uint32_t shard, uint64_t handle, bool stop) {
    descriptor next = {.operation = LINK_NEXT, .handle = handle, .flags = stop ? LINK_FLAG_STOP : 0};
    post(e, shard, &next);
}

void forward_output_done(conn *c) {
    assert(c->lease_open);
    c->lease_open = false;
    give_back(c->e, c->forward_shard, c->lease_handle, c->closing);
    if (c->closing) return;
    if (c->lease_more) {
        c->forwarded = true;
        c->state = CONN_FORWARDED;
    } else {
        conn_frame_done(c);
    }
}

static bool wants_to_move(const conn *c) {
    return c->e->options.socket_migration && c->streak >= MOVE_AFTER_REQUESTS && !c->e->peer_is_down[c->streak_shard];
}

static void take_answer(engine *e, uint32_t from, const descriptor *d) {
    uint32_t index = (uint32_t)d->connection;
    conn *c = index < e->conns_capacity ? e->conns[index] : NULL;
    bool wanted = c != NULL && d->requester_generation == e->links.generation && c->generation == d->connection >> 32 &&
                  c->forwarded && c->sequence == d->sequence && c->forward_shard == from;
    const uint8_t *window = d->operation == LINK_WINDOW ? links_lease(&e->links, from, d) : NULL;
    if (wanted) c->forwarded = false;
    if (!wanted || c->closing) {
        if (d->operation == LINK_WINDOW) give_back(e, from, d->handle, true);
        if (wanted) conn_ready(c);
    } else if (d->operation == LINK_WINDOW && window != NULL) {
        c->lease_open = true;
        c->lease_more = (d->flags & LINK_FLAG_MORE) != 0;
        c->lease_handle = d->handle;
        if (!c->lease_more) execute_polled(c, d->count, d->value);
        c->move_wanted = !c->lease_more && wants_to_move(c);
        conn_reply_bytes(c, window, d->lease_length);
    } else if (d->operation == LINK_WINDOW || d->flags & LINK_FLAG_BROKEN) {
        conn_close(c);
    } else if (d->flags & LINK_FLAG_UNKNOWN_PARTITION) {
        execute_unknown_partition(c);
    } else {
        c->move_wanted = wants_to_move(c);
        execute_answer(c, d->status);
    }
}

/* ---- requests of others ---- */

void forward_answer_status(engine *e, const requester *to, uint32_t status, uint8_t flags) {
    descriptor answer = {.operation = LINK_STATUS,
                         .status = status,
                         .flags = flags,
                         .connection = to->connection,
                         .sequence = to->sequence,
                         .requester_generation = to->generation};
    post(e, to->shard, &answer);
}

void forward_answer_window(read_job *job, size_t bytes, bool more) {
    descriptor answer = {.operation = LINK_WINDOW,
                         .flags = more ? LINK_FLAG_MORE : 0,
                         .connection = job->to.connection,
                         .sequence = job->to.sequence,
                         .requester_generation = job->to.generation,
                         .handle = job->handle,
                         .lease_offset = pool_offset(job->e->pool, job->block),
                         .lease_length = bytes,
                         .count = (uint32_t)job->cursor.total_count,
                         .value = job->cursor.last_offset};
    post(job->e, job->to.shard, &answer);
}

typedef struct remote_send { /* waits for memory */
    waiter wait;
    engine *e;
    uint32_t from;
    descriptor d;
} remote_send;

static requester requester_of(uint32_t from, const descriptor *d) {
    return (requester){
        .shard = from, .generation = d->generation, .connection = d->connection, .sequence = d->sequence};
}

/* Copies the leased records and stages them. False: no memory now. */
static bool serve_send(engine *e, uint32_t from, const descriptor *d) {
    requester to = requester_of(from, d);
    owned *target = engine_owned(e, d->ns);
    const uint8_t *records = links_lease(&e->links, from, d);
    if (records == NULL) return true; /* the asker is gone */
    if (target == NULL || target->incarnation != d->incarnation) {
        forward_answer_status(e, &to, 0, LINK_FLAG_UNKNOWN_PARTITION);
        return true;
    }
    uint8_t *block = engine_allocate(e, d->lease_length, false);
    if (block == NULL) return false;
    memcpy(block, records, d->lease_length);
    if (!links_lease_valid(&e->links, from, d->generation)) { /* its successor may have written while we copied */
        pool_free(e->pool, block);
        return true;
    }
    append_batch batch = {.messages = block, .length = d->lease_length, .count = d->count};
    engine_stage(e, target, &batch, &to, block);
    return true;
}

static bool retry_remote_send(waiter *w) {
    remote_send *r = (remote_send *)w;
    if (!serve_send(r->e, r->from, &r->d)) return false;
    free(r);
    return true;
}

static void take_send(engine *e, uint32_t from, const descriptor *d) {
    if (serve_send(e, from, d)) return;
    remote_send *r = calloc(1, sizeof *r);
    if (r == NULL) abort();
    r->e = e;
    r->from = from;
    r->d = *d;
    engine_wait(e, &r->wait, retry_remote_send);
}

static void take_next(engine *e, uint32_t from, const descriptor *d) {
    read_job *job = reads_by_handle(e, d->handle);
    if (job == NULL || job->to.shard != from) return;
    if (d->flags & LINK_FLAG_STOP) reads_abandon(job);
    else reads_next_window(job);
}

static void take_read_or_store(engine *e, uint32_t from, const descriptor *d) {
    requester to = requester_of(from, d);
    owned *target = engine_owned(e, d->ns);
    if (target == NULL || target->incarnation != d->incarnation) {
        forward_answer_status(e, &to, 0, LINK_FLAG_UNKNOWN_PARTITION);
    } else if (d->operation == LINK_POLL) {
        reads_start(e, target, &to, d);
    } else {
        sync_answer(target, &to, execute_store(target, d));
    }
}

static void serve(engine *e, uint32_t from, const descriptor *d) {
    if (d->operation == LINK_STATUS || d->operation == LINK_WINDOW) {
        take_answer(e, from, d);
        return;
    }
    if (!links_lease_valid(&e->links, from, d->generation)) return; /* asked by a predecessor of today's peer */
    e->counters.served_for_peers += d->operation != LINK_NEXT;      /* that is a part of a poll */
    switch (d->operation) {
    case LINK_SEND: take_send(e, from, d); break;
    case LINK_POLL:
    case LINK_STORE: take_read_or_store(e, from, d); break;
    case LINK_NEXT: take_next(e, from, d); break;
    default: break;
    }
}

/* One of each peer in turn, so that none waits for another one's crowd. */
void forward_serve(engine *e, int64_t until_us) {
    descriptor d;
    bool any = true;
    for (uint32_t round = 1; any && round <= LINK_SLOTS; round++) {
        any = false;
        for (uint32_t from = 0; from < e->links.shards; from++) {
            if (from == e->links.shard || !links_take(&e->links, from, &d)) continue;
            any = true;
            serve(e, from, &d);
        }
        if (round % ROUNDS_BETWEEN_LOOKS == 0 && clock_monotonic_us() > until_us) return;
    }
}

/* ---- death and return of a peer ---- */

static bool was_taken(engine *e, const conn *c) {
    link_ring *r = links_ring(&e->links, e->links.shard, c->forward_shard);
    return atomic_load(&r->tail) > c->forward_position;
}

void forward_peer_down(engine *e, uint32_t shard) {
    forward_serve(e, INT64_MAX); /* its last answers count */
    e->peer_is_down[shard] = true;
    for (uint32_t i = 0; i < e->conns_capacity; i++) {
        conn *c = e->conns[i];
        if (c == NULL || c->forward_shard != shard || (!c->forwarded && !c->lease_open)) continue;
        if (c->forwarded && !was_taken(e, c)) {
            c->forward_deadline_us = e->now_us + HELD_REQUEST_US;
            continue;
        }
        c->forwarded = false;
        conn_close(c);
        conn_ready(c);
    }
    for (read_job *job = e->jobs, *next; job != NULL; job = next) {
        next = job->next;
        if (job->to.c == NULL && job->to.shard == shard) reads_abandon(job);
    }
}

void forward_peer_up(engine *e, uint32_t shard) {
    e->peer_is_down[shard] = false;
    for (uint32_t i = 0; i < e->conns_capacity; i++)
        if (e->conns[i] != NULL && e->conns[i]->forward_shard == shard) e->conns[i]->forward_deadline_us = 0;
}
