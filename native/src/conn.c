/* Connections: receive, frame, reply. One request at a time per connection; later frames wait in the socket.
 *
 * A receive takes one of the provided buffers only while it has data. A frame that does not fit gets a private block and the
 * rest of it is received straight into that block. See iggy-protocol 1.1 to 1.3 for the rules of frames. */
#include "engine.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK_STEP 65536u /* first block of a large frame when the pool is more than half full */

uint64_t conn_id(const conn *c) { return (uint64_t)c->generation << 32 | c->index; }

conn *conn_find(engine *e, uint64_t id) {
    uint32_t index = (uint32_t)id;
    conn *c = index < e->conns_capacity ? e->conns[index] : NULL;
    return c != NULL && c->generation == id >> 32 && !c->closing ? c : NULL;
}

static void read_address(conn *c) {
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    char host[INET6_ADDRSTRLEN] = "";
    if (getpeername(c->fd, (struct sockaddr *)&peer, &length) != 0) return;
    if (peer.ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)&peer;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(c->address, sizeof c->address, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        const struct sockaddr_in *v4 = (const void *)&peer;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(c->address, sizeof c->address, "%s:%u", host, ntohs(v4->sin_port));
    }
}

conn *conn_open(engine *e, int fd) {
    conn *c = e->free_count > 0 ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        e->counters.refused_connections++;
        close(fd);
        return NULL;
    }
    c->e = e;
    c->fd = fd;
    c->index = e->free_indexes[--e->free_count];
    c->generation = ++e->conn_generations[c->index];
    e->conns[c->index] = c;
    e->conns_count++;
    c->receive_operation = (operation){OPERATION_RECEIVE, c};
    c->send_operation = (operation){OPERATION_SEND, c};
    c->in_buffer = -1;
    c->progress_us = c->heartbeat_us = e->now_us;
    read_address(c);
    e->counters.accepted++;
    return c;
}

static void return_buffer(conn *c) {
    if (c->in_block != NULL) {
        pool_free(c->e->pool, c->in_block);
        c->in_block = NULL;
    }
    if (c->in_buffer < 0) return;
    ring_buffer_return(&c->e->ring, (uint16_t)c->in_buffer);
    c->in_buffer = -1;
}

static void free_block(conn *c) {
    if (c->block == NULL) return;
    pool_free(c->e->pool, c->block);
    c->block = NULL;
    c->block_have = c->block_size = 0;
}

void conn_frame_release(conn *c) {
    if (c->forwarded) return; /* the owner may still read it; forward.c releases */
    free_block(c);
    c->payload = NULL;
    if (c->in_length == 0) return_buffer(c);
}

static void free_output(conn *c) {
    free(c->out_heap);
    c->out_heap = NULL;
    if (c->out_block != NULL) pool_free(c->e->pool, c->out_block);
    c->out_block = NULL;
    c->out = NULL;
}

/* ---- closing ---- */

void conn_try_free(conn *c) {
    engine *e = c->e;
    if (!c->closing || c->receive_armed || c->send_armed || c->job != NULL || c->forwarded || c->state == CONN_STAGED) return;
    if (c->in_replies || c->in_ready || c->starved || c->wait.queued) return; /* their lists let go of it first */
    free_block(c);
    return_buffer(c);
    free_output(c);
    close(c->fd);
    e->conns[c->index] = NULL;
    e->free_indexes[e->free_count++] = c->index;
    e->conns_count--;
    free(c);
}

/* Lets go of what the output came from; not before the kernel has let go of it. */
static void release_sources(conn *c) {
    if (c->job != NULL) reads_abandon(c->job);
    if (c->lease_open) forward_output_done(c);
}

void conn_close(conn *c) {
    if (c->closing) return;
    c->closing = true;
    c->e->counters.closed++;
    if (!c->moved) { /* a moved socket lives on in another process */
        shutdown(c->fd, SHUT_RDWR); /* makes armed operations complete */
        engine_event(c->e, EVENT_CLOSED, conn_id(c));
    }
    if (c->wait.queued) engine_unwait(c->e, &c->wait);
    if (!c->send_armed) release_sources(c);
    conn_ready(c); /* freed at the end of the turn, when no caller holds it any more */
}

