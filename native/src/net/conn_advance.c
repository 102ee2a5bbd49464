/* Frames one after the other, as far as they have arrived. */
#include "net/net.h"

#include "base/status.h"

#include <string.h>

/* Decides what to do with a frame whose header is complete. False: it was answered or the connection closes. */
static bool begin_frame(conn *c) {
    frame_head *head = &c->frame.head;
    bool good = c->dialect->read_head(c->frame.head_bytes, head);
    c->frame.attempts = 0;
    c->clocks.request_us = c->core->now_us; /* for the answers of this function; see conn_advance */
    c->core->counters.frames++;
    if (!good) {
        c->frame.head_have = 0;
        conn_reply_status(c, STATUS_INVALID_COMMAND);
        return false;
    }
    bool sends = head->kind == REQUEST_SEND, unwanted = sends && !c->session.authenticated;
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

static bool events_are_full(const conn *c) {
    const event_queue *q = &c->core->events;
    return q->count >= EVENTS_MAX || (!c->session.authenticated && q->anonymous >= EVENTS_ANONYMOUS_MAX);
}

/* Nobody wants what comes; until the client has seen the last answer and ends its half. */
static void drop_input(conn *c) {
    c->input.length = 0;
    conn_return_buffer(c);
    if (c->input.ended) conn_close(c);
    else conn_arm_receive(c);
}

void conn_advance(conn *c) {
    if (c->state == CONN_LINGERING && !c->closing) {
        drop_input(c);
        return;
    }
    if (c->state == CONN_WINDOW && !c->closing) {
        conn_window_go_on(c);
        return;
    }
    while (!c->closing && c->state == CONN_RECEIVING) {
        uint8_t *frame = c->frame.head_have == 0 ? c->input.bytes : NULL;
        if (events_are_full(c)) { /* Python first; the frame waits one turn */
            conn_ready(c);
            return;
        }
        if (c->frame.head_have < c->dialect->head_bytes) {
            uint32_t missing = c->dialect->head_bytes - c->frame.head_have;
            uint32_t part = c->input.length < missing ? c->input.length : missing;
            if (part > 0) memcpy(c->frame.head_bytes + c->frame.head_have, c->input.bytes, part);
            if (c->frame.head_have == 0) c->clocks.frame_us = c->core->now_us;
            c->frame.head_have = (uint8_t)(c->frame.head_have + part);
            c->input.bytes += part;
            c->input.length -= part;
            if (c->frame.head_have < c->dialect->head_bytes) break;
            if (!begin_frame(c)) return;
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
    if (c->input.ended) conn_close(c);
    else conn_arm_receive(c);
}
