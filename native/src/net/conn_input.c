/* Input of connections: receive and frame (docs/protocol/framing.md).
 *
 * A receive takes one of the provided buffers only while it has data. A frame that does not fit gets a private block
 * and the rest of it is received straight into that block. Who waits with a buffer gives it back when they are scarce.
 * All private memory has an owner and a share (shares.h). */
#include "engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define BUFFERS_SCARCE_PART 4u /* of a set: below one part in so many, who waits with a buffer gives it back */
#define BLOCK_STEP 65536u      /* first block of a large frame when the pool is more than half full */

static void return_buffer(conn *c) {
    if (c->in_block != NULL) {
        share_give_back(c, (uint32_t)pool_block_size(c->e->pool, c->in_block));
        pool_free(c->e->pool, c->in_block);
        c->in_block = NULL;
    }
    if (c->in_buffer < 0) return;
    c->e->buffer_holders[c->in_buffer] = NULL;
    io_buffer_return(&c->e->io, c->in_buffer);
    c->in_buffer = -1;
}

static void free_block(conn *c) {
    if (c->block != NULL) {
        pool_free(c->e->pool, c->block);
        share_give_back(c, c->block_have);
    }
    c->block = NULL;
    c->block_have = c->block_size = 0;
}

static void count_partial(conn *c, uint32_t received) {
    c->block_have += received;
    share_hold(c, received);
}

void conn_frame_release(conn *c) {
    if (c->forwarded) return; /* the owner may still read it; forward.c releases */
    free_block(c);
    c->payload = NULL;
    if (c->in_length == 0) return_buffer(c);
    if (c->held_bytes == 0) share_leave(c);
}

void conn_free_input(conn *c) {
    free_block(c);
    return_buffer(c);
    share_leave(c);
}

void conn_arm_receive(conn *c) {
    if (c->receive_armed || c->starved || c->throttled || c->closing || c->end_of_input) return;
    engine *e = c->e;
    if (c->block != NULL && c->state == CONN_RECEIVING && c->block_have < c->keep_length) {
        if (!share_may_grow(c)) {
            share_wait(c);
            return;
        }
        uint32_t room = (c->block_size < c->keep_length ? c->block_size : c->keep_length) - c->block_have;
        if (room > PARTIAL_RECEIVE_BYTES) room = PARTIAL_RECEIVE_BYTES;
        share_arm(c, room);
        io_receive(&e->io, &c->receive_operation, c->fd, c->block + c->block_have, room);
    } else {
        io_receive_provided(&e->io, &c->receive_operation, c->fd,
                            c->authenticated ? BUFFERS_LOGGED_IN : BUFFERS_ANONYMOUS);
    }
    c->receive_armed = true;
}

/* ---- provided buffers come back from whoever waits with one ---- */

/* Whether the bytes of its frame are needed again. */
static bool needs_payload(const conn *c) {
    return c->payload != NULL && c->block == NULL &&
           (c->state == CONN_PYTHON || c->state == CONN_WAITING || c->state == CONN_FORWARDED ||
            c->state == CONN_RECEIVING);
}

bool conn_park(conn *c) {
    if (c->in_buffer < 0) return true;
    engine *e = c->e;
    uint8_t *from = needs_payload(c) ? c->payload : c->in;
    size_t length = (size_t)(c->in + c->in_length - from);
    if (length > 0) {
        uint8_t *block = engine_allocate(e, length, false);
        if (block == NULL) return false;
        memcpy(block, from, length);
        if (from == c->payload) c->payload = block;
        c->in = block + (c->in - from);
        c->in_block = block;
        e->counters.parked++;
    }
    e->buffer_holders[c->in_buffer] = NULL;
    io_buffer_return(&e->io, c->in_buffer);
    c->in_buffer = -1;
    return length == 0 || share_hold(c, (uint32_t)pool_block_size(e->pool, c->in_block));
}

/* It waits for somebody, and nobody else looks at its buffer meanwhile. */
static bool may_park(const conn *c) {
    switch (c->state) {
    case CONN_STAGED: return c->held != NULL;
    case CONN_FORWARDED: return c->code != CODE_SEND_MESSAGES; /* its records are leased */
    case CONN_RECEIVING: return c->in_ready;                   /* what it has sent ahead waits for its turn */
    default: return !c->closing;
    }
}

void conn_reclaim_buffers(engine *e) {
    for (buffer_set set = 0; set < BUFFER_SETS; set++) {
        uint32_t count = io_buffers_count(set);
        if (e->io.free_buffers[set] >= count / BUFFERS_SCARCE_PART) continue;
        conn **holders = e->buffer_holders + io_first_buffer(set);
        for (uint32_t n = 0; n < count; n++)
            if (holders[n] != NULL && may_park(holders[n])) conn_park(holders[n]);
    }
}

static void no_buffer_left(conn *c) {
    c->e->counters.buffer_starved++;
    c->starved = true;
    conn_queue *q = &c->e->starved[c->authenticated ? BUFFERS_LOGGED_IN : BUFFERS_ANONYMOUS];
    c->next_starved = NULL;
    if (q->last != NULL) q->last->next_starved = c;
    else q->first = c;
    q->last = c;
}

