/* See moving.h. */
#include "net/moving.h"

#include "net/net.h"

#include <stdlib.h>
#include <string.h>

/* In front of the session's and the unread bytes. */
typedef struct moving_header {
    uint32_t user_id, session_length, unread_length;
    uint8_t authenticated, dialect, reserved[2];
    uint64_t network;
    iggy09_memory memory;
    char address[ADDRESS_BYTES];
} moving_header;
_Static_assert(sizeof(moving_header) <= MOVING_BYTES_MAX - MOVING_SESSION_MAX - RECEIVE_BUFFER_SIZE, "it fits");

size_t moving_pack(const moving *m, uint8_t *out) {
    if (m->session_length > MOVING_SESSION_MAX || m->unread_length > RECEIVE_BUFFER_SIZE) return 0;
    moving_header header = {.user_id = m->user_id,
                            .session_length = m->session_length,
                            .unread_length = m->unread_length,
                            .authenticated = m->authenticated,
                            .dialect = m->dialect->number,
                            .network = m->network,
                            .memory = m->memory};
    memcpy(header.address, m->address, sizeof header.address);
    memcpy(out, &header, sizeof header);
    uint8_t *at = out + sizeof header;
    if (m->session_length > 0) memcpy(at, m->session, m->session_length);
    if (m->unread_length > 0) memcpy(at + m->session_length, m->unread, m->unread_length);
    return sizeof header + m->session_length + m->unread_length;
}

bool moving_unpack(const uint8_t *bytes, size_t length, moving *out) {
    moving_header header;
    if (length < sizeof header) return false;
    memcpy(&header, bytes, sizeof header);
    if (header.session_length > MOVING_SESSION_MAX || header.unread_length > RECEIVE_BUFFER_SIZE) return false;
    if (length != sizeof header + header.session_length + header.unread_length) return false;
    if (header.memory.answer_length > IGGY09_KEPT_MAX) return false;
    if (header.authenticated > 1 || memchr(header.address, 0, sizeof header.address) == NULL) return false;
    *out = (moving){.dialect = dialect_of(header.dialect),
                    .user_id = header.user_id,
                    .authenticated = header.authenticated != 0,
                    .network = header.network,
                    .memory = header.memory,
                    .session = bytes + sizeof header,
                    .session_length = header.session_length,
                    .unread = bytes + sizeof header + header.session_length,
                    .unread_length = header.unread_length};
    memcpy(out->address, header.address, sizeof out->address);
    return out->dialect != NULL;
}

moving conn_moving(const conn *c, const uint8_t *session, size_t session_length) {
    moving m = {.dialect = c->dialect,
                .user_id = c->session.user_id,
                .authenticated = c->session.authenticated,
                .network = c->network,
                .session = session,
                .session_length = session_length <= MOVING_SESSION_MAX ? (uint32_t)session_length : UINT32_MAX,
                .unread = c->input.bytes,
                .unread_length = c->input.length};
    memcpy(m.address, c->address, sizeof m.address);
    if (c->large != NULL) m.memory = c->large->memory;
    return m;
}

void conn_moved(conn *c) {
    c->core->counters.moved_out++;
    c->moved = true;
    conn_uncount(c);
    conn_close(c);
}

/* Shorter than any header. */
size_t moving_pack_new(listener_kind kind, uint8_t *out) {
    out[0] = 'n';
    out[1] = (uint8_t)kind;
    return 2;
}

bool moving_is_new(const uint8_t *bytes, size_t length, listener_kind *kind) {
    if (length != 2 || bytes[0] != 'n' || bytes[1] >= LISTENER_KINDS) return false;
    *kind = (listener_kind)bytes[1];
    return true;
}

conn *conn_arrived(net *n, int fd, const moving *m) {
    conn *c = conn_adopt(n, stream_socket(fd), m->dialect, m->authenticated, m->network);
    if (c == NULL) return NULL;
    memcpy(c->address, m->address, sizeof c->address);
    c->session.user_id = m->user_id;
    if (c->large != NULL) c->large->memory = m->memory;
    if (m->unread_length > 0) {
        c->input.block = pool_alloc(n->core->pool, m->unread_length);
        if (c->input.block == NULL) {
            conn_close(c);
            return NULL;
        }
        memcpy(c->input.block, m->unread, m->unread_length);
        c->input.bytes = c->input.block;
        c->input.length = m->unread_length;
    }
    uint8_t *session = malloc(m->session_length + 1u);
    event *v = session != NULL ? events_add(&n->core->events, EVENT_MOVED_IN, conn_id(c)) : NULL;
    if (v == NULL) {
        free(session);
        conn_close(c);
        return NULL;
    }
    n->core->counters.moved_in++;
    v->user_id = m->user_id;
    v->authenticated = m->authenticated;
    memcpy(v->address, c->address, sizeof v->address);
    memcpy(session, m->session, m->session_length);
    v->data = session;
    v->data_length = m->session_length;
    conn_ready(c);
    return c;
}
