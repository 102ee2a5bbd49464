/* Input of connections: receive and frame .
 *
 * A receive takes one of the provided buffers only while it has data. A frame that does not fit gets a private block
 * and the rest of it is received straight into that block. Who waits with a buffer gives it back when they are scarce.
 * All private memory has an owner and a share (shares.h). */
#include "net/conn/wait.h"
#include "net/net.h"
#include "net/conn/places.h"

#include "base/assert.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define BUFFERS_SCARCE_PART 4u /* of a set: below one part in so many, who waits with a buffer gives it back */
#define BLOCK_STEP 65536u      /* first block of a large frame when the pool is more than half full */

void conn_return_buffer(conn *c) {
    if (c->input.block != NULL) {
        share_give_back(c, (uint32_t)pool_block_size(c->core->pool, c->input.block));
        pool_free(c->core->pool, c->input.block);
        c->input.block = NULL;
    }
    if (c->input.buffer < 0) return;
    c->net->buffer_holders[c->input.buffer] = NULL;
    io_buffer_return(&c->core->io, c->input.buffer);
    c->input.buffer = -1;
}

static void free_block(conn *c) {
    if (c->frame.block != NULL) {
        pool_free(c->core->pool, c->frame.block);
        share_give_back(c, c->frame.block_have);
    }
    c->frame.block = NULL;
    c->frame.block_have = c->frame.block_size = 0;
}

static void count_partial(conn *c, uint32_t received) {
    c->frame.block_have += received;
    share_hold(c, received);
}

void conn_frame_replace(conn *c, uint8_t *block, uint32_t length) {
    free_block(c);
    c->frame.block = c->frame.payload = block;
    c->frame.block_size = (uint32_t)pool_block_size(c->core->pool, block);
    count_partial(c, length);
    if (c->input.length == 0) conn_return_buffer(c);
}

void conn_frame_release(conn *c) {
    if (conn_waits_for(c, WAITS_FOR_PEER)) return; /* the owner may still read it */
    free_block(c);
    c->frame.payload = NULL;
    if (c->input.length == 0) conn_return_buffer(c);
    if (c->memory.held_bytes == 0) share_leave(c);
}

void conn_return_taken(conn *c) {
    if (c->input.taken >= 0) io_buffer_return(&c->core->io, c->input.taken);
    c->input.taken = -1;
    c->input.taken_length = 0;
}

void conn_free_input(conn *c) {
    free_block(c);
    conn_return_buffer(c);
    conn_return_taken(c);
    share_leave(c);
}

void conn_arm_receive(conn *c) {
    if (c->input.armed || c->input.starved || c->memory.throttled || c->closing || c->input.ended) return;
    core *k = c->core;
    bool translates = stream_translates(&c->stream);
    bool into_block = c->frame.block != NULL && c->state == CONN_RECEIVING &&
                      c->frame.block_have < c->frame.keep_length;
    if (into_block && !share_may_grow(c)) {
        share_wait(c);
        return;
    }
    if (translates && (c->input.unread || stream_available(&c->stream) > 0)) {
        c->input.unread = true;
        conn_ready_again(c);
        return;
    }
    if (into_block) {
        uint32_t room = (c->frame.block_size < c->frame.keep_length ? c->frame.block_size : c->frame.keep_length) -
                        c->frame.block_have;
        if (room > PARTIAL_RECEIVE_BYTES) room = PARTIAL_RECEIVE_BYTES;
        share_arm(c, room);
        if (!translates)
            stream_receive(&c->stream, &k->io, &c->input.operation, c->frame.block + c->frame.block_have, room);
    }
    if (translates || !into_block)
        stream_receive_provided(&c->stream, &k->io, &c->input.operation,
                                c->session.authenticated ? BUFFERS_LOGGED_IN : BUFFERS_ANONYMOUS);
    c->input.armed = true;
}

/* ---- provided buffers come back from whoever waits with one ---- */

/* Whether the bytes of its frame are needed again. */
static bool needs_payload(const conn *c) {
    return c->frame.payload != NULL && c->frame.block == NULL && !conn_wait_has(c) &&
           (c->state == CONN_PYTHON || c->state == CONN_WAITING || conn_waits_for(c, WAITS_FOR_PEER) ||
            c->state == CONN_RECEIVING || c->lending);
}

