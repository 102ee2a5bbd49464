/* Output of connections: answers, their way into the socket, and what follows when the kernel has them. */
#include "net/net.h"
#include "net/conn/places.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/output.h"
#include "wire/frame_limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUT_AT_ONCE_BYTES 16384u /* larger ones: copied now, the operation only waits for room */

void conn_free_output(conn *c) {
    free(c->output.heap);
    c->core->output.bytes -= c->output.heap_bytes;
    c->output.heap = NULL;
    c->output.heap_bytes = 0;
    output_free(c->core, c->output.block);
    c->output.block = NULL;
    output_free_beside(c->core, c->output.made);
    c->output.made = NULL;
    c->output.more = NULL;
    c->output.bytes = NULL;
}

void conn_queue_reply(conn *c) {
    if (c->output.queued) return;
    conn_queue *q = c->output.length > BULK_BYTES_MIN ? &c->net->bulk_replies : &c->net->replies;
    c->output.queued = true;
    c->output.next_reply = NULL;
    if (q->last != NULL) q->last->output.next_reply = c;
    else q->first = c;
    q->last = c;
}

void conn_reply_bytes(conn *c, const uint8_t *data, size_t length) {
    ASSERT(length > 0 && !c->output.armed);
    c->output.bytes = data;
    c->output.length = length;
    c->output.sent = 0;
    c->output.held = 0;
    c->output.last = true;
    c->state = CONN_REPLYING;
    c->output.begun = true;
    c->clocks.progress_us = c->clocks.output_us = c->core->now_us;
    c->core->counters.bytes_out += length;
    conn_queue_reply(c);
}

/* A refusal, whose body is held back when nobody knows whether the client reads one. */
static void hold_body(conn *c, uint32_t status, size_t length) {
    if (status == 0 || c->dialect->without_body == 0 || c->close_after_reply || length <= FRAME_HEADER_SIZE) return;
    c->output.held = length - FRAME_HEADER_SIZE;
    c->output.length = FRAME_HEADER_SIZE;
}

void conn_reply_status(conn *c, uint32_t status) {
    /* As in a window: what was sent behind it, and may be on its way yet, must not be carried out before it. */
    bool ahead = c->has_sent_ahead || c->input.length > 0;
    if (ahead && status == STATUS_SHARD_COMMUNICATION_ERROR && c->frame.head.kind == REQUEST_SEND)
        c->close_after_reply = true;
    sample_status(c->sample, status);
    size_t length = c->dialect->put_status(c->frame.head_bytes, c->output.small, status);
    conn_reply_bytes(c, c->output.small, length);
    hold_body(c, status, length);
}

void conn_reply_payload(conn *c, uint32_t status, const uint8_t *payload, size_t length) {
    uint8_t *out = malloc(c->dialect->answer_bytes + length);
    if (out == NULL) {
        conn_close(c);
        return;
    }
    size_t head = c->dialect->put_payload_head(c->frame.head_bytes, out, status, length);
    memcpy(out + head, payload, length);
    conn_reply_heap(c, out, head + length);
    hold_body(c, status, head + length);
}

void conn_reply_heap(conn *c, uint8_t *bytes, size_t length) {
    c->output.heap = bytes;
    c->output.heap_bytes = length;
    c->core->output.bytes += length;
    conn_reply_bytes(c, bytes, length);
}

/* A close while the client still sends is a reset, which may overtake answers that are on their way. */
void conn_linger(conn *c) {
    stream_end_output(&c->stream);
    c->state = CONN_LINGERING;
    c->clocks.request_us = c->core->now_us;
    c->frame.head_have = 0;
    conn_frame_release(c);
    conn_ready(c);
}

void conn_say_goodbye(conn *c, uint32_t status) {
    uint8_t answer[DIALECT_ANSWER_MAX];
    size_t length = c->dialect->put_status(NULL, answer, status);
    if (stream_send_now(&c->stream, answer, length) == (ssize_t)length) c->core->counters.bytes_out += length;
    conn_close(c);
}

static void count_latency(net *n, int64_t request_us, sample **traced) {
    n->latency[latency_bucket(n->core->now_us - request_us)]++;
    sample_end(traced, n->core->now_us);
}

/* Everything that was asked is answered, and with the kernel. */
static void next_frame(conn *c) {
    c->state = CONN_RECEIVING;
    conn_frame_release(c);
    if (c->wait_for != NULL) conn_wait_free(c);
    if (c->net->stopping_status != 0) {
        conn_say_goodbye(c, c->net->stopping_status);
        return;
    }
    bool moves = c->move_wanted && !c->input.armed && !c->input.ended;
    event *v = moves ? events_add(&c->core->events, EVENT_MOVE, conn_id(c)) : NULL;
    if (v != NULL) {
        v->number = c->session.streak_shard;
        c->state = CONN_MOVING;
        c->session.streak = 0;
    } else if (c->input.length > 0) {
        c->sends_ahead = true;
        conn_ready_again(c);
    } else if (c->input.ended) {
        conn_ready(c);
    } else {
        conn_arm_receive(c);
    }
    c->move_wanted = false;
}

static void window_over(conn *c) {
    window_close(c);
    if (c->close_after_reply) {
        conn_linger(c);
        return;
    }
    c->move_wanted = conn_wants_to_move(c);
    next_frame(c);
}

