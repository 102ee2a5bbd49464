/* A complete frame becomes a typed request of the core, or an event for Python; and what the core answers becomes
 * output: the caller that is a connection. */
#include "net/net.h"

#include "base/assert.h"
#include "base/status.h"
#include "core/execute.h"
#include "core/output.h"
#include "net/conn/wait.h"
#include "wire/record_forms.h"

#include <stdlib.h>
#include <string.h>

/* ---- Python's ---- */

/* Python decides, with a copy of `data`. NULL: no memory, the request is refused. */
static event *event_with_data(conn *c, event_kind kind, const uint8_t *data, uint32_t length) {
    uint32_t head = kind == EVENT_REQUEST && c->dialect->python_reads_head ? c->dialect->head_bytes : 0;
    uint8_t *copy = malloc(head + length + 1u);
    event *v = copy != NULL ? events_add(&c->core->events, kind, conn_id(c)) : NULL;
    if (v == NULL) {
        free(copy);
        conn_reply_status(c, STATUS_ERROR);
        return NULL;
    }
    if (head > 0) memcpy(copy, c->frame.head_bytes, head);
    if (length > 0) memcpy(copy + head, data, length);
    v->code = c->frame.head.code;
    v->user_id = c->session.user_id;
    v->dialect = c->dialect->number;
    v->data = copy;
    v->data_length = head + length;
    c->state = CONN_PYTHON;
    return v;
}

/* One user leaves places to others. */
static bool has_large_place(const conn *c) {
    const net *n = c->net;
    uint32_t own = 0;
    for (uint32_t i = 0; i < n->large_in_python; i++) own += n->large_users[i] == c->session.user_id;
    return n->large_in_python < LARGE_REQUESTS_MAX && own < LARGE_OF_USER_MAX;
}

static void take_large_place(conn *c) {
    c->frame.large_in_python = true;
    c->frame.large_user = c->session.user_id;
    c->net->large_users[c->net->large_in_python++] = c->frame.large_user;
}

static void ask_python(conn *c) {
    bool large = c->frame.head.length > LARGE_REQUEST_BYTES;
    session_start_over(&c->session);
    sample_drop(&c->sample); /* Python traces what it answers */
    if (large && !has_large_place(c)) {
        c->state = CONN_WAITING;
        core_wait(c->core, &c->wait, conn_retry);
        return;
    }
    event *v = event_with_data(c, EVENT_REQUEST, c->frame.payload, c->frame.head.length);
    if (v == NULL) return;
    if (large) take_large_place(c);
    c->core->events.anonymous += !c->session.authenticated;
    v->authenticated = c->session.authenticated;
    /* Python has it, and may take long (a login waits for its turn): a shared buffer is not kept for that. */
    if (c->frame.head.kind != REQUEST_POLL && c->frame.head.kind != REQUEST_STORE) /* those may come back */
        conn_frame_release(c);
}

bool conn_ask_who(conn *c) {
    event *v = event_with_data(c, EVENT_REQUEST, NULL, 0);
    if (v == NULL) {
        conn_close(c); /* what follows the head would be read as requests */
        return false;
    }
    c->frame.asked_who = true;
    c->core->events.anonymous++;
    v->authenticated = false;
    return true;
}

static void ask_route(conn *c, const request *q) {
    bool sends = q->kind == REQUEST_SEND;
    const uint8_t *address = sends ? q->send.address : q->consumer.address;
    uint32_t stream_length = sends ? q->send.stream_length : q->consumer.stream_length;
    uint32_t topic_length = sends ? q->send.topic_length : q->consumer.topic_length;
    session_start_over(&c->session);
    event *v = event_with_data(c, EVENT_ROUTE_MISS, address, stream_length + topic_length);
    if (v == NULL) return;
    v->number = c->frame.attempts++;
    v->split = stream_length;
}

static uint32_t parse(conn *c, request *out) {
    uint32_t status = c->dialect->parse(&c->frame.head, c->frame.payload, out);
    c->frame.head.again = status == 0 && out->kind == c->frame.head.kind;
    return status;
}

/* ---- polls that wait (wait.h) ---- */

/* False: no memory, it is refused. */
static bool begin_wait(conn *c, const consumer_request *asked) {
    conn_wait *w = conn_wait_make(c, asked);
    if (w == NULL) {
        conn_reply_status(c, STATUS_FEATURE_UNAVAILABLE);
        return false;
    }
    conn_frame_release(c);
    c->frame.payload = w->payload;
    c->wait_for = w;
    return true;
}

/* What it found is given back. */
static void let_go(conn *c) {
    output_free(c->core, c->output.block);
    c->output.block = NULL;
    if (c->work != NULL) pending_next(c->work);
}