/* The operation brought the first bytes; the rest that is already there comes by plain calls into the block. */
static void fill_block(conn *c) {
    for (;;) {
        uint32_t room = (c->block_size < c->keep_length ? c->block_size : c->keep_length) - c->block_have;
        if (room == 0 || c->closing || !share_may_grow(c)) return;
        if (room > PARTIAL_FILL_BYTES) room = PARTIAL_FILL_BYTES;
        ssize_t got = recv(c->fd, c->block + c->block_have, room, MSG_DONTWAIT);
        if (got == 0) c->end_of_input = true;
        if (got <= 0) return;
        count_partial(c, (uint32_t)got);
        c->e->counters.bytes_in += (uint64_t)got;
    }
}

void conn_on_receive(conn *c, int result, int32_t buffer) {
    engine *e = c->e;
    c->receive_armed = false;
    share_arm(c, 0);
    if (c->closing || result <= 0) {
        if (buffer >= 0) io_buffer_return(&e->io, buffer);
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
    if (buffer >= 0) {
        assert(c->in_buffer < 0 && c->in_length == 0);
        c->in = io_buffer(&e->io, buffer);
        c->in_buffer = buffer;
        e->buffer_holders[buffer] = c;
        c->in_length = (uint32_t)result;
    } else {
        count_partial(c, (uint32_t)result);
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
    c->request_us = c->e->now_us; /* for the answers of this function; see conn_advance */
    c->e->counters.frames++;
    if (length < 4) {
        c->head_have = 0;
        conn_reply_status(c, STATUS_INVALID_COMMAND);
        return false;
    }
    c->payload_length = length - 4;
    uint32_t limit = c->code == CODE_SEND_MESSAGES ? c->e->frame_send_max : frame_limit(c->code);
    c->too_large = c->payload_length > limit;
    if (c->payload_length > FRAME_CONTROL_MAX && c->too_large) {
        c->close_after_reply = true;
        conn_reply_status(c, STATUS_INVALID_COMMAND);
        return false;
    }
    c->keep_length = c->payload_length;
    if (c->too_large || c->code == CODE_PING || (c->code == CODE_SEND_MESSAGES && !c->authenticated))
        c->keep_length = 0;
    else if (!c->authenticated && c->keep_length > FRAME_ANONYMOUS_MAX) c->keep_length = FRAME_ANONYMOUS_MAX;
    return true;
}

static uint32_t wanted_block(conn *c) {
    if (c->block == NULL && c->in_length > 0 && c->in_length < c->keep_length && !share_may_grow(c))
        return c->in_length; /* it waits for its turn: room for what has come */
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
        if (c->in_length == 0) {
            fill_block(c); /* most often the rest is there already */
            if (c->block_have < c->block_size || c->block_have == c->keep_length) break;
            continue;
        }
        uint32_t room = (c->block_size < c->keep_length ? c->block_size : c->keep_length) - c->block_have;
        uint32_t part = c->in_length < room ? c->in_length : room;
        memcpy(c->block + c->block_have, c->in, part);
        count_partial(c, part);
        c->in += part;
        c->in_length -= part;
    }
    if (c->block_have < c->keep_length) return false;
    uint32_t left = c->payload_length - c->keep_length; /* reused as: still to drain */
    uint32_t part = c->in_length < left ? c->in_length : left;
    c->in += part;
    c->in_length -= part;
    c->payload_length -= part;
    c->payload = c->block;
    return c->payload_length == c->keep_length;
}

/* Nobody wants what comes; until the client has seen the last answer and ends its half. */
static void drop_input(conn *c) {
    c->in_length = 0;
    return_buffer(c);
    if (c->end_of_input) conn_close(c);
    else conn_arm_receive(c);
}

void conn_advance(conn *c) {
    if (c->state == CONN_LINGERING && !c->closing) {
        drop_input(c);
        return;
    }
    while (!c->closing && c->state == CONN_RECEIVING) {
        if (engine_events_full(c->e, c)) { /* Python first; the frame waits one turn */
            conn_ready(c);
            return;
        }
        if (c->head_have < FRAME_HEADER_SIZE) {
            uint32_t missing = FRAME_HEADER_SIZE - c->head_have;
            uint32_t part = c->in_length < missing ? c->in_length : missing;
            if (part > 0) memcpy(c->head + c->head_have, c->in, part);
            if (c->head_have == 0) c->frame_us = c->e->now_us;
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
        c->request_us = c->e->now_us;
        c->answer_begun = false;
        if (c->too_large) conn_reply_status(c, STATUS_INVALID_COMMAND);
        else execute_frame(c);
    }
    if (c->closing || c->state != CONN_RECEIVING) return;
    if (c->in_length == 0) return_buffer(c);
    if (c->end_of_input) conn_close(c);
    else conn_arm_receive(c);
}
