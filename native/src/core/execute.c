/* See execute.h. */
#include "core/execute.h"

#include "base/hash.h"
#include "core/commit.h"
#include "core/producing.h"
#include "core/reads.h"
#include "base/status.h"
#include "core/sync.h"
#include "core/turns.h"

uint32_t execute_store(owned *target, const partition_request *what) {
    if (!fences_pass(&target->fences, what->consumer_id, what->assignment)) return STATUS_NOT_RESOLVED_CONSUMER;
    if (what->own_name) { /* what cannot be read may be another one's */
        uint32_t known = partition_offsets_known(target->p);
        if (known != 0) return known;
        if (!partition_offset_is_of(target->p, what->consumer_id, what->by_user.name))
            return STATUS_CONSUMER_NAME_TAKEN;
    }
    uint32_t status = partition_offset_store_by(target->p, what->consumer_kind, what->consumer_id, what->value,
                                                &what->by_user);
    sync_mark_dirty(target);
    return status;
}

void execute_here(core *k, owned *target, const partition_request *what, const caller *from) {
    if (what->kind == REQUEST_POLL) {
        reads_start(k, target, what, from);
        return;
    }
    outcome end = {.status = execute_store(target, what), .committed = true, .offset = what->value};
    sync_answer(target, from, &end);
}

static route *find_route(core *k, const session *who, const uint8_t *key, uint32_t key_length) {
    route *r = routes_find(&k->routes, who->user_id, key, key_length);
    k->counters.route_misses += r == NULL;
    return r;
}

static route_partition *chosen_partition(core *k, route_topic *t, const session *who, const send_request *s,
                                         uint32_t *status) {
    uint32_t partition = s->partition_id;
    if (s->partitioning != PARTITIONING_PARTITION_ID && t->partitions_count == 0) {
        *status = STATUS_TOPIC_ID_NOT_FOUND;
        return NULL;
    }
    if (s->partitioning == PARTITIONING_BALANCED) partition = turns_take(k, t, who);
    else if (s->partitioning == PARTITIONING_MESSAGES_KEY)
        partition = hash_xxh32(s->key, s->key_length) % t->partitions_count;
    if (partition >= t->partitions_count) {
        *status = STATUS_PARTITION_NOT_FOUND;
        return NULL;
    }
    return &t->partitions[partition];
}

/* The open partition behind a local route entry, bound on first use. NULL: not open here (any more, or yet). Whatever
 * becomes of routes: what was closed is asked for nothing. */
static owned *local_partition(core *k, route_partition *p) {
    if (p->local != NULL && p->local->removed) drop_route_partition(p);
    if (p->local == NULL) {
        owned *o = core_owned(k, p->ns);
        if (o == NULL || o->incarnation != p->incarnation) return NULL;
        o->references++;
        p->local = o;
    }
    return p->local;
}

static execution forward(core *k, uint32_t shard, const partition_request *what, const caller *from) {
    return k->remote->forward(k->remote, shard, what, from) ? EXECUTED : NEEDS_PLACE;
}

static inline __attribute__((always_inline)) execution execute_send(core *k, session *who, const send_request *s,
                                                                    const producer_batch *by, const caller *from) {
    produced refused;
    uint32_t status = 0;
    const route *r = find_route(k, who, s->address, s->stream_length + s->topic_length);
    if (r == NULL) return NEEDS_ROUTE;
    route_partition *p = r->can_send ? chosen_partition(k, r->topic, who, s, &status) : NULL;
    if (p == NULL) {
        caller_status(from, r->can_send ? status : STATUS_UNAUTHORIZED);
        return EXECUTED;
    }
    if (by->producer != 0 && !producing_allowed(k, who->user_id, by, &refused)) {
        caller_end(from, &(outcome){.made = refused});
        return EXECUTED;
    }
    session_count_streak(who, p->owner, k->options.shard);
    k->counters.sends++;
    k->counters.messages_in += s->count;
    if (p->owner != k->options.shard) {
        partition_request what = {.kind = REQUEST_SEND,
                                  .ns = p->ns,
                                  .incarnation = p->incarnation,
                                  .count = s->count,
                                  .by = *by,
                                  .records = s->messages,
                                  .records_length = s->messages_length};
        if (!from->calls->lend(from, &what.records)) return NOT_WANTED;
        return forward(k, p->owner, &what, from);
    }
    owned *target = local_partition(k, p);
    if (target == NULL) return NEEDS_ROUTE;
    append_batch batch = {.messages = s->messages, .length = s->messages_length, .count = s->count, .by = *by};
    return commit_stage(k, target, &batch, from, NULL) ? EXECUTED : NOT_WANTED;
}

