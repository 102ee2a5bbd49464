/* Input of streams that translate: what the socket gave becomes what the client said, straight in a block of the pool
 * or of the frame, when it is the connection's turn. */
#include "net/net.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool retry(waiter *w) {
    conn *c = (conn *)w;
    c->state = CONN_RECEIVING;
    conn_ready(c); /* it is unread still */
    return true;
}

/* No memory now. Later in this place, when what is in work has ended (conn_arm_receive), or when there is some. */
static void wait_for_memory(conn *c) {
    c->input.unread = true;
    if (c->state != CONN_RECEIVING) return;
    c->state = CONN_WAITING;
    core_wait(c->core, &c->wait, retry);
}

/* The first part of a frame, or several: as if it were a provided buffer. */
static void read_into_block(conn *c) {
    pool *p = c->core->pool;
    size_t room = stream_available(&c->stream);
    if (room == 0) return;
    if (room > RECEIVE_BUFFER_SIZE) room = RECEIVE_BUFFER_SIZE;
    ASSERT(c->input.buffer < 0 && c->input.block == NULL);
    uint8_t *block = pool_alloc_reserving(p, room, pool_capacity(p) / 8);
    if (block == NULL) {
        wait_for_memory(c);
        return;
    }
    ssize_t got = stream_receive_now(&c->stream, block, room);
    if (got <= 0) {
        pool_free(p, block);
        if (got == 0) c->input.ended = true;
        else if (errno != EAGAIN && errno != EINTR) conn_close(c);
        return;
    }
    c->input.bytes = c->input.block = block;
    c->input.length = (uint32_t)got;
    share_hold(c, (uint32_t)pool_block_size(p, block));
}

/* Whose certificate it is, Python finds out before the first request. */
static void on_open(conn *c) {
    char *names = c->net->options.clients_have_names ? stream_names(&c->stream) : NULL;
    if (names == NULL) return;
    event *v = events_add(&c->core->events, EVENT_CERTIFIED, conn_id(c));
    if (v == NULL) {
        free(names);
        conn_close(c);
        return;
    }
    v->data = (uint8_t *)names;
    v->data_length = strlen(names);
    c->state = CONN_ENTERING;
}

/* One step on the way to an open stream. */
static void open_further(conn *c) {
    ssize_t result = stream_receive_now(&c->stream, NULL, 0);
    if (!c->stream.opening) on_open(c);
    else if (result == 0) c->input.ended = true;
    else if (errno != EAGAIN && errno != EINTR) conn_close(c);
}

void conn_read_stream(conn *c) {
    bool into_frame = c->frame.block != NULL && c->state == CONN_RECEIVING && c->frame.block_have < c->frame.block_size;
    c->input.unread = false;
    if (c->input.taken >= 0) stream_take(&c->stream, io_buffer(&c->core->io, c->input.taken), c->input.taken_length);
    if (c->stream.opening) open_further(c);
    else if (into_frame) conn_fill_block(c);
    else if (c->input.length == 0) read_into_block(c);
    bool kept = stream_keep(&c->stream);
    conn_return_taken(c);
    if (!kept) conn_close(c);
}
