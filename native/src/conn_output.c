/* Output of connections: answers, their way into the socket, and what follows when the kernel has them. */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void conn_free_output(conn *c) {
    free(c->out_heap);
    c->out_heap = NULL;
    if (c->out_block != NULL) pool_free(c->e->pool, c->out_block);
    c->out_block = NULL;
    c->out = NULL;
}

static void put_head(uint8_t *at, uint32_t status, uint32_t length) {
    memcpy(at, &status, 4);
    memcpy(at + 4, &length, 4);
}

void conn_reply_bytes(conn *c, const uint8_t *data, size_t length) {
    c->out = data;
    c->out_length = length;
    c->out_sent = 0;
    c->state = CONN_REPLYING;
    c->progress_us = c->e->now_us;
    c->e->counters.bytes_out += length;
    if (c->in_replies) return;
    c->in_replies = true;
    c->next_reply = c->e->replies;
    c->e->replies = c;
}

void conn_reply_status(conn *c, uint32_t status) {
    execute_group_polled(c, 0, 0);
    put_head(c->out_small, status, 0);
    conn_reply_bytes(c, c->out_small, 8);
}

static void output_done(conn *c) {
    conn_free_output(c);
    if (c->close_after_reply) {
        conn_close(c);
    } else if (c->job != NULL) {
        reads_next_window(c->job);
    } else if (c->lease_open) {
        forward_output_done(c);
    } else {
        conn_frame_done(c);
    }
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
        conn_ready(c);
    }
    c->move_wanted = false;
}

/* `alone`: nothing else is sent in this turn, so a plain send saves the completion; otherwise the ring batches the
 * calls. */
void conn_flush_reply(conn *c, bool alone) {
    c->in_replies = false;
    if (c->closing || c->state != CONN_REPLYING || c->send_armed) {
        if (c->closing) conn_ready(c);
        return;
    }
    size_t left = c->out_length - c->out_sent;
    if (alone || left > 16384) { /* large outputs: inline copy now; the ring only waits for room */
        ssize_t sent = send(c->fd, c->out + c->out_sent, left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            conn_close(c);
            return;
        }
        if (sent > 0) {
            c->out_sent += (size_t)sent;
            c->progress_us = c->e->now_us;
        }
        if (c->out_sent == c->out_length) {
            output_done(c);
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
    if (c->out_sent == c->out_length) output_done(c);
    else conn_flush_reply(c, c->out_length - c->out_sent > 16384);
}