/* Its poll has found nothing. True: it waits, looks again or was refused; false: that is the answer. */
static bool waits_further(conn *c) {
    conn_wait *w = c->wait_for;
    uint32_t status = 0;
    if (c->core->now_us >= w->until_us || c->net->stopping_status != 0) return false;
    if (w->armed && w->looks > 0) w->looks--;
    if (!w->armed && !conn_wait_arm(c, &status)) {
        if (status == 0) return false;
        let_go(c);
        conn_reply_status(c, status);
        return true;
    }
    let_go(c);
    c->state = CONN_AWAITING;
    w->since_us = c->core->now_us;
    w->woken = w->looks > 0;
    if (w->woken) conn_ready_again(c);
    else if (c->input.length == 0) conn_arm_receive(c);
    return true;
}

/* Of the answer to a poll. */
static const dialect *poll_form(const conn *c) {
    bool positions = c->frame.head.positions && c->dialect->positions != NULL;
    return positions ? c->dialect->positions : c->dialect;
}

/* ---- the connection as a caller ---- */

/* False: it closes, and nobody hears the answer. */
static bool ended(conn *c) {
    ASSERT(c->unanswered);
    c->unanswered = false;
    c->close_after_reply |= c->session.event_lost;
    if (c->closing) conn_ready(c);
    return !c->closing;
}

static void on_status(const caller *to, uint32_t status) {
    conn *c = to->owner;
    if (!ended(c)) return;
    if (c->wait_for != NULL && status == STATUS_NOT_RESOLVED_CONSUMER && waits_further(c)) return;
    c->move_wanted = conn_wants_to_move(c);
    /* Who has lost the partition learns it by an empty answer, and asks for the next one. */
    if (status != STATUS_NOT_RESOLVED_CONSUMER || c->frame.head.kind != REQUEST_POLL) conn_reply_status(c, status);
    else conn_reply_bytes(c, c->output.small, poll_form(c)->put_empty_poll(c->frame.head_bytes, c->output.small));
}

static void on_committed(const caller *to, uint64_t offset) {
    conn *c = to->owner;
    if (!ended(c)) return;
    c->move_wanted = conn_wants_to_move(c);
    conn_reply_bytes(c, c->output.small, c->dialect->put_committed(c->frame.head_bytes, c->output.small, offset));
}

static void on_produced(const caller *to, const produced *made) {
    conn *c = to->owner;
    if (!ended(c)) return;
    c->move_wanted = conn_wants_to_move(c);
    conn_reply_bytes(c, c->output.small, c->dialect->put_produced(c->output.small, made));
}

static void on_window(const caller *to, const answer_window *w) {
    conn *c = to->owner;
    if (w->last && !ended(c)) {
        if (w->block != NULL) c->output.block = w->block; /* freed with it */
        return;
    }
    c->output.block = w->block;
    if (c->wait_for != NULL && w->last && w->whole.total_count == 0 && waits_further(c)) return;
    if (w->last) c->move_wanted = conn_wants_to_move(c);
    conn_reply_bytes(c, w->bytes, w->length);
    c->output.last = w->last;
}

static void on_gone(const caller *to) {
    conn *c = to->owner;
    c->unanswered = false;
    conn_close(c);
    conn_ready(c);
}

static void on_again(const caller *to) {
    conn *c = to->owner;
    request q;
    if (!ended(c)) return;
    uint32_t status = parse(c, &q);
    if (status == 0 && q.kind != REQUEST_OTHER) ask_route(c, &q);
    else conn_close(c); /* it was parsed before */
}

static void on_dropped(const caller *to) {
    conn *c = to->owner;
    c->unanswered = false;
    if (c->closing) conn_ready(c);
}

static void on_parked(const caller *to, pending *p) {
    conn *c = to->owner;
    c->work = p;
    if (p == NULL && c->closing) conn_ready(c);
}

static bool is_wanted(const caller *to) { return !((const conn *)to->owner)->closing; }

/* The owner may take its time: a shared buffer is not kept for that when they are scarce. */
static bool lend(const caller *to, uint8_t **records) {
    conn *c = to->owner;
    if (c->core->io.free_buffers[BUFFERS_LOGGED_IN] >= RECEIVE_BUFFERS / 2) return true;
    const uint8_t *before = c->frame.payload;
    c->lending = true;
    bool parked = conn_park(c);
    c->lending = false;
    *records += c->frame.payload - before;
    return parked || !c->closing;
}

static void put_head(const caller *to, uint8_t *at, const poll_summary *whole) {
    poll_form(to->owner)->put_poll_head(at, whole);
}

static size_t convert(const caller *to, uint8_t *records, size_t length) {
    return records_to_form(records, length, (record_form)((const conn *)to->owner)->dialect->record_form);
}

/* ---- of a dialect that packs records otherwise ---- */

static void on_packed_status(const caller *to, uint32_t status) {
    conn *c = to->owner;
    if (!ended(c)) return;
    c->move_wanted = conn_wants_to_move(c);
    conn_packed_status(c, status);
}

static void on_packed_committed(const caller *to, uint64_t offset) {
    (void)offset;
    on_packed_status(to, 0);
}

