/* Requests of other shards for partitions of this one: the caller that is a peer. */
#include "peer/peers.h"

#include "core/commit.h"
#include "core/execute.h"
#include "core/output.h"
#include "base/status.h"
#include "wire/dialect.h"
#include "wire/record_forms.h"

#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

static void answer(peers *p, const caller *to, uint32_t status, uint8_t flags) {
    descriptor d = {.operation = LINK_STATUS,
                    .status = status,
                    .flags = flags,
                    .connection = to->connection,
                    .sequence = to->sequence,
                    .requester_generation = to->generation};
    peers_post(p, to->shard, &d);
}

static void on_status(const caller *to, uint32_t status) { answer(to->owner, to, status, 0); }

static void on_committed(const caller *to, uint64_t offset) {
    (void)offset; /* the asker knows what it asked */
    answer(to->owner, to, 0, 0);
}

static void on_produced(const caller *to, const produced *made) {
    descriptor d = {.operation = LINK_STATUS,
                    .flags = LINK_FLAG_PRODUCED,
                    .strategy = (uint8_t)made->kind,
                    .count = made->count,
                    .value = made->first,
                    .timestamp = made->timestamp,
                    .connection = to->connection,
                    .sequence = to->sequence,
                    .requester_generation = to->generation};
    peers_post(to->owner, to->shard, &d);
}

static void on_gone(const caller *to) { answer(to->owner, to, 0, LINK_FLAG_BROKEN); }

static void on_again(const caller *to) { answer(to->owner, to, 0, LINK_FLAG_UNKNOWN_PARTITION); }

static void ignore(const caller *to) { (void)to; }

static void ignore_parked(const caller *to, pending *work) {
    (void)to;
    (void)work;
}

static bool is_wanted(const caller *to) {
    (void)to;
    return true;
}

static const caller_calls write_calls = {.status = on_status,
                                         .committed = on_committed,
                                         .produced = on_produced,
                                         .gone = on_gone,
                                         .again = on_again,
                                         .dropped = ignore,
                                         .parked = ignore_parked,
                                         .wanted = is_wanted};

static caller caller_of(peers *p, uint32_t from, const descriptor *d) {
    return (caller){.calls = &write_calls,
                    .owner = p,
                    .shard = from,
                    .generation = d->generation,
                    .connection = d->connection,
                    .sequence = d->sequence};
}

/* ---- polls: their windows are leased to the asker ---- */

struct peer_poll {
    peers *peers;
    pending *work;          /* NULL: the last window is out */
    uint8_t *block;         /* it */
    const dialect *dialect; /* NULL: no head */
    uint32_t shard;
    uint64_t handle;
    bool lent;       /* the asker has a window */
    peer_poll *next; /* in its bucket */
};

static peer_poll **place_of(peers *p, uint64_t handle) {
    peer_poll **place = &p->polls.by_handle[handle % POLL_BUCKETS];
    while (*place != NULL && (*place)->handle != handle) place = &(*place)->next;
    return place;
}

static void poll_free(peer_poll *poll) {
    peers *p = poll->peers;
    output_free(p->core, poll->block);
    *place_of(p, poll->handle) = poll->next;
    free(poll);
}

static void poll_answer(const caller *to, uint32_t status, uint8_t flags) {
    peer_poll *poll = to->owner;
    answer(poll->peers, to, status, flags);
    poll_free(poll);
}

static void on_poll_status(const caller *to, uint32_t status) { poll_answer(to, status, 0); }

static void on_poll_gone(const caller *to) { poll_answer(to, 0, LINK_FLAG_BROKEN); }

static void on_poll_again(const caller *to) { poll_answer(to, 0, LINK_FLAG_UNKNOWN_PARTITION); }

static void on_poll_dropped(const caller *to) { poll_free(to->owner); }

static void on_poll_parked(const caller *to, pending *work) { ((peer_poll *)to->owner)->work = work; }

static void put_poll_head(const caller *to, uint8_t *at, const poll_summary *whole) {
    ((const peer_poll *)to->owner)->dialect->put_poll_head(at, whole);
}

static size_t convert_poll(const caller *to, uint8_t *records, size_t length) {
    return records_to_form(records, length, (record_form)((const peer_poll *)to->owner)->dialect->record_form);
}

static void on_poll_window(const caller *to, const answer_window *w) {
    peer_poll *poll = to->owner;
    peers *p = poll->peers;
    poll->block = w->block;
    poll->lent = true;
    descriptor d = {.operation = LINK_WINDOW,
                    .flags = w->last ? 0 : LINK_FLAG_MORE,
                    .connection = to->connection,
                    .sequence = to->sequence,
                    .requester_generation = to->generation,
                    .handle = poll->handle,
                    .lease_offset = pool_offset(p->core->pool, w->bytes),
                    .lease_length = w->length,
                    .count = (uint32_t)w->whole.total_count,
                    .value = w->whole.last_offset};
    peers_post(p, to->shard, &d);
}

