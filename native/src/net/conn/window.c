/* Frames that are in work beside each other: taken from the input as long as each of them can be executed at once; the
 * caller that is a place of a window. */
#include "net/net.h"
#include "net/conn/places.h"

#include "base/assert.h"
#include "base/status.h"
#include "core/execute.h"

/* ---- a place as a caller ---- */

static place *place_of(const caller *to) { return &((conn *)to->owner)->window->places[to->place]; }

static void let_go(window *w, place *p) {
    w->holding -= p->holds;
    p->holds = false;
}

/* While those in work wait, and nobody needs the input: the next ones. */
static void receive_more(conn *c) {
    window *w = c->window;
    bool full = w->count == c->net->options.pipeline_window_requests;
    if (c->closing || w->working == 0 || w->ends || full || w->holding > 0 || c->input.length > 0) return;
    conn_return_buffer(c);
    conn_arm_receive(c);
}

/* Nobody is at work any more, and some were not carried out. Those at the end are asked once more, the first of them
 * alone. One with a request behind it that was carried out is not: it would have lost its place in the order. */
static void settle_again(conn *c) {
    window *w = c->window;
    uint32_t kept = w->count;
    while (kept > 0 && window_place(w, kept - 1)->state == PLACE_AGAIN) let_go(w, window_place(w, --kept));
    if (kept < w->count) {
        uint8_t *from = window_place(w, kept)->frame;
        c->input.length += (uint32_t)(c->input.bytes - from);
        c->input.bytes = from;
        c->alone_once = true;
    }
    w->count = kept;
    for (uint32_t i = 0; i < kept; i++) {
        place *p = window_place(w, i);
        if (p->state != PLACE_AGAIN) continue;
        let_go(w, p);
        p->state = PLACE_ANSWERED;
        p->end = (outcome){.status = STATUS_SHARD_COMMUNICATION_ERROR};
    }
    w->again = 0;
    conn_queue_reply(c);
}

static void ended(const caller *to, place_state state, const outcome *o) {
    conn *c = to->owner;
    window *w = c->window;
    place *p = place_of(to);
    ASSERT(w->working > 0 && p->state == PLACE_WORKING);
    p->state = state;
    p->end = *o;
    w->working--;
    w->sending -= p->sends;
    if (state == PLACE_AGAIN) {
        w->again++;
        w->ends = true;
    } else {
        let_go(w, p);
    }
    if (c->closing) conn_ready(c);
    else if (w->working == 0 && w->again > 0) settle_again(c);
    else if (window_may_leave(w)) conn_queue_reply(c);
}

/* Its owner was away for too long. Who does not read that sends it again, and then nothing that was sent behind it may
 * have been carried out: it is taken back, and the connection closes with this answer. */
static void refuse(conn *c, const place *p) {
    window *w = c->window;
    w->ends = w->refuses = c->close_after_reply = true;
    bool behind = false;
    for (uint32_t i = 0; i < w->count && !c->closing; i++) {
        place *other = window_place(w, i);
        bool waits = other->state == PLACE_WORKING && other->work != NULL;
        if (behind && waits && other->work->waits_for == WAITS_FOR_PEER) pending_cancel(other->work);
        behind |= other == p;
    }
}

static void on_status(const caller *to, uint32_t status) {
    if (status == STATUS_SHARD_COMMUNICATION_ERROR) refuse(to->owner, place_of(to));
    ended(to, PLACE_ANSWERED, &(outcome){.status = status});
}

static void on_committed(const caller *to, uint64_t offset) {
    ended(to, PLACE_ANSWERED, &(outcome){.committed = true, .offset = offset});
}

static void on_produced(const caller *to, const produced *made) {
    ended(to, PLACE_ANSWERED, &(outcome){.made = *made});
}

static void on_again(const caller *to) { ended(to, PLACE_AGAIN, &(outcome){0}); }

/* Its end is unknown or not wanted, and nothing behind it can be told. */
static void on_gone(const caller *to) {
    conn_close(to->owner);
    ended(to, PLACE_ANSWERED, &(outcome){0});
}

static void on_dropped(const caller *to) {
    const conn *c = to->owner;
    if (c->window->refuses) on_status(to, STATUS_SHARD_COMMUNICATION_ERROR);
    else on_gone(to);
}

static void on_parked(const caller *to, pending *p) {
    conn *c = to->owner;
    place *at = place_of(to);
    at->work = p;
    if (p == NULL || p->waits_for != WAITS_FOR_DEVICE) return;
    let_go(c->window, at); /* its records are written */
    receive_more(c);
}

static bool is_wanted(const caller *to) { return !((const conn *)to->owner)->closing; }

/* As the `lend` of a single request. With others in the same buffer it goes alone instead. */
static bool lend(const caller *to, uint8_t **records) {
    conn *c = to->owner;
    if (c->input.buffer < 0 || c->core->io.free_buffers[BUFFERS_LOGGED_IN] >= RECEIVE_BUFFERS / 2) return true;
    if (c->window->holding > 1) return false;
    const uint8_t *before = c->input.bytes;
    bool parked = conn_park(c);
    *records += c->input.bytes - before;
    place_of(to)->frame = c->input.bytes;
    return parked || !c->closing;
}

