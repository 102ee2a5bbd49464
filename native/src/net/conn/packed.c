/* Requests and answers of a dialect that remembers sessions and packs records otherwise than they are stored: what
 * arrives is admitted and becomes records in place, or in a block of its own when these need more room, a slice in a
 * turn; what was polled becomes batches on its way out, a part at a time. */
#include "net/net.h"

#include "base/status.h"
#include "core/output.h"
#include "wire/iggy09_batch.h"

#include <stdlib.h>
#include <string.h>

/* ---- in ---- */

/* The answer that is kept. */
static void answer_again(conn *c) {
    const iggy09_memory *m = &c->large->memory;
    if (m->answer_length > 0) conn_reply_payload(c, m->status, m->answer, m->answer_length);
    else conn_reply_status(c, m->status);
}

/* False: it has its answer. */
static bool admit(conn *c) {
    uint32_t status;
    frame_head *head = &c->frame.head;
    if (head->admitted) return true;
    head->admitted = true;
    switch (iggy09_admit(&c->large->memory, c->session.authenticated, c->frame.head_bytes, c->frame.payload,
                         head->length, &status)) {
    case IGGY09_EXECUTE: return true;
    case IGGY09_REPEAT: answer_again(c); return false;
    default: conn_reply_status(c, status); return false;
    }
}

#define UNPACKED_AT_ONCE_BYTES 262144u

/* A SEND that is unpacked in several turns. */
struct conn_unpacking {
    iggy09_unpacking state; /* first: as it is aligned */
    uint8_t *records;       /* with their metadata: in place, or ... */
    uint8_t *block;         /* ... here */
    uint32_t length, held;  /* held: of the share of its owner, for the block */
};

/* Where the records of a SEND go. False: no memory now. */
static bool find_room(conn *c, const iggy09_send *s, struct conn_unpacking *u) {
    const frame_head *head = &c->frame.head;
    uint64_t bytes = s->metadata_bytes + s->records_bytes;
    u->length = (uint32_t)bytes;
    u->held = 0;
    u->block = NULL;
    u->records = c->frame.payload + head->length - bytes;
    if (bytes <= head->length) return true;
    pool *p = c->core->pool;
    u->records = u->block = pool_alloc_reserving(p, bytes, pool_capacity(p) / 8);
    return u->block != NULL;
}

static void unpacked(conn *c, const struct conn_unpacking *u) {
    c->frame.head.length = u->length;
    if (u->block == NULL) c->frame.payload = u->records;
    else conn_frame_replace(c, u->block, u->length);
}

/* It needs more than one turn: what is known goes to the heap. */
static packed_result unpack_later(conn *c, const struct conn_unpacking *begun) {
    struct conn_unpacking *u = aligned_alloc(_Alignof(struct conn_unpacking), sizeof *u);
    if (u == NULL) {
        if (begun->block != NULL) pool_free(c->core->pool, begun->block);
        conn_packed_status(c, STATUS_ERROR);
        return PACKED_ENDED;
    }
    memcpy(u, begun, sizeof *u);
    c->large->unpacking = u;
    if (u->block != NULL) {
        u->held = u->length;
        share_hold(c, u->held); /* its end, if it was too much, comes before its next turn */
    }
    return PACKED_GOES_ON;
}

void conn_packed_forget(conn *c) {
    if (c->large == NULL || c->large->unpacking == NULL) return;
    struct conn_unpacking *u = c->large->unpacking;
    share_give_back(c, u->held);
    if (u->block != NULL) pool_free(c->core->pool, u->block);
    free(u);
    c->large->unpacking = NULL;
}

static packed_result unpack_begin(conn *c) {
    const frame_head *head = &c->frame.head;
    struct conn_unpacking u;
    iggy09_send s;
    uint32_t status = iggy09_send_read(c->frame.payload, head->length, &s);
    if (status == 0 && !find_room(c, &s, &u)) return PACKED_NEEDS_PLACE;
    if (status == 0) {
        iggy09_unpack_begin(&u.state, c->frame.payload, head->length, &s, u.records);
        if (!iggy09_unpack_part(&u.state, UNPACKED_AT_ONCE_BYTES, &status)) return unpack_later(c, &u);
        if (status != 0 && u.block != NULL) pool_free(c->core->pool, u.block);
    }
    if (status != 0) {
        conn_packed_status(c, status);
        return PACKED_ENDED;
    }
    unpacked(c, &u);
    return c->closing ? PACKED_ENDED : PACKED_READY;
}