static void take_poll(peers *p, owned *target, const partition_request *what, const descriptor *d, caller to) {
    static const caller_calls calls = {.status = on_poll_status,
                                       .window = on_poll_window,
                                       .gone = on_poll_gone,
                                       .again = on_poll_again,
                                       .dropped = on_poll_dropped,
                                       .parked = on_poll_parked,
                                       .wanted = is_wanted,
                                       .convert = convert_poll,
                                       .put_head = put_poll_head};
    const dialect *form = dialect_of(d->dialect);
    if (form == NULL && d->dialect != 0) {
        caller_status(&to, STATUS_INVALID_COMMAND);
        return;
    }
    peer_poll *poll = calloc(1, sizeof *poll);
    if (poll == NULL) {
        caller_status(&to, STATUS_CANNOT_READ_FILE);
        return;
    }
    poll->peers = p;
    poll->dialect = form;
    poll->shard = to.shard;
    poll->handle = ++p->polls.last_handle;
    poll->next = p->polls.by_handle[poll->handle % POLL_BUCKETS];
    p->polls.by_handle[poll->handle % POLL_BUCKETS] = poll;
    to.calls = &calls;
    to.owner = poll;
    to.head_bytes = form != NULL ? form->poll_head_bytes : 0;
    to.one_window = form != NULL && form->record_form != 0;
    execute_here(p->core, target, what, &to);
}

static void stop(peer_poll *poll) {
    if (poll->work != NULL) pending_cancel(poll->work);
    else poll_free(poll);
}

static void take_next(peers *p, uint32_t from, const descriptor *d) {
    peer_poll *poll = *place_of(p, d->handle);
    if (poll == NULL || poll->shard != from) return;
    if (d->flags & LINK_FLAG_STOP) {
        stop(poll);
    } else if (poll->lent) { /* otherwise it asks for what it was not told of */
        poll->lent = false;
        if (poll->work != NULL) pending_next(poll->work);
        else poll_free(poll);
    }
}

void serve_peer_down(peers *p, uint32_t shard) {
    for (uint32_t n = 0; n < POLL_BUCKETS; n++)
        for (peer_poll *poll = p->polls.by_handle[n], *next; poll != NULL; poll = next) {
            next = poll->next; /* a stop ends no other poll */
            if (poll->shard == shard) stop(poll);
        }
}

/* ---- requests ---- */

typedef struct remote_send {
    struct remote_send *next;
    descriptor d;
    uint8_t *block; /* copied so far: a slice at a time */
    uint64_t copied;
} remote_send;

/* SENDs of one shard that wait for memory. Those that come later wait behind them: the requests of a connection keep
 * their order. */
struct send_line {
    waiter wait; /* first */
    peers *peers;
    uint32_t from;
    remote_send *first, *last;
};

static void end_copy(peers *p, remote_send *r) {
    p->copies -= r->block != NULL;
    r->block = NULL;
}

static void drop_copy(peers *p, remote_send *r) {
    if (r->block != NULL) pool_free(p->core->pool, r->block);
    end_copy(p, r);
}

/* Copies the leased records and stages them. False: no memory now, or more than a slice of them. */
static bool serve_send(peers *p, uint32_t from, remote_send *r) {
    core *k = p->core;
    const descriptor *d = &r->d;
    caller to = caller_of(p, from, d);
    owned *target = core_owned(k, d->ns);
    const uint8_t *records = links_lease(&k->links, from, d);
    if (records == NULL) { /* the asker is gone */
        drop_copy(p, r);
        return true;
    }
    if (target == NULL || target->incarnation != d->incarnation) {
        drop_copy(p, r);
        caller_again(&to);
        return true;
    }
    if (r->block == NULL) r->block = pool_alloc(k->pool, d->lease_length);
    if (r->block == NULL) return false;
    p->copies += r->copied == 0;
    uint64_t left = d->lease_length - r->copied, length = left <= APPEND_LARGE_BYTES ? left : APPEND_PART_BYTES;
    memcpy(r->block + r->copied, records + r->copied, length);
    r->copied += length;
    if (length < left) return false;
    if (!links_lease_valid(&k->links, from, d->generation)) { /* its successor may have written while we copied */
        drop_copy(p, r);
        return true;
    }
    append_batch batch = {.messages = r->block, .length = d->lease_length, .count = d->count};
    batch.by = (producer_batch){.producer = d->assignment,
                                .sequence = d->value,
                                .epoch = d->consumer_id,
                                .digest = d->handle,
                                .asks = d->strategy};
    end_copy(p, r);
    commit_stage(k, target, &batch, &to, batch.messages);
    return true;
}

