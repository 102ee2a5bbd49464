/* One complete frame: answer it here, stage it, read for it, forward it, or ask Python. */
#include "engine/engine.h"

#include "log/batch.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

static requester from_conn(conn *c) {
    return (requester){.c = c, .shard = c->e->links.shard, .connection = conn_id(c)};
}

/* The request in work is not carried out, or begins again. */
static void start_over(conn *c) {
    c->group_asked = false;
    seat_undo(&c->seat_work);
}

bool execute_retry(waiter *w) {
    conn *c = (conn *)w;
    c->state = CONN_RECEIVING;
    execute_frame(c); /* may queue itself again */
    return true;
}

void execute_left_python(conn *c) {
    c->e->large_in_python -= c->large_in_python;
    c->large_in_python = false;
}

static void ask_python(conn *c) {
    engine *e = c->e;
    start_over(c);
    if (c->payload_length > FRAME_SMALL_MAX && e->large_in_python >= LARGE_REQUESTS_MAX) {
        c->state = CONN_WAITING;
        engine_wait(e, &c->wait, execute_retry);
        return;
    }
    c->state = CONN_PYTHON;
    c->large_in_python = c->payload_length > FRAME_SMALL_MAX;
    e->large_in_python += c->large_in_python;
    e->events_anonymous += !c->authenticated;
    event *v = engine_event(c->e, EVENT_REQUEST, conn_id(c));
    v->code = c->code;
    v->user_id = c->user_id;
    v->authenticated = c->authenticated;
    v->data = malloc(c->payload_length + 1u);
    if (v->data == NULL) abort(); /* a few bytes to 10 MiB: the process is past saving */
    v->data_length = c->payload_length;
    if (c->payload_length > 0) memcpy(v->data, c->payload, c->payload_length);
    /* Python has it, and may take long (a login waits for its turn): a shared buffer is not kept for that. */
    if (c->code != CODE_POLL_MESSAGES && c->code != CODE_STORE_CONSUMER_OFFSET) /* those may come back */
        conn_frame_release(c);
}

static void route_miss(conn *c, const uint8_t *address, uint32_t stream_length, uint32_t topic_length) {
    c->state = CONN_PYTHON;
    start_over(c);
    event *v = engine_event(c->e, EVENT_ROUTE_MISS, conn_id(c));
    v->code = c->code;
    v->user_id = c->user_id;
    v->number = c->attempts++;
    v->data = malloc(stream_length + topic_length);
    if (v->data == NULL) abort();
    memcpy(v->data, address, stream_length + topic_length);
    v->data_length = stream_length + topic_length;
    v->split = stream_length;
}

static const route_partition *chosen_partition(engine *e, const route *r, const send_request *s, uint32_t *status) {
    uint32_t partition = s->partition_id;
    if (s->partitioning != PARTITIONING_PARTITION_ID && r->partitions_count == 0) {
        *status = STATUS_TOPIC_NOT_FOUND;
        return NULL;
    }
    if (s->partitioning == PARTITIONING_BALANCED) partition = links_balance(&e->links, r->counter, r->partitions_count);
    else if (s->partitioning == PARTITIONING_MESSAGES_KEY)
        partition = hash_xxh32(s->key, s->key_length) % r->partitions_count;
    if (partition >= r->partitions_count) {
        *status = STATUS_PARTITION_NOT_FOUND;
        return NULL;
    }
    return &r->partitions[partition];
}

/* Consecutive requests to one other shard count towards moving the socket there. */
static void count_streak(conn *c, uint32_t shard) {
    if (shard == c->e->links.shard) {
        c->streak = 0;
        return;
    }
    if (c->streak_shard != shard) c->streak = 0;
    c->streak_shard = shard;
    c->streak++;
}

/* The open partition behind a local route entry, bound on first use. NULL: not open here (any more, or yet). */
static owned *local_partition(engine *e, route_partition *p) {
    if (p->local == NULL) {
        owned *o = engine_owned(e, p->ns);
        if (o == NULL || o->incarnation != p->incarnation) return NULL;
        o->references++;
        p->local = o;
    }
    return p->local;
}