/* The records of a SEND as they are stored. */
static packed_result unpack(conn *c) {
    struct conn_unpacking *u = c->large->unpacking;
    uint32_t status = 0;
    if (u == NULL) return unpack_begin(c);
    if (!iggy09_unpack_part(&u->state, UNPACKED_AT_ONCE_BYTES, &status)) return PACKED_GOES_ON;
    if (status == 0) {
        struct conn_unpacking done = *u;
        share_give_back(c, u->held);
        u->held = 0;
        u->block = NULL;
        unpacked(c, &done);
    }
    conn_packed_forget(c);
    if (status != 0) conn_packed_status(c, status);
    return status != 0 || c->closing ? PACKED_ENDED : PACKED_READY;
}

packed_result conn_open_packed(conn *c) {
    packed_result result = PACKED_READY;
    if (!admit(c)) return PACKED_ENDED;
    if (c->frame.head.sends && !c->session.authenticated) {
        conn_reply_status(c, STATUS_UNAUTHENTICATED);
        return PACKED_ENDED;
    }
    if (c->frame.head.sends) result = unpack(c);
    if (result == PACKED_READY) c->frame.head.kind = c->frame.head.inner;
    if (result == PACKED_GOES_ON) {
        c->state = CONN_UNPACKING;
        conn_ready_again(c);
    }
    return result;
}

/* ---- out ---- */

void conn_packed_status(conn *c, uint32_t status) {
    iggy09_answered(&c->large->memory, c->frame.head_bytes, status, NULL, 0);
    conn_reply_status(c, status);
}

/* Of the answer, before its first records: they are in the first window as `dialect_values` has put them. */
static size_t put_first(conn *c, uint8_t *at) {
    uint64_t length = IGGY09_POLLED_HEAD + c->large->left;
    size_t head = c->dialect->put_payload_head(c->frame.head_bytes, at, 0, length);
    iggy09_put_polled(at + head, &c->large->polled);
    return head + IGGY09_POLLED_HEAD;
}

static void reply_part(conn *c, const uint8_t *bytes, size_t length) {
    const conn_large *l = c->large;
    conn_reply_bytes(c, bytes, length);
    c->output.last = l->last && l->part.direct_length == 0 && l->packing.at == l->packing.end;
}

/* There is a block for it. */
static void send_part(conn *c) {
    conn_large *l = c->large;
    size_t head = c->output.begun ? 0 : put_first(c, c->output.made);
    bool good = iggy09_pack(&l->packing, c->output.made + head, l->made_bytes - head, &l->part);
    uint64_t batches = l->part.length + l->part.direct_length;
    bool ends = l->last && l->packing.at == l->packing.end;
    if (!good || batches > l->left || (ends && batches < l->left)) { /* not the records that were measured */
        conn_close(c);
        return;
    }
    l->left -= batches;
    reply_part(c, c->output.made, head + l->part.length);
}

static bool retry_part(waiter *w) {
    conn *c = (conn *)w;
    conn_large *l = c->large;
    c->output.made = output_allocate_beside(c->core, l->made_bytes);
    if (c->output.made != NULL) send_part(c);
    return c->output.made != NULL;
}

static bool send_more(conn *c) {
    conn_large *l = c->large;
    if (l->part.direct_length > 0) {
        size_t length = l->part.direct_length;
        l->part.direct_length = 0;
        reply_part(c, l->part.direct, length);
        return true;
    }
    if (l->packing.at == l->packing.end) return false;
    send_part(c);
    return true;
}

/* Bytes of the block in which a window becomes batches: not more than it needs. */
static uint32_t block_bytes(size_t records, uint64_t batches) {
    uint64_t most = IGGY09_PACKED_MAX(records), wanted = batches < most ? batches : most;
    return (uint32_t)(wanted < IGGY09_PART_BYTES ? wanted : IGGY09_PART_BYTES) + IGGY09_PART_HEAD;
}

void conn_packed_window(conn *c, const answer_window *w) {
    conn_large *l = c->large;
    const uint8_t *records = w->bytes;
    size_t length = w->length;
    l->last = w->last;
    if (!c->output.begun) {
        memcpy(&l->polled, records, sizeof l->polled);
        records += sizeof l->polled;
        length -= sizeof l->polled;
        bool alone = !w->last;
        size_t bytes = alone ? 0 : iggy09_batches_bytes(records, length, false);
        l->left = alone ? iggy09_batches_alone(&l->polled) : bytes;
        l->packing.alone = alone;
        l->packing.partition = l->polled.partition;
        bool good = alone || bytes > 0 || length == 0;
        if (!good || l->left > UINT32_MAX - DIALECT_ANSWER_MAX) {
            conn_close(c);
            return;
        }
    }
    l->packing.at = records;
    l->packing.end = records + length;
    c->output.more = send_more;
    l->made_bytes = block_bytes(length, l->left);
    if (retry_part(&c->wait)) return;
    c->state = CONN_WAITING; /* it holds the window meanwhile: what packs has memory of its own */
    core_wait(c->core, &c->wait, retry_part);
}