/* ---- output ---- */

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
    free_output(c);
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
    if (send(c->fd, frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof frame) c->e->counters.bytes_out += sizeof frame;
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

/* `alone`: nothing else is sent in this turn, so a plain send saves the completion; otherwise the ring batches the calls. */
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
    struct io_uring_sqe *slot = ring_slot(&c->e->ring, &c->send_operation);
    io_uring_prep_send(slot, c->fd, c->out + c->out_sent, left, MSG_NOSIGNAL);
    c->send_armed = true;
    if (c->job == NULL && !c->lease_open && !c->close_after_reply && !c->move_wanted) { /* the next request is welcome already */
        conn_frame_release(c);
        if (c->in_length == 0) conn_arm_receive(c);
    }
}

void conn_on_send(conn *c, int result) {
    c->send_armed = false;
    if (c->closing) {
        release_sources(c);
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

/* ---- input ---- */

void conn_arm_receive(conn *c) {
    if (c->receive_armed || c->starved || c->closing || c->end_of_input) return;
    engine *e = c->e;
    struct io_uring_sqe *slot;
    if (c->block != NULL && c->state == CONN_RECEIVING && c->block_have < c->keep_length) {
        uint32_t room = (c->block_size < c->keep_length ? c->block_size : c->keep_length) - c->block_have;
        slot = ring_slot(&e->ring, &c->receive_operation);
        io_uring_prep_recv(slot, c->fd, c->block + c->block_have, room, 0);
    } else {
        slot = ring_slot(&e->ring, &c->receive_operation);
        io_uring_prep_recv(slot, c->fd, NULL, RECEIVE_BUFFER_SIZE, 0);
        slot->flags |= IOSQE_BUFFER_SELECT;
        slot->buf_group = RECEIVE_GROUP;
    }
    c->receive_armed = true;
}

static void no_buffer_left(conn *c) {
    c->e->counters.buffer_starved++;
    c->starved = true;
    c->next_starved = c->e->starved;
    c->e->starved = c;
}

/* The ring brought the first bytes; the rest that is already there comes by plain calls into the block. */
static void fill_block(conn *c) {
    for (;;) {
        uint32_t room = (c->block_size < c->keep_length ? c->block_size : c->keep_length) - c->block_have;
        if (room == 0) return;
        ssize_t got = recv(c->fd, c->block + c->block_have, room, MSG_DONTWAIT);
        if (got > 0) c->block_have += (uint32_t)got;
        else if (got == 0) c->end_of_input = true;
        if (got <= 0) return;
    }
}

void conn_on_receive(conn *c, int result, uint32_t flags) {
    engine *e = c->e;
    c->receive_armed = false;
    bool provided = (flags & IORING_CQE_F_BUFFER) != 0;
    uint16_t buffer = (uint16_t)(flags >> IORING_CQE_BUFFER_SHIFT);
    if (provided) e->ring.free_buffers--;
    if (c->closing || result <= 0) {
        if (provided) ring_buffer_return(&e->ring, buffer);
        if (c->closing) conn_ready(c);
        else if (result == -ENOBUFS) no_buffer_left(c);
        else if (result == -EINTR || result == -EAGAIN) conn_arm_receive(c);
        else if (result == 0) {
            c->end_of_input = true;
            conn_ready(c);
        } else conn_close(c);
        return;
    }
    c->progress_us = e->now_us;
    e->counters.bytes_in += (uint64_t)result;
    if (provided) {
        assert(c->in_buffer < 0 && c->in_length == 0);
        c->in = ring_buffer(&e->ring, buffer);
        c->in_buffer = buffer;
        c->in_length = (uint32_t)result;
    } else {
        c->block_have += (uint32_t)result;
        fill_block(c);
    }
    conn_ready(c);
}

/* Decides what to do with a frame whose header is complete. False: it was answered or the connection closes. */
static bool begin_frame(conn *c) {
    uint32_t length;
    memcpy(&length, c->head, 4);
    memcpy(&c->code, c->head + 4, 4);
    c->attempts = 0;
    c->e->counters.frames++;
    if (length < 4) {
        c->head_have = 0;
        conn_reply_status(c, STATUS_INVALID_COMMAND);
        return false;
    }
    c->payload_length = length - 4;
    if (c->payload_length > (c->code == CODE_SEND_MESSAGES ? FRAME_SEND_MAX : FRAME_CONTROL_MAX)) {
        c->close_after_reply = true;
        conn_reply_status(c, STATUS_INVALID_COMMAND);
        return false;
    }
    c->keep_length = c->payload_length;
    if (c->code == CODE_PING || (c->code == CODE_SEND_MESSAGES && !c->authenticated)) c->keep_length = 0;
    else if (!c->authenticated && c->keep_length > FRAME_ANONYMOUS_MAX) c->keep_length = FRAME_ANONYMOUS_MAX;
    return true;
}

static uint32_t wanted_block(const conn *c) {
    if (c->keep_length <= BLOCK_STEP || pool_used(c->e->pool) < pool_capacity(c->e->pool) / 2) return c->keep_length;
    uint32_t doubled = c->block_have * 2 > BLOCK_STEP ? c->block_have * 2 : BLOCK_STEP;
    return doubled < c->keep_length ? doubled : c->keep_length;
}

static bool retry_block(waiter *w);

/* Makes room for more of the frame; false when the pool has none now (the connection then waits). */
static bool ensure_block(conn *c) {
    if (c->block != NULL && c->block_have < c->block_size) return true;
    uint8_t *larger = engine_allocate(c->e, wanted_block(c), true);
    if (larger == NULL) {
        c->state = CONN_WAITING;
        engine_wait(c->e, &c->wait, retry_block);
        return false;
    }
    uint32_t size = (uint32_t)pool_block_size(c->e->pool, larger);
    if (c->block != NULL) {
        memcpy(larger, c->block, c->block_have);
        pool_free(c->e->pool, c->block);
    }
    c->block = larger;
    c->block_size = size;
    return true;
}

static bool retry_block(waiter *w) {
    conn *c = (conn *)w;
    c->state = CONN_RECEIVING;
    if (!ensure_block(c)) return false; /* still queued */
    conn_ready(c);
    return true;
}

/* Takes what is kept and drains what is not. True when the frame is complete. */
static bool take_payload(conn *c) {
    if (c->block == NULL && c->keep_length == c->payload_length && c->in_length >= c->payload_length) {
        c->payload = c->in; /* the usual case: whole frame inside the provided buffer */
        c->in += c->payload_length;
        c->in_length -= c->payload_length;
        return true;
    }
    while (c->block_have < c->keep_length) {
        if (!ensure_block(c)) return false;
        if (c->in_length == 0) return false;
        uint32_t room = (c->block_size < c->keep_length ? c->block_size : c->keep_length) - c->block_have;
        uint32_t part = c->in_length < room ? c->in_length : room;
        memcpy(c->block + c->block_have, c->in, part);
        c->block_have += part;
        c->in += part;
        c->in_length -= part;
    }
    uint32_t left = c->payload_length - c->keep_length; /* reused as: still to drain */
    uint32_t part = c->in_length < left ? c->in_length : left;
    c->in += part;
    c->in_length -= part;
    c->payload_length -= part;
    c->payload = c->block;
    return c->payload_length == c->keep_length;
}

void conn_advance(conn *c) {
    while (!c->closing && c->state == CONN_RECEIVING) {
        if (engine_events_full(c->e)) { /* Python first; the frame waits one turn */
            conn_ready(c);
            return;
        }
        if (c->head_have < FRAME_HEADER_SIZE) {
            uint32_t missing = FRAME_HEADER_SIZE - c->head_have;
            uint32_t part = c->in_length < missing ? c->in_length : missing;
            if (part > 0) memcpy(c->head + c->head_have, c->in, part);
            c->head_have = (uint8_t)(c->head_have + part);
            c->in += part;
            c->in_length -= part;
            if (c->head_have < FRAME_HEADER_SIZE) break;
            if (!begin_frame(c)) return;
        }
        if (!take_payload(c)) {
            if (c->state != CONN_RECEIVING) return;
            break;
        }
        c->head_have = 0;
        execute_frame(c);
    }
    if (c->closing || c->state != CONN_RECEIVING) return;
    if (c->in_length == 0) return_buffer(c);
    if (c->end_of_input) conn_close(c);
    else conn_arm_receive(c);
}

void conn_ready(conn *c) {
    if (c->in_ready) return;
    c->in_ready = true;
    c->next_ready = c->e->ready;
    c->e->ready = c;
}