static void execute_send(conn *c) {
    engine *e = c->e;
    if (!c->authenticated) {
        conn_reply_status(c, STATUS_UNAUTHENTICATED);
        return;
    }
    send_request s;
    uint32_t status = send_request_parse(c->payload, c->payload_length, &s);
    if (status != 0) {
        conn_reply_status(c, status);
        return;
    }
    route *r = routes_find(&e->routes, c->user_id, s.address, s.stream_length + s.topic_length);
    if (r == NULL) {
        route_miss(c, s.address, s.stream_length, s.topic_length);
        return;
    }
    const route_partition *p = r->can_send ? chosen_partition(e, r, &s, &status) : NULL;
    if (p == NULL) {
        conn_reply_status(c, r->can_send ? status : STATUS_UNAUTHORIZED);
        return;
    }
    count_streak(c, p->owner);
    e->counters.sends++;
    e->counters.messages_in += s.count;
    if (p->owner != e->links.shard) {
        if (e->io.free_buffers[BUFFERS_LOGGED_IN] < RECEIVE_BUFFERS / 2) { /* the owner may take its time */
            const uint8_t *before = c->payload;
            c->state = CONN_FORWARDED; /* so that the payload is kept */
            bool open = conn_park(c) || !c->closing;
            c->state = CONN_RECEIVING;
            if (!open) return;
            s.messages += c->payload - before;
        }
        descriptor d = {.operation = LINK_SEND,
                        .ns = p->ns,
                        .incarnation = p->incarnation,
                        .count = s.count,
                        .lease_offset = pool_offset(e->pool, s.messages),
                        .lease_length = s.messages_length};
        forward_request(c, p->owner, &d);
        return;
    }
    owned *target = local_partition(e, (route_partition *)(uintptr_t)p);
    if (target == NULL) {
        route_miss(c, s.address, s.stream_length, s.topic_length);
        return;
    }
    requester from = from_conn(c);
    append_batch batch = {.messages = s.messages, .length = s.messages_length, .count = s.count};
    c->state = CONN_STAGED;
    engine_stage(e, target, &batch, &from, NULL);
}

/* On the partition that `q` names, here or at its owner. */
static void poll_or_store(conn *c, const consumer_request *q, bool poll) {
    engine *e = c->e;
    route *r = routes_find(&e->routes, c->user_id, q->address, q->stream_length + q->topic_length);
    if (r == NULL) {
        route_miss(c, q->address, q->stream_length, q->topic_length);
        return;
    }
    if (!r->can_poll || q->partition_id >= r->partitions_count) {
        start_over(c);
        conn_reply_status(c, r->can_poll ? STATUS_PARTITION_NOT_FOUND : STATUS_UNAUTHORIZED);
        return;
    }
    route_partition *p = &r->partitions[q->partition_id];
    descriptor d = {.operation = poll ? LINK_POLL : LINK_STORE,
                    .ns = p->ns,
                    .incarnation = p->incarnation,
                    .strategy = q->strategy,
                    .value = q->value,
                    .count = q->count,
                    .consumer_id = q->consumer_id,
                    .consumer_kind = q->kind == CONSUMER_GROUP ? OFFSET_GROUP : OFFSET_CONSUMER,
                    .assignment = q->assignment,
                    .flags = q->auto_commit ? LINK_FLAG_AUTO_COMMIT : 0};
    count_streak(c, p->owner);
    if (poll) e->counters.polls++;
    else e->counters.stores++;
    if (p->owner != e->links.shard) {
        forward_request(c, p->owner, &d);
        return;
    }
    owned *target = local_partition(e, p);
    if (target == NULL) {
        route_miss(c, q->address, q->stream_length, q->topic_length);
    } else if (poll) {
        requester to = from_conn(c);
        c->state = CONN_READING;
        reads_start(e, target, &to, &d);
    } else {
        requester to = from_conn(c);
        sync_answer(target, &to, execute_store(target, &d));
    }
}

/* A poll or commit of a group's member on the partition that its seat says. False: Python decides. */
static bool as_member(conn *c, consumer_request *q, bool poll) {
    const uint8_t *key = c->payload + 1;
    seat *s = seats_find(&c->seats, key, request_key_length(q, key), c->e->routes_version);
    if (s == NULL) return false;
    if (s->count == 0 && poll && !q->partition_given) { /* it has no partition */
        execute_answer(c, STATUS_NOT_RESOLVED_CONSUMER);
        return true;
    }
    if (!seat_begin(s, poll, q->partition_given ? (int64_t)q->partition_id : SEAT_NONE, q->auto_commit, &c->seat_work))
        return false;
    c->seat_work.offset = q->value;
    q->partition_id = s->partitions[c->seat_work.at].partition;
    q->consumer_id = s->offsets_id;
    q->assignment = s->generation;
    poll_or_store(c, q, poll);
    return true;
}

