/* Frames one after the other, as far as they have arrived. */
#include "net/net.h"

#include "base/status.h"
#include "net/conn/wait.h"

#include <string.h>

static bool begin_frame(conn *c);

/* The first bytes of the connection have come: what do they speak? As begin_frame. */
static bool decide(conn *c) {
    c->core->counters.frames--;
    if (!conn_speak(c, c->dialect->choose(c->frame.head_bytes))) return false;
    return c->frame.head_have == c->dialect->head_bytes && begin_frame(c);
}

/* Decides what to do with a frame whose header is complete. False: it was answered or the connection closes. */
static bool begin_frame(conn *c) {
    frame_head *head = &c->frame.head;
    bool good = c->dialect->read_head(c->frame.head_bytes, head);
    c->frame.attempts = 0;
    head->again = false;
    c->clocks.request_us = c->core->now_us; /* for the answers of this function; see conn_advance */
    c->core->counters.frames++;
    if (!good && c->dialect->choose != NULL) return decide(c);
    if (!good) {
        c->frame.head_have = 0;
        conn_reply_status(c, STATUS_INVALID_COMMAND);
        return false;
    }
    bool sends = head->sends, unwanted = sends && !c->session.authenticated;
    if (unwanted && c->dialect->asks_who) {
        conn_ask_who(c);
        return false;
    }
    uint32_t send_max = c->net->send_bytes_max;
    uint32_t limit = sends && send_max < head->length_max ? send_max : head->length_max;
    c->frame.too_large = head->length > limit;
    if (c->frame.too_large && head->length > head->drained_max) {
        c->close_after_reply = true;
        conn_reply_status(c, STATUS_INVALID_COMMAND);
        return false;
    }
    c->frame.keep_length = head->length;
    if (c->frame.too_large || head->kind == REQUEST_PING || unwanted) c->frame.keep_length = 0;
    else if (!c->session.authenticated && c->frame.keep_length > head->anonymous_max)
        c->frame.keep_length = head->anonymous_max;
    return true;
}

void conn_told_who(conn *c) {
    c->frame.asked_who = false;
    c->core->counters.frames--;
    c->state = CONN_RECEIVING;
    if (begin_frame(c)) conn_ready(c);
}

/* Nobody wants what comes; until the client has seen the last answer and ends its half. */
static void drop_input(conn *c) {
    c->input.length = 0;
    conn_return_buffer(c);
    if (!c->input.ended) conn_arm_receive(c);
    else if (c->reader.since_us == 0) conn_close(c); /* else when all is taken, or too late (limits.c) */
}

static void advance_waiting(conn *c) {
    conn_wait *w = c->wait_for;
    if (c->input.ended && c->input.length == 0) { /* nobody reads the answer */
        conn_close(c);
        return;
    }
    if (!w->woken) return;
    w->woken = false;
    c->clocks.heartbeat_us += c->core->now_us - w->since_us; /* who waits for us is not silent */
    c->clocks.request_us = c->core->now_us;
    c->state = CONN_RECEIVING;
    conn_execute(c);
}

void conn_advance(conn *c) {
    if (c->input.unread && !c->closing) conn_read_stream(c);
    if (c->state == CONN_LINGERING && !c->closing) {
        drop_input(c);
        return;
    }
    if (c->state == CONN_HOLDING && !c->closing && (c->input.length > 0 || c->input.ended)) {
        if (conn_speak(c, dialect_of(c->dialect->without_body))) conn_drop_body(c);
        return;
    }
    if (c->state == CONN_WINDOW && !c->closing) {
        conn_window_go_on(c);
        return;
    }
    if (c->state == CONN_AWAITING && !c->closing) {
        advance_waiting(c);
        return;
    }
    if (c->state == CONN_UNPACKING && !c->closing) {
        conn_execute(c);
        return;
    }
    while (!c->closing && c->state == CONN_RECEIVING) {
        uint8_t *frame = c->frame.head_have == 0 ? c->input.bytes : NULL;
        /* Python first; the frame waits one turn */
        if (events_are_enough(&c->core->events, !c->session.authenticated)) {
            conn_ready(c);
            return;
        }
        if (c->frame.head_have < c->dialect->head_bytes) {
            uint32_t missing = c->dialect->head_bytes - c->frame.head_have;
            uint32_t part = c->input.length < missing ? c->input.length : missing;
            if (part > 0) memcpy(c->frame.head_bytes + c->frame.head_have, c->input.bytes, part);
            if (c->frame.head_have == 0) c->clocks.frame_us = c->core->now_us;
            c->frame.head_have = (uint16_t)(c->frame.head_have + part);
            c->input.bytes += part;
            c->input.length -= part;
            if (c->frame.head_have < c->dialect->head_bytes) break;
            if (!begin_frame(c)) {
                if (c->frame.head_have > 0 && c->frame.head_have < c->dialect->head_bytes)
                    continue; /* it has decided */
                return;
            }
        }
        if (!conn_take_payload(c)) {
            if (c->state != CONN_RECEIVING) return;
            break;
        }
        c->frame.head_have = 0;
        bool more = c->input.length > 0 && frame != NULL && c->frame.payload == frame + c->dialect->head_bytes;
        if (more && conn_window_begin(c, frame)) return;
        c->clocks.request_us = c->core->now_us;
        c->output.begun = false;
        if (c->frame.too_large) conn_reply_status(c, STATUS_INVALID_COMMAND);
        else conn_execute(c);
    }
    if (c->closing || c->state != CONN_RECEIVING) return;
    if (c->input.length == 0) conn_return_buffer(c);
    if (!c->input.ended) conn_arm_receive(c);
    else if (conn_reader_look(c) > 0) conn_linger(c);
    else conn_close(c);
}
