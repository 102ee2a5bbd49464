/* Connections: ids, life and death. Input is in conn_input.c, output in conn_output.c. One request at a time per
 * connection; later frames wait in the socket. */
#include "engine/engine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

uint64_t conn_id(const conn *c) { return (uint64_t)c->generation << 32 | c->index; }

conn *conn_find(engine *e, uint64_t id) {
    uint32_t index = (uint32_t)id;
    conn *c = index < e->conns_capacity ? e->conns[index] : NULL;
    return c != NULL && c->generation == id >> 32 && !c->closing ? c : NULL;
}

static void read_address(conn *c) {
    struct sockaddr_storage peer = {0};
    socklen_t length = sizeof peer;
    char host[INET6_ADDRSTRLEN] = "";
    bool known = getpeername(c->fd, (struct sockaddr *)&peer, &length) == 0;
    c->network = admission_network(&c->e->links, &peer);
    if (!known) return;
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

bool conn_has_left(const conn *c) {
    uint8_t byte;
    if (c->in_length > 0 || c->receive_armed) return false;
    ssize_t got = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return c->end_of_input || got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

/* One more connection in the table, not counted yet. NULL: no place or no memory (fd closed). */
static conn *enter(engine *e, int fd) {
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
    c->receive_operation = operation_of(OPERATION_RECEIVE, c);
    c->send_operation = operation_of(OPERATION_SEND, c);
    c->in_buffer = -1;
    c->progress_us = c->heartbeat_us = c->anonymous_us = e->now_us;
    read_address(c);
    return c;
}

static void leave(conn *c) {
    engine *e = c->e;
    io_forget(&e->io, c->fd); /* a moved socket lives on: its events would come here for ever */
    close(c->fd);
    e->conns[c->index] = NULL;
    e->free_indexes[e->free_count++] = c->index;
    e->conns_count--;
    free(c);
}

/* The refused client finds this in its socket, whatever it asks. */
static void refuse(conn *c, admission why) {
    engine *e = c->e;
    uint32_t frame[2] = {STATUS_DISCONNECTED, 0};
    if (send(c->fd, frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof frame)
        e->counters.bytes_out += sizeof frame;
    if (why == REFUSED_ADDRESS) e->counters.refused_by_address++;
    else if (why == REFUSED_BEFORE_LOGIN) e->counters.refused_before_login++;
    else e->counters.refused_connections++;
    leave(c);
}

conn *conn_open(engine *e, int fd) {
    conn *c = enter(e, fd);
    if (c == NULL) return NULL;
    admission result = admission_enter(&e->links, e->peer_is_down, &e->options.limits, c->network);
    if (result != ADMITTED) {
        refuse(c, result);
        return NULL;
    }
    e->counters.accepted++;
    return c;
}

conn *conn_adopt(engine *e, int fd, bool authenticated) {
    conn *c = enter(e, fd);
    if (c == NULL) return NULL;
    c->authenticated = authenticated;
    admission_add(&e->links, c->network, !authenticated);
    return c;
}

void conn_uncount(conn *c) {
    if (c->uncounted) return;
    c->uncounted = true;
    admission_leave(&c->e->links, c->network, !c->authenticated);
}

void conn_set_session(conn *c, uint32_t user_id, bool authenticated) {
    if (authenticated != c->authenticated && !c->uncounted) admission_anonymous(&c->e->links, authenticated ? -1 : 1);
    if (!authenticated) c->anonymous_us = c->e->now_us;
    c->user_id = user_id;
    c->authenticated = authenticated;
}

void conn_try_free(conn *c) {
    if (!c->closing || c->receive_armed || c->send_armed || c->job != NULL || c->forwarded || c->state == CONN_STAGED)
        return;
    if (c->in_replies || c->in_ready || c->starved || c->wait.queued) return; /* their lists let go of it first */
    conn_free_input(c);
    conn_free_output(c);
    seats_free(&c->seats);
    conn_uncount(c);
    leave(c);
}

/* Lets go of what the output came from; not before the kernel has let go of it. */
void conn_release_sources(conn *c) {
    if (c->job != NULL) reads_abandon(c->job);
    if (c->lease_open) forward_output_done(c);
}

void conn_close(conn *c) {
    if (c->closing) return;
    c->closing = true;
    c->e->counters.closed++;
    if (!c->moved) {                /* a moved socket lives on in another process */
        shutdown(c->fd, SHUT_RDWR); /* makes armed operations complete */
        engine_event(c->e, EVENT_CLOSED, conn_id(c));
    }
    if (c->wait.queued) engine_unwait(c->e, &c->wait);
    share_stop_waiting(c);
    execute_left_python(c);
    if (c->held != NULL) sync_leave(c);
    if (!c->send_armed) conn_release_sources(c);
    conn_ready(c); /* freed at the end of the turn, when no caller holds it any more */
}

static void enter_ready(conn *c, conn_queue *q) {
    if (c->in_ready) return;
    c->in_ready = true;
    c->next_ready = NULL;
    if (q->last != NULL) q->last->next_ready = c;
    else q->first = c;
    q->last = c;
}

/* Whoever has sent ahead, and a crowd that is closed, waits behind those who have asked one thing. */
void conn_ready_again(conn *c) { enter_ready(c, c->authenticated ? &c->e->ready_pipelined : &c->e->ready_anonymous); }

void conn_ready(conn *c) {
    if (c->closing || !c->authenticated) conn_ready_again(c);
    else enter_ready(c, &c->e->ready);
}