uint32_t execute_store(owned *target, const descriptor *d) {
    if (!fences_pass(&target->fences, d->consumer_id, d->assignment)) return STATUS_NOT_RESOLVED_CONSUMER;
    uint32_t status = partition_offset_store(target->p, d->consumer_kind, d->consumer_id, d->value);
    sync_mark_dirty(target);
    return status;
}

void execute_unknown_partition(conn *c) {
    consumer_request q;
    send_request s;
    if (c->code == CODE_SEND_MESSAGES && send_request_parse(c->payload, c->payload_length, &s) == 0)
        route_miss(c, s.address, s.stream_length, s.topic_length);
    else if (request_parse_poll(c->payload, c->payload_length, &q) ||
             request_parse_store(c->payload, c->payload_length, &q))
        route_miss(c, q.address, q.stream_length, q.topic_length);
    else conn_close(c); /* it was parsed before it was forwarded */
}

void execute_group_poll(conn *c, uint32_t owner, descriptor *d) {
    engine *e = c->e;
    count_streak(c, owner);
    e->counters.polls++;
    c->group_asked = true;
    if (owner != e->links.shard) {
        forward_request(c, owner, d);
        return;
    }
    owned *target = engine_owned(e, d->ns);
    if (target == NULL || target->incarnation != d->incarnation) {
        execute_unknown_partition(c);
        return;
    }
    requester to = from_conn(c);
    c->state = CONN_READING;
    reads_start(e, target, &to, d);
}

static void report(conn *c, uint64_t count, uint64_t offset, bool stored) {
    if (!c->group_asked) return;
    c->group_asked = false;
    event *v = engine_event(c->e, EVENT_GROUP_POLLED, conn_id(c));
    v->code = (uint32_t)count;
    v->number = offset;
    v->authenticated = stored;
}

void execute_polled(conn *c, uint64_t count, uint64_t last_offset) {
    if (c->seat_work.seat != NULL) seat_polled(&c->seat_work, count, last_offset);
    else report(c, count, last_offset, false);
}

void execute_replied(conn *c, uint32_t status) {
    bool stored = status == 0 && c->code == CODE_STORE_CONSUMER_OFFSET;
    if (c->seat_work.seat == NULL) report(c, 0, stored ? c->seat_work.offset : 0, stored);
    else if (c->code == CODE_STORE_CONSUMER_OFFSET) seat_committed(&c->seat_work, stored);
    else seat_polled(&c->seat_work, 0, 0);
}

void execute_answer(conn *c, uint32_t status) {
    static const uint8_t nothing[POLL_HEAD_BYTES] = {[4] = POLL_HEAD_BYTES - FRAME_HEADER_SIZE}; /* (0, 0, 0) */
    if (status != STATUS_NOT_RESOLVED_CONSUMER || c->code != CODE_POLL_MESSAGES) {
        conn_reply_status(c, status);
        return;
    }
    execute_polled(c, 0, 0);
    conn_reply_bytes(c, nothing, sizeof nothing);
}

void execute_frame(conn *c) {
    consumer_request q;
    start_over(c);
    switch (c->code) {
    case CODE_PING:
        c->heartbeat_us = c->e->now_us;
        conn_reply_status(c, 0);
        return;
    case CODE_SEND_MESSAGES: execute_send(c); return;
    case CODE_POLL_MESSAGES:
    case CODE_STORE_CONSUMER_OFFSET: {
        bool poll = c->code == CODE_POLL_MESSAGES;
        bool hot = poll ? request_parse_poll(c->payload, c->payload_length, &q)
                        : request_parse_store(c->payload, c->payload_length, &q);
        hot = hot && c->authenticated;
        if (hot && q.kind == CONSUMER_PLAIN) poll_or_store(c, &q, poll);
        else if (!hot || !as_member(c, &q, poll)) ask_python(c); /* it knows every status, and who is a member */
        return;
    }
    default: ask_python(c);
    }
}