/* ---- frames ---- */

/* Known by its head: it is small, and decided without Python. */
static bool goes_beside(const conn *c, const frame_head *head) {
    if (head->length > head->length_max || head->length > c->net->send_bytes_max) return false;
    return head->kind == REQUEST_PING || head->kind == REQUEST_SEND || head->kind == REQUEST_STORE;
}

/* The input begins with a whole frame that may go beside others. */
static bool has_next(const conn *c, frame_head *head) {
    uint32_t head_bytes = c->dialect->head_bytes;
    return c->input.length >= head_bytes && c->dialect->read_head(c->input.bytes, head) && goes_beside(c, head) &&
           c->input.length - head_bytes >= head->length;
}

/* False: it has to wait until it is alone, and nothing has happened. */
static bool execute(conn *c, const frame_head *head, const caller *from) {
    request q;
    if (head->kind == REQUEST_PING) {
        c->clocks.heartbeat_us = c->core->now_us;
        on_status(from, 0);
        return true;
    }
    uint32_t status = c->dialect->parse(head, c->input.bytes + c->dialect->head_bytes, &q);
    if (status != 0) {
        on_status(from, status);
        return true;
    }
    if (q.kind == REQUEST_OTHER || (q.kind == REQUEST_STORE && q.consumer.kind != CONSUMER_PLAIN)) return false;
    return execute_request(c->core, &c->session, &q, from) == EXECUTED;
}

/* Takes the first frame of the input. False: it stays there. */
static bool take(conn *c) {
    static const caller_calls calls = {.status = on_status,
                                       .committed = on_committed,
                                       .produced = on_produced,
                                       .gone = on_gone,
                                       .again = on_again,
                                       .dropped = on_dropped,
                                       .parked = on_parked,
                                       .wanted = is_wanted,
                                       .lend = lend};
    window *w = c->window;
    frame_head head;
    if (!c->session.authenticated || c->net->stopping_status != 0 || conn_wants_to_move(c) || !has_next(c, &head))
        return false;
    if (head.kind == REQUEST_STORE && w->sending > 0) return false; /* whether there is such an offset */
    place *p = window_place(w, w->count);
    *p = (place){
        .sends = head.kind == REQUEST_SEND, .holds = true, .frame = c->input.bytes, .request_us = c->core->now_us};
    caller from = {.calls = &calls,
                   .owner = c,
                   .session = &c->session,
                   .place = (uint16_t)(p - w->places),
                   .dialect = c->dialect->poll_number};
    w->count++;
    w->working++;
    w->sending += p->sends;
    w->holding++;
    if (!execute(c, &head, &from)) {
        w->count--;
        w->working--;
        w->sending -= p->sends;
        let_go(w, p);
        return false;
    }
    uint32_t size = c->dialect->head_bytes + head.length;
    if (samples_choose(&c->net->samples)) p->sample = conn_sample(c, &head, c->input.bytes + c->dialect->head_bytes);
    c->input.bytes += size;
    c->input.length -= size;
    return true;
}

void conn_window_go_on(conn *c) {
    window *w = c->window;
    while (!w->ends && !c->closing && c->input.length > 0 && w->count < c->net->options.pipeline_window_requests) {
        w->ends = !take(c);
        c->core->counters.frames += !w->ends;
    }
    receive_more(c);
}

/* As if the frame had not been looked at. */
static void put_back(conn *c, uint8_t *frame, uint32_t size) {
    c->input.bytes = frame;
    c->input.length += size;
    c->frame.payload = NULL;
}

bool conn_window_begin(conn *c, uint8_t *frame) {
    frame_head next;
    bool alone = c->alone_once;
    c->alone_once = false;
    if (alone || !c->session.authenticated || c->net->options.pipeline_window_requests < 2) return false;
    if (c->dialect->one_at_a_time) return false;
    if (!goes_beside(c, &c->frame.head) || !has_next(c, &next)) return false;
    uint32_t size = (uint32_t)(c->input.bytes - frame);
    if (!c->in_bulk) { /* behind those who have asked one thing */
        put_back(c, frame, size);
        c->core->counters.frames--;
        conn_ready_again(c);
        return true;
    }
    if (window_open(c) == NULL) return c->closing;
    put_back(c, frame, size);
    c->state = CONN_WINDOW;
    c->sends_ahead = c->has_sent_ahead = true;
    c->output.length = 0;
    if (take(c)) {
        conn_window_go_on(c);
        return true;
    }
    if (c->closing) return true;
    window_close(c);
    c->state = CONN_RECEIVING;
    c->frame.payload = c->input.bytes + c->dialect->head_bytes;
    c->input.bytes += size;
    c->input.length -= size;
    return false;
}