static void on_packed_window(const caller *to, const answer_window *w) {
    conn *c = to->owner;
    if (w->last && !ended(c)) {
        if (w->block != NULL) c->output.block = w->block;
        return;
    }
    c->output.block = w->block;
    if (w->last) c->move_wanted = conn_wants_to_move(c);
    conn_packed_window(c, w);
}

static caller caller_of(conn *c) {
    static const caller_calls packed = {.status = on_packed_status,
                                        .committed = on_packed_committed,
                                        .window = on_packed_window,
                                        .gone = on_gone,
                                        .again = on_again,
                                        .dropped = on_dropped,
                                        .parked = on_parked,
                                        .wanted = is_wanted,
                                        .lend = lend,
                                        .put_head = put_head};
    static const caller_calls calls = {.status = on_status,
                                       .committed = on_committed,
                                       .produced = on_produced,
                                       .window = on_window,
                                       .gone = on_gone,
                                       .again = on_again,
                                       .dropped = on_dropped,
                                       .parked = on_parked,
                                       .wanted = is_wanted,
                                       .lend = lend,
                                       .convert = convert,
                                       .put_head = put_head};
    c->state = CONN_WORKING;
    c->unanswered = true;
    return (caller){.calls = c->large != NULL ? &packed : &calls,
                    .owner = c,
                    .session = &c->session,
                    .dialect = poll_form(c)->poll_number,
                    .head_bytes = poll_form(c)->poll_head_bytes,
                    .one_window = c->dialect->record_form != 0};
}

/* ---- requests ---- */

/* What the core said to a request that it did not take is done here. */
static void not_executed(conn *c, execution what, const request *q) {
    c->unanswered = false;
    if (what == NEEDS_PLACE) {
        c->state = CONN_WAITING;
        core_wait(c->core, &c->wait, conn_retry);
    } else if (what == NEEDS_ROUTE) {
        ask_route(c, q);
    } else if (what == NEEDS_PYTHON) {
        ask_python(c);
    }
}

static void execute_typed(conn *c) {
    request q;
    if (!c->session.authenticated) {
        if (c->frame.head.kind == REQUEST_SEND) conn_reply_status(c, STATUS_UNAUTHENTICATED);
        else ask_python(c);
        return;
    }
    uint32_t status = parse(c, &q);
    if (status != 0 || q.kind == REQUEST_OTHER) {
        if (status != 0) conn_reply_status(c, status);
        else ask_python(c);
        return;
    }
    if (q.kind == REQUEST_POLL && q.consumer.wait_ms > 0 && q.consumer.count > 0 && c->wait_for == NULL) {
        if (!begin_wait(c, &q.consumer)) return;
        parse(c, &q); /* where its bytes are now */
    }
    caller from = caller_of(c);
    execution result = execute_request(c->core, &c->session, &q, &from);
    if (result != EXECUTED) not_executed(c, result, &q);
}

static void execute_packed(conn *c) {
    packed_result result = conn_open_packed(c);
    if (result == PACKED_READY) conn_execute(c);
    else if (result == PACKED_NEEDS_PLACE) not_executed(c, NEEDS_PLACE, NULL);
}

sample *conn_sample(conn *c, const frame_head *head, const uint8_t *payload) {
    sample what = {.code = head->code,
                   .user_id = c->session.user_id,
                   .length = head->kind == REQUEST_PING ? 0 : head->length, /* nothing of a PING's payload is kept */
                   .connection = conn_id(c),
                   .began_us = c->core->now_us,
                   .dialect = c->dialect->number};
    return samples_begin_chosen(&c->net->samples, &what, payload);
}

void conn_execute(conn *c) {
    bool native = c->frame.head.kind != REQUEST_OTHER && c->session.authenticated && c->sample == NULL;
    if (native && samples_choose(&c->net->samples)) c->sample = conn_sample(c, &c->frame.head, c->frame.payload);
    switch (c->frame.head.kind) {
    case REQUEST_PING:
        c->clocks.heartbeat_us = c->core->now_us;
        conn_reply_status(c, 0);
        break;
    case REQUEST_OTHER: ask_python(c); break;
    case REQUEST_PACKED: execute_packed(c); break;
    default: execute_typed(c);
    }
}

bool conn_retry(waiter *w) {
    conn *c = (conn *)w;
    c->state = CONN_RECEIVING;
    conn_execute(c); /* may queue itself again */
    return true;
}

void conn_execute_for_group(conn *c, uint32_t owner, partition_request *what) {
    request q;
    if (parse(c, &q) != 0 || q.kind != REQUEST_POLL) { /* Python reads more than the dialect: it is answered, too */
        c->session.group_asked = true;
        session_failed(&c->session);
        conn_reply_status(c, STATUS_INVALID_COMMAND);
        return;
    }
    what->bytes_max = q.consumer.bytes_max;
    caller from = caller_of(c);
    execution result = execute_for_group(c->core, &c->session, owner, what, &from);
    if (result != EXECUTED) not_executed(c, result, &q);
}
