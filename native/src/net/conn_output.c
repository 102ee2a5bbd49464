/* Output of connections: answers, their way into the socket, and what follows when the kernel has them. */
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void conn_free_output(conn *c) {
    free(c->out_heap);
    c->e->output_bytes -= c->out_heap_bytes;
    c->out_heap = NULL;
    c->out_heap_bytes = 0;
    if (c->out_block != NULL) {
        c->e->output_bytes -= pool_block_size(c->e->pool, c->out_block);
        pool_free(c->e->pool, c->out_block);
    }
    c->out_block = NULL;
    c->out = NULL;
}

static void put_head(uint8_t *at, uint32_t status, uint32_t length) {
    memcpy(at, &status, 4);
    memcpy(at + 4, &length, 4);
}

static void queue_reply(conn *c) {
    if (c->in_replies) return;
    conn_queue *q = c->out_length > BULK_BYTES_MIN ? &c->e->bulk_replies : &c->e->replies;
    c->in_replies = true;
    c->next_reply = NULL;
    if (q->last != NULL) q->last->next_reply = c;
    else q->first = c;
    q->last = c;
}

void conn_reply_bytes(conn *c, const uint8_t *data, size_t length) {
    c->out = data;
    c->out_length = length;
    c->out_sent = 0;
    c->state = CONN_REPLYING;
    c->answer_begun = true;
    c->progress_us = c->output_us = c->e->now_us;
    c->e->counters.bytes_out += length;
    queue_reply(c);
}

void conn_reply_status(conn *c, uint32_t status) {
    execute_replied(c, status);
    put_head(c->out_small, status, 0);
    conn_reply_bytes(c, c->out_small, 8);
}

static void output_done(conn *c) {
    conn_free_output(c);
    if (c->close_after_reply) {
        conn_linger(c);
    } else if (c->job != NULL) {
        reads_next_window(c->job);
    } else if (c->lease_open) {
        forward_output_done(c);
    } else {
        conn_frame_done(c);
    }
}

/* A close while the client still sends is a reset, which may overtake answers that are on their way. */
void conn_linger(conn *c) {
    shutdown(c->fd, SHUT_WR);
    c->state = CONN_LINGERING;
    c->request_us = c->e->now_us;
    c->head_have = 0;
    conn_frame_release(c);
    conn_ready(c);
}

void conn_say_goodbye(conn *c, uint32_t status) {
    uint8_t frame[8];
    put_head(frame, status, 0);
    if (send(c->fd, frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof frame)
        c->e->counters.bytes_out += sizeof frame;
    conn_close(c);
}

void conn_frame_done(conn *c) {
    c->state = CONN_RECEIVING;
    c->e->latency[latency_bucket(c->e->now_us - c->request_us)]++;
    conn_frame_release(c);
    if (c->e->stopping_status != 0) {
        conn_say_goodbye(c, c->e->stopping_status);
        return;
    }
    if (c->move_wanted && !c->receive_armed && !c->end_of_input) {
        c->state = CONN_MOVING;
        engine_event(c->e, EVENT_MOVE, conn_id(c))->number = c->streak_shard;
        c->streak = 0;
    } else {
        if (c->in_length > 0) conn_ready_again(c);
        else conn_ready(c);
    }
    c->move_wanted = false;
}

/* `alone`: nothing else is sent in this turn, so a plain send saves the completion; otherwise io_uring batches the
 * calls. */
void conn_flush_reply(conn *c, bool alone) {
    c->in_replies = false;
    if (c->closing || c->state != CONN_REPLYING || c->send_armed) {
        if (c->closing) conn_ready(c);
        return;
    }
    size_t left = c->out_length - c->out_sent;
    if (left == 0) {
        output_done(c);
        return;
    }
    if (c->out_sent == 0) c->progress_us = c->output_us = c->e->now_us; /* it has waited for its turn until now */
    if (alone || c->e->io.sends_at_once || left > 16384) { /* large: copied now, the operation only waits for room */
        size_t slice = left < BULK_SLICE_BYTES ? left : BULK_SLICE_BYTES;
        ssize_t sent = send(c->fd, c->out + c->out_sent, slice, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            conn_close(c);
            return;
        }
        c->e->now_us = clock_monotonic_us(); /* the turn's clock stood still while this request was at work */
        if (sent > 0) {
            c->out_sent += (size_t)sent;
            c->progress_us = c->e->now_us;
        }
        if (c->out_sent == c->out_length) {
            output_done(c);
            return;
        }
        if (sent == (ssize_t)slice) {
            queue_reply(c);
            return;
        }
        left = c->out_length - c->out_sent;
    }
    io_send(&c->e->io, &c->send_operation, c->fd, c->out + c->out_sent, left);
    c->send_armed = true;
    if (c->job == NULL && !c->lease_open && !c->close_after_reply &&
        !c->move_wanted) { /* the next request is welcome already */
        conn_frame_release(c);
        if (c->in_length == 0) conn_arm_receive(c);
    }
}

void conn_on_send(conn *c, int result) {
    c->send_armed = false;
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
        c->out_sent += (size_t)result;
        c->progress_us = c->e->now_us;
    }
    if (c->out_length > BULK_BYTES_MIN) queue_reply(c); /* what follows is work for a pass */
    else if (c->out_sent == c->out_length) output_done(c);
    else conn_flush_reply(c, c->out_length - c->out_sent > 16384);
}
