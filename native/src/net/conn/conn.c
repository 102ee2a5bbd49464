/* Connections: ids, life and death. */
#include "net/net.h"
#include "net/conn/places.h"

#include "base/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

conn *conn_find_closing(const net *n, uint64_t id) {
    uint32_t index = (uint32_t)id;
    conn *c = index < n->conns.capacity ? n->conns.places[index] : NULL;
    return c != NULL && c->generation == id >> 32 ? c : NULL;
}

conn *conn_find(const net *n, uint64_t id) {
    conn *c = conn_find_closing(n, id);
    return c != NULL && !c->closing ? c : NULL;
}

static void read_address(conn *c, const struct sockaddr_storage *from) {
    struct sockaddr_storage peer = {0};
    char host[INET6_ADDRSTRLEN] = "";
    bool known = from != NULL || stream_peer(&c->stream, &peer);
    if (from != NULL) peer = *from;
    c->network = admission_network(&c->core->links, &peer);
    if (!known) return;
    if (peer.ss_family == AF_UNIX) {
        const local_peer *local = (const void *)&peer;
        snprintf(c->address, sizeof c->address, "unix:%u:%llu", local->uid, (unsigned long long)local->socket);
        c->local = true;
    } else if (peer.ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)&peer;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(c->address, sizeof c->address, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        const struct sockaddr_in *v4 = (const void *)&peer;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(c->address, sizeof c->address, "%s:%u", host, ntohs(v4->sin_port));
    }
}

bool conn_has_left(conn *c) {
    if (c->input.length > 0 || c->input.armed) return false;
    return c->input.ended || stream_has_ended(&c->stream);
}

/* False: no memory. */
static bool take_up(conn *c, const dialect *d) {
    bool large = d->head_bytes > DIALECT_HEAD_SMALL || d->answer_bytes > DIALECT_ANSWER_SMALL;
    if (large && c->large == NULL) {
        c->large = calloc(1, sizeof *c->large);
        if (c->large == NULL) return false;
        memcpy(c->large->head, c->frame.small_head, c->frame.head_have);
    }
    c->frame.head_bytes = large ? c->large->head : c->frame.small_head;
    c->output.small = large ? c->large->answer : c->output.small_room;
    c->dialect = d;
    return true;
}

bool conn_speak(conn *c, const dialect *d) {
    if (take_up(c, d)) return true;
    conn_close(c);
    return false;
}

static void leave(conn *c) {
    net *n = c->net;
    stream_close(&c->stream, &n->core->io);
    n->conns.places[c->index] = NULL;
    n->conns.free_indexes[n->conns.free_count++] = c->index;
    n->conns.count--;
    if (!c->closing || c->moved) events_unpromise(&n->core->events);
    free(c->large);
    free(c);
}

/* One more connection in the table, not counted yet. NULL: no place or no memory (closed). */
static conn *enter(net *n, stream s, const dialect *d, const struct sockaddr_storage *from) {
    conn *c = n->conns.free_count > 0 ? calloc(1, sizeof *c) : NULL;
    if (c == NULL || !events_promise(&n->core->events)) { /* of its end */
        free(c);
        n->core->counters.refused_connections++;
        stream_close(&s, &n->core->io);
        return NULL;
    }
    c->net = n;
    c->core = n->core;
    c->stream = s;
    c->index = n->conns.free_indexes[--n->conns.free_count];
    c->generation = ++n->conns.generations[c->index];
    c->session.events = &n->core->events;
    c->session.connection = (uint64_t)c->generation << 32 | c->index;
    n->conns.places[c->index] = c;
    n->conns.count++;
    c->input.operation = operation_of(OPERATION_RECEIVE, c);
    c->output.operation = operation_of(OPERATION_SEND, c);
    c->input.buffer = c->input.taken = -1;
    c->clocks.progress_us = c->clocks.heartbeat_us = c->clocks.anonymous_us = n->core->now_us;
    read_address(c, from);
    if (take_up(c, d)) return c;
    leave(c);
    return NULL;
}

/* The refused client finds this in its socket, whatever it asks. */
static void refuse(conn *c, admission why) {
    core_counters *counters = &c->core->counters;
    size_t length = c->dialect->put_status(NULL, c->output.small, STATUS_DISCONNECTED);
    if (stream_send_now(&c->stream, c->output.small, length) == (ssize_t)length) counters->bytes_out += length;
    if (why == REFUSED_ADDRESS) counters->refused_by_address++;
    else if (why == REFUSED_BEFORE_LOGIN) counters->refused_before_login++;
    else counters->refused_connections++;
    leave(c);
}

conn *conn_open(net *n, stream s, const dialect *d, const struct sockaddr_storage *from) {
    conn *c = enter(n, s, d, from);
    if (c == NULL) return NULL;
    admission result = admission_enter(&n->core->links, n->core->peer_is_down, &n->options.limits, c->network);
    if (result != ADMITTED) {
        refuse(c, result);
        return NULL;
    }
    n->core->counters.accepted++;
    return c;
}

void conn_accept(net *n, stream s, const dialect *d, uint32_t transport, const struct sockaddr_storage *from) {
    conn *c = conn_open(n, s, d, from);
    event *v = c != NULL ? events_add(&n->core->events, EVENT_ACCEPTED, conn_id(c)) : NULL;
    if (v == NULL) {
        if (c != NULL) conn_close(c);
        return;
    }
    memcpy(v->address, c->address, sizeof v->address);
    v->code = transport;
    if (c->local) c->state = CONN_ENTERING;
    else conn_ready(c);
}

conn *conn_adopt(net *n, stream s, const dialect *d, bool authenticated, uint64_t network) {
    conn *c = enter(n, s, d, NULL);
    if (c == NULL) return NULL;
    c->network = network; /* the stream knows its proxy only */
    c->session.authenticated = authenticated;
    admission_add(&n->core->links, c->network, !authenticated);
    return c;
}

void conn_uncount(conn *c) {
    if (c->uncounted) return;
    c->uncounted = true;
    admission_leave(&c->core->links, c->network, !c->session.authenticated);
}

/* What a client that does not read makes the kernel keep: several times as much memory as bytes where its window is
 * small, as each segment is half of that. */
static void bound_unsent(const conn *c, int bytes) {
    if (!c->local) setsockopt(c->stream.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

void conn_set_session(conn *c, uint32_t user_id, bool authenticated) {
    if (authenticated != c->session.authenticated) {
        if (!c->uncounted) admission_anonymous(&c->core->links, authenticated ? -1 : 1);
        bound_unsent(c, authenticated ? CONN_UNSENT_BYTES : CONN_UNSENT_ANONYMOUS_BYTES);
    }
    if (!authenticated) c->clocks.anonymous_us = c->core->now_us;
    c->session.user_id = user_id;
    c->session.authenticated = authenticated;
    conn_wait_wake(c);
}

void conn_try_free(conn *c) {
    if (!c->closing || c->input.armed || c->output.armed || c->work != NULL || c->unanswered) return;
    if (c->window != NULL && c->window->working > 0) return;
    /* their lists let go of it first */
    if (c->output.queued || c->in_ready || c->input.starved || c->wait.queued) return;
    window_close(c);
    conn_packed_forget(c);
    conn_wait_free(c);
    conn_free_input(c);
    conn_free_output(c);
    sample_drop(&c->sample);
    seats_free(&c->session.seats);
    conn_uncount(c);
    leave(c);
}