static bool retry_remote_sends(waiter *w) {
    send_line *line = (send_line *)w;
    while (line->first != NULL) {
        remote_send *r = line->first;
        if (!serve_send(line->peers, line->from, r)) return false;
        line->first = r->next;
        free(r);
    }
    return true;
}

static void take_send(peers *p, uint32_t from, const descriptor *d) {
    send_line *line = &p->sends[from];
    remote_send first = {.d = *d};
    if (line->first == NULL && serve_send(p, from, &first)) return;
    remote_send *r = calloc(1, sizeof *r);
    if (r == NULL) {
        caller to = caller_of(p, from, d);
        drop_copy(p, &first);
        caller_status(&to, STATUS_CANNOT_WRITE_TO_FILE);
        return;
    }
    *r = first;
    if (line->first == NULL) line->first = r;
    else line->last->next = r;
    line->last = r;
    if (!line->wait.queued) core_wait(p->core, &line->wait, retry_remote_sends);
}

static void take_read_or_store(peers *p, uint32_t from, const descriptor *d) {
    caller to = caller_of(p, from, d);
    owned *target = core_owned(p->core, d->ns);
    partition_request what = {.kind = d->operation == LINK_POLL ? REQUEST_POLL : REQUEST_STORE,
                              .ns = d->ns,
                              .incarnation = d->incarnation,
                              .count = d->count,
                              .strategy = d->strategy,
                              .consumer_kind = d->consumer_kind,
                              .consumer_id = d->consumer_id,
                              .value = d->value,
                              .assignment = d->assignment,
                              .by_user = {.owner = d->owner, .name = d->name},
                              .auto_commit = (d->flags & LINK_FLAG_AUTO_COMMIT) != 0,
                              .own_name = (d->flags & LINK_FLAG_OWN_NAME) != 0,
                              .bytes_max = d->bytes_max};
    if (target == NULL || target->incarnation != d->incarnation) caller_again(&to);
    else if (what.kind == REQUEST_POLL) take_poll(p, target, &what, d, to);
    else execute_here(p->core, target, &what, &to);
}

/* ---- waiting polls (core/waiting_polls.h) ---- */

/* Not queued: the next request for the partition must not overtake it. */
bool serve_ask_wake(remote *r, uint32_t shard, uint64_t ns, uint64_t incarnation) {
    descriptor d = {.operation = LINK_ASK_WAKE, .ns = ns, .incarnation = incarnation};
    return links_post(&((peers *)r)->core->links, shard, &d, NULL);
}

void serve_wake(remote *r, uint32_t shard, uint64_t ns) {
    descriptor d = {.operation = LINK_WAKE, .ns = ns};
    peers_post((peers *)r, shard, &d);
}

void serve_request(peers *p, uint32_t from, const descriptor *d) {
    core *k = p->core;
    if (!links_lease_valid(&k->links, from, d->generation)) return; /* asked by a predecessor of today's peer */
    k->counters.served_for_peers += d->operation <= LINK_STORE;     /* all others are parts of a poll */
    switch (d->operation) {
    case LINK_SEND: take_send(p, from, d); break;
    case LINK_POLL:
    case LINK_STORE: take_read_or_store(p, from, d); break;
    case LINK_NEXT: take_next(p, from, d); break;
    case LINK_ASK_WAKE:
        if (!waiting_polls_asked(k, from, d->ns, d->incarnation)) serve_wake(&p->remote, from, d->ns);
        break;
    case LINK_WAKE: waiting_polls_told(k, d->ns); break;
    default: break;
    }
}

bool serve_open(peers *p) {
    uint32_t shards = p->core->options.shards;
    /* What is said of a window of our predecessor finds none. */
    p->polls.last_handle = (uint64_t)p->core->links.generation << 32;
    p->sends = calloc(shards, sizeof *p->sends);
    for (uint32_t from = 0; p->sends != NULL && from < shards; from++) {
        p->sends[from].peers = p;
        p->sends[from].from = from;
    }
    return p->sends != NULL;
}

void serve_free(peers *p) {
    for (uint32_t from = 0; p->sends != NULL && from < p->core->options.shards; from++)
        while (p->sends[from].first != NULL) {
            remote_send *r = p->sends[from].first;
            p->sends[from].first = r->next;
            free(r);
        }
    free(p->sends);
    for (uint32_t n = 0; n < POLL_BUCKETS; n++)
        while (p->polls.by_handle[n] != NULL) {
            p->polls.by_handle[n]->block = NULL; /* the pool goes with it */
            poll_free(p->polls.by_handle[n]);
        }
}