/* On the partition that `q` names, here or at its owner. */
static execution poll_or_store(core *k, session *who, const route *r, request_kind kind, const consumer_request *q,
                               const caller *from) {
    if (!r->can_poll || q->partition_id >= r->topic->partitions_count) {
        session_start_over(who);
        caller_status(from, r->can_poll ? STATUS_PARTITION_NOT_FOUND : STATUS_UNAUTHORIZED);
        return EXECUTED;
    }
    route_partition *p = &r->topic->partitions[q->partition_id];
    if (q->positioned && (q->history != p->incarnation || q->epoch != 0)) {
        session_start_over(who);
        caller_status(from, STATUS_UNEXPECTED_OFFSET);
        return EXECUTED;
    }
    partition_request what = {.kind = kind,
                              .ns = p->ns,
                              .incarnation = p->incarnation,
                              .strategy = q->strategy,
                              .value = q->value,
                              .count = q->count,
                              .consumer_id = q->consumer_id,
                              .consumer_kind = q->kind == CONSUMER_GROUP ? OFFSET_GROUP : OFFSET_CONSUMER,
                              .assignment = q->assignment,
                              .by_user = {.owner = r->user_incarnation, .name = q->name},
                              .auto_commit = q->auto_commit,
                              .own_name = q->own_name && q->kind == CONSUMER_PLAIN,
                              .bytes_max = q->bytes_max};
    session_count_streak(who, p->owner, k->options.shard);
    if (kind == REQUEST_POLL) k->counters.polls++;
    else k->counters.stores++;
    if (p->owner != k->options.shard) return forward(k, p->owner, &what, from);
    owned *target = local_partition(k, p);
    if (target == NULL) return NEEDS_ROUTE;
    execute_here(k, target, &what, from);
    return EXECUTED;
}

/* A poll or commit of a group's member on the partition that its seat says. */
static execution as_member(core *k, session *who, const route *r, request_kind kind, consumer_request *q,
                           const caller *from) {
    bool poll = kind == REQUEST_POLL;
    seat *s = seats_find(&who->seats, q->member_key, q->member_key_length, r->topic->version);
    if (s == NULL) return NEEDS_PYTHON;
    if (s->count == 0 && poll && !q->partition_given) { /* it has no partition */
        caller_status(from, STATUS_NOT_RESOLVED_CONSUMER);
        return EXECUTED;
    }
    if (!seat_begin(s, poll, q->partition_given ? (int64_t)q->partition_id : SEAT_NONE, q->auto_commit, &who->work))
        return NEEDS_PYTHON;
    who->storing = !poll;
    who->work.offset = q->value;
    q->partition_id = s->partitions[who->work.at].partition;
    q->consumer_id = s->offsets_id;
    q->name = 0;
    q->assignment = s->generation;
    return poll_or_store(k, who, r, kind, q, from);
}

static execution execute_consumer(core *k, session *who, request_kind kind, consumer_request *q, const caller *from) {
    const route *r = find_route(k, who, q->address, q->stream_length + q->topic_length);
    if (r == NULL) return NEEDS_ROUTE;
    return q->kind == CONSUMER_PLAIN ? poll_or_store(k, who, r, kind, q, from) : as_member(k, who, r, kind, q, from);
}

execution execute_request(core *k, session *s, request *q, const caller *from) {
    session_start_over(s);
    switch (q->kind) {
    case REQUEST_SEND: return execute_send(k, s, &q->send, &q->by, from);
    case REQUEST_POLL:
    case REQUEST_STORE: return execute_consumer(k, s, q->kind, &q->consumer, from);
    default: return NEEDS_PYTHON;
    }
}

execution execute_for_group(core *k, session *s, uint32_t owner, partition_request *what, const caller *from) {
    session_count_streak(s, owner, k->options.shard);
    k->counters.polls++;
    s->group_asked = true;
    if (owner != k->options.shard) return forward(k, owner, what, from);
    owned *target = core_owned(k, what->ns);
    if (target == NULL || target->incarnation != what->incarnation) return NEEDS_ROUTE;
    reads_start(k, target, what, from);
    return EXECUTED;
}