static void window_sent(conn *c) {
    window *w = c->window;
    while (w->leaving > 0) {
        place *p = window_place(w, 0);
        sample_status(p->sample, p->end.status);
        count_latency(c->net, p->request_us, &p->sample);
        window_pop(w);
    }
    if (w->count == 0) {
        window_over(c);
        return;
    }
    if (window_may_leave(w)) conn_queue_reply(c);
    conn_ready_again(c);
}

/* False: nothing of the window may leave now. */
static bool begin_output_of_window(conn *c) {
    if (c->state != CONN_WINDOW) return false;
    if (c->output.bytes != NULL) return true;
    if (c->window->count == 0) {
        window_over(c);
        return false;
    }
    c->output.length = window_gather(c->window, c->dialect);
    if (c->output.length == 0) return false;
    c->output.bytes = c->window->answers;
    c->output.sent = 0;
    c->output.last = true;
    c->core->counters.bytes_out += c->output.length;
    return true;
}

/* Whoever reads no bodies asks on, or goes, at once. */
static void await_reader(conn *c) {
    c->state = CONN_HOLDING;
    conn_frame_release(c);
    if (c->input.length > 0 || c->input.ended) conn_ready(c);
    else conn_arm_receive(c);
}

void conn_drop_body(conn *c) {
    c->core->counters.bytes_out -= c->output.held;
    c->output.held = 0;
    conn_free_output(c);
    count_latency(c->net, c->clocks.request_us, &c->sample);
    next_frame(c);
}

void conn_send_body(conn *c) {
    size_t length = c->output.held;
    c->core->counters.bytes_out -= length; /* it was counted with its head */
    conn_reply_bytes(c, c->output.bytes + c->output.length, length);
}

static void output_done(conn *c) {
    bool last = c->output.last;
    if (c->output.more != NULL && c->output.more(c)) return;
    if (c->output.held > 0 && !c->closing) {
        await_reader(c);
        return;
    }
    conn_free_output(c);
    if (c->state == CONN_WINDOW) {
        window_sent(c);
        return;
    }
    if (c->close_after_reply) {
        conn_linger(c);
        return;
    }
    if (c->work != NULL) {
        pending_next(c->work); /* of a last window: gives it back */
        if (!last && conn_waits_for(c, WAITS_FOR_PEER)) c->state = CONN_WORKING;
    }
    if (!last || c->closing) return;
    count_latency(c->net, c->clocks.request_us, &c->sample);
    next_frame(c);
}

/* `alone`: nothing else is sent in this turn, so a plain send saves the completion; otherwise io_uring batches the
 * calls. */
void conn_flush_reply(conn *c, bool alone) {
    c->output.queued = false;
    if (c->closing || c->output.armed) {
        if (c->closing) conn_ready(c);
        return;
    }
    if (c->state != CONN_REPLYING && !begin_output_of_window(c)) return;
    size_t left = c->output.length - c->output.sent;
    if (left == 0) {
        output_done(c);
        return;
    }
    if (c->output.sent == 0)
        c->clocks.progress_us = c->clocks.output_us = c->core->now_us; /* it has waited for its turn until now */
    if (alone || c->core->io.sends_at_once || left > OUTPUT_AT_ONCE_BYTES || stream_translates(&c->stream)) {
        size_t slice = left < BULK_SLICE_BYTES ? left : BULK_SLICE_BYTES;
        ssize_t sent = stream_send_now(&c->stream, c->output.bytes + c->output.sent, slice);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            conn_close(c);
            return;
        }
        c->core->now_us = clock_monotonic_us(); /* the turn's clock stood still while this request was at work */
        if (sent > 0) {
            c->output.sent += (size_t)sent;
            c->clocks.progress_us = c->core->now_us;
        }
        if (c->output.sent == c->output.length) {
            output_done(c);
            return;
        }
        if (sent == (ssize_t)slice) {
            conn_queue_reply(c);
            return;
        }
        left = c->output.length - c->output.sent;
    }
    stream_send(&c->stream, &c->core->io, &c->output.operation, c->output.bytes + c->output.sent, left);
    c->output.armed = true;
    if (c->state == CONN_REPLYING && c->work == NULL && !c->close_after_reply &&
        !c->move_wanted) { /* the next request is welcome already */
        conn_frame_release(c);
        if (c->input.length == 0) conn_arm_receive(c);
    }
}

void conn_on_send(conn *c, int result) {
    if (!stream_sent(&c->stream, &c->core->io, &c->output.operation, &result)) return;
    c->output.armed = false;
    if (c->closing) {
        conn_release_sources(c);
        conn_ready(c);
        return;
    }
    if (result < 0 && result != -EAGAIN && result != -EINTR) {
        conn_close(c);
        return;
    }
    if (result > 0) {
        c->output.sent += (size_t)result;
        c->clocks.progress_us = c->core->now_us;
    }
    if (c->output.length > BULK_BYTES_MIN) conn_queue_reply(c); /* what follows is work for a pass */
    else if (c->output.sent == c->output.length) output_done(c);
    else conn_flush_reply(c, c->output.length - c->output.sent > OUTPUT_AT_ONCE_BYTES);
}