bool conn_park(conn *c) {
    if (c->input.buffer < 0) return true;
    core *k = c->core;
    uint8_t *from = needs_payload(c) ? c->frame.payload : c->input.bytes;
    size_t length = (size_t)(c->input.bytes + c->input.length - from);
    if (length > 0) {
        uint8_t *block = pool_alloc(k->pool, length);
        if (block == NULL) return false;
        memcpy(block, from, length);
        if (from == c->frame.payload) c->frame.payload = block;
        c->input.bytes = block + (c->input.bytes - from);
        c->input.block = block;
        k->counters.parked++;
    }
    c->net->buffer_holders[c->input.buffer] = NULL;
    io_buffer_return(&k->io, c->input.buffer);
    c->input.buffer = -1;
    return length == 0 || share_hold(c, (uint32_t)pool_block_size(k->pool, c->input.block));
}

/* It waits for somebody, and nobody else looks at its buffer meanwhile. */
static bool may_park(const conn *c) {
    switch (c->state) {
    case CONN_WORKING: /* the records of a SEND are staged or leased, until it waits for the device */
        return c->work != NULL && (c->frame.head.kind != REQUEST_SEND || conn_waits_for(c, WAITS_FOR_DEVICE));
    case CONN_WINDOW: return c->window->holding == 0;
    case CONN_RECEIVING: return c->in_ready; /* what it has sent ahead waits for its turn */
    default: return !c->closing;
    }
}

void conn_reclaim_buffers(net *n) {
    for (buffer_set set = 0; set < BUFFER_SETS; set++) {
        uint32_t count = io_buffers_count(set);
        if (n->core->io.free_buffers[set] >= count / BUFFERS_SCARCE_PART) continue;
        conn **holders = n->buffer_holders + io_first_buffer(set);
        for (uint32_t i = 0; i < count; i++)
            if (holders[i] != NULL && may_park(holders[i])) conn_park(holders[i]);
    }
}

static void no_buffer_left(conn *c) {
    c->core->counters.buffer_starved++;
    c->input.starved = true;
    conn_queue *q = &c->net->starved[c->session.authenticated ? BUFFERS_LOGGED_IN : BUFFERS_ANONYMOUS];
    c->input.next_starved = NULL;
    if (q->last != NULL) q->last->input.next_starved = c;
    else q->first = c;
    q->last = c;
}

/* The operation brought the first bytes; the rest that is already there comes by plain calls into the block, as much as
 * a pass may take. */
void conn_fill_block(conn *c) {
    for (;;) {
        uint32_t room = (c->frame.block_size < c->frame.keep_length ? c->frame.block_size : c->frame.keep_length) -
                        c->frame.block_have;
        if (room == 0 || c->closing || c->net->filled_bytes >= FILL_BYTES_PER_PASS || !share_may_grow(c)) return;
        if (room > PARTIAL_FILL_BYTES) room = PARTIAL_FILL_BYTES; /* more costs time where it is translated */
        ssize_t got = stream_receive_now(&c->stream, c->frame.block + c->frame.block_have, room);
        if (got == 0) c->input.ended = true;
        if (got < 0 && errno != EAGAIN && errno != EINTR && stream_translates(&c->stream)) conn_close(c);
        if (got <= 0) return;
        count_partial(c, (uint32_t)got);
        c->net->filled_bytes += (uint64_t)got;
        c->core->counters.bytes_in += (uint64_t)got;
        if (stream_translates(&c->stream)) return; /* it has given what belongs to a turn */
    }
}

/* Bytes that the stream has to translate: in the turn of the connection. One that is opening may wait long for that,
 * and holds no shared buffer meanwhile. */
static void on_foreign(conn *c, uint32_t length, int32_t buffer) {
    c->input.taken = buffer;
    c->input.taken_length = length;
    c->input.unread = true;
    if (c->stream.opening) {
        stream_take(&c->stream, io_buffer(&c->core->io, buffer), length);
        if (!stream_keep(&c->stream)) conn_close(c);
        conn_return_taken(c);
    }
    if (c->sends_ahead || c->state == CONN_WINDOW) conn_ready_again(c);
    else conn_ready(c);
    c->sends_ahead = false;
}

void conn_on_receive(conn *c, int result, int32_t buffer) {
    core *k = c->core;
    c->input.armed = false;
    share_arm(c, 0);
    if (c->closing || result <= 0) {
        if (buffer >= 0) io_buffer_return(&k->io, buffer);
        if (c->closing) conn_ready(c);
        else if (result == -ENOBUFS) no_buffer_left(c);
        else if (result == -EINTR || result == -EAGAIN) conn_arm_receive(c);
        else if (result == 0) {
            c->input.ended = true;
            conn_ready(c);
        } else conn_close(c);
        return;
    }
    c->clocks.progress_us = k->now_us;
    k->counters.bytes_in += (uint64_t)result;
    if (buffer >= 0) stream_recognize(&c->stream, io_buffer(&k->io, buffer), (uint32_t)result);
    if (buffer >= 0 && stream_translates(&c->stream)) {
        on_foreign(c, (uint32_t)result, buffer);
        return;
    }
    if (buffer >= 0) {
        ASSERT(c->input.buffer < 0 && c->input.length == 0);
        c->input.bytes = io_buffer(&k->io, buffer);
        c->input.buffer = buffer;
        c->net->buffer_holders[buffer] = c;
        c->input.length = (uint32_t)result;
    } else {
        count_partial(c, (uint32_t)result);
        conn_fill_block(c);
    }
    if (c->sends_ahead || c->state == CONN_WINDOW) conn_ready_again(c);
    else conn_ready(c);
    c->sends_ahead = false;
}

bool conn_on_bytes(conn *c, const uint8_t *bytes, uint32_t length) {
    ASSERT(c->input.buffer < 0 && c->input.length == 0 && c->input.block == NULL);
    c->input.armed = false;
    share_arm(c, 0);
    uint8_t *block = pool_alloc(c->core->pool, length);
    if (block == NULL) return false;
    memcpy(block, bytes, length);
    c->input.bytes = c->input.block = block;
    c->input.length = length;
    c->clocks.progress_us = c->core->now_us;
    c->core->counters.bytes_in += length;
    conn_ready(c);
    return share_hold(c, (uint32_t)pool_block_size(c->core->pool, block));
}

static uint32_t wanted_block(conn *c) {
    if (c->frame.block == NULL && c->input.length > 0 && c->input.length < c->frame.keep_length && !share_may_grow(c))
        return c->input.length; /* it waits for its turn: room for what has come */
    if (c->frame.keep_length <= BLOCK_STEP || pool_used(c->core->pool) < pool_capacity(c->core->pool) / 2)
        return c->frame.keep_length;
    uint32_t doubled = c->frame.block_have * 2 > BLOCK_STEP ? c->frame.block_have * 2 : BLOCK_STEP;
    return doubled < c->frame.keep_length ? doubled : c->frame.keep_length;
}

static bool retry_block(waiter *w);

/* Makes room for more of the frame; false when the pool has none now (the connection then waits). */
static bool ensure_block(conn *c) {
    if (c->frame.block != NULL && c->frame.block_have < c->frame.block_size) return true;
    uint8_t *larger = pool_alloc_reserving(c->core->pool, wanted_block(c), pool_capacity(c->core->pool) / 8);
    if (larger == NULL) {
        c->state = CONN_WAITING;
        core_wait(c->core, &c->wait, retry_block);
        return false;
    }
    uint32_t size = (uint32_t)pool_block_size(c->core->pool, larger);
    if (c->frame.block != NULL) {
        memcpy(larger, c->frame.block, c->frame.block_have);
        pool_free(c->core->pool, c->frame.block);
    }
    c->frame.block = larger;
    c->frame.block_size = size;
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
bool conn_take_payload(conn *c) {
    if (c->frame.block == NULL && c->frame.keep_length == c->frame.head.length &&
        c->input.length >= c->frame.head.length) {
        c->frame.payload = c->input.bytes; /* the usual case: whole frame inside the provided buffer */
        c->input.bytes += c->frame.head.length;
        c->input.length -= c->frame.head.length;
        return true;
    }
    while (c->frame.block_have < c->frame.keep_length) {
        if (!ensure_block(c)) return false;
        if (c->input.length == 0) {
            conn_fill_block(c); /* most often the rest is there already */
            if (c->frame.block_have < c->frame.block_size || c->frame.block_have == c->frame.keep_length) break;
            continue;
        }
        uint32_t room = (c->frame.block_size < c->frame.keep_length ? c->frame.block_size : c->frame.keep_length) -
                        c->frame.block_have;
        uint32_t part = c->input.length < room ? c->input.length : room;
        memcpy(c->frame.block + c->frame.block_have, c->input.bytes, part);
        count_partial(c, part);
        c->input.bytes += part;
        c->input.length -= part;
    }
    if (c->frame.block_have < c->frame.keep_length) return false;
    uint32_t left = c->frame.head.length - c->frame.keep_length; /* reused as: still to drain */
    uint32_t part = c->input.length < left ? c->input.length : left;
    c->input.bytes += part;
    c->input.length -= part;
    c->frame.head.length -= part;
    c->frame.payload = c->frame.block;
    return c->frame.head.length == c->frame.keep_length;
}
