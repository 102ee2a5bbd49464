/* Whose turn it is, and the first half of an end: from conn_close on a connection does nothing more, and is freed when
 * it has its turn and nothing holds it. */
#include "net/conn/wait.h"
#include "net/net.h"
#include "net/conn/places.h"

#include <stdlib.h>
#include <string.h>

static void enter_ready(conn *c, conn_queue *q) {
    if (c->in_ready) return;
    c->in_ready = true;
    c->next_ready = NULL;
    if (q->last != NULL) q->last->next_ready = c;
    else q->first = c;
    q->last = c;
}

/* An address that opens many in a second comes behind the others. */
static conn_queue *queue_of_openings(conn *c) {
    openings *o = &c->net->openings;
    if (c->core->now_us - o->second_us > 1000000) {
        o->second_us = c->core->now_us;
        memset(o->counts, 0, sizeof o->counts);
    }
    uint16_t *count = &o->counts[c->network % OPENINGS_COLUMNS];
    if (*count < UINT16_MAX) ++*count;
    return *count > OPENINGS_PER_ADDRESS ? &o->many : &o->few;
}

/* Whoever has sent ahead, and a crowd that is closed, waits behind those who have asked one thing. */
void conn_ready_again(conn *c) {
    if (c->in_ready) return;
    c->in_bulk = true;
    if (c->stream.opening && c->input.unread && !c->closing) {
        enter_ready(c, queue_of_openings(c));
        return;
    }
    enter_ready(c, c->session.authenticated ? &c->net->ready_pipelined : &c->net->ready_anonymous);
}

void conn_ready(conn *c) {
    if (c->closing || !c->session.authenticated) {
        conn_ready_again(c);
        return;
    }
    if (!c->in_ready) c->in_bulk = false;
    enter_ready(c, &c->net->ready);
}

void conn_left_python(conn *c) {
    if (!c->frame.large_in_python) return;
    c->frame.large_in_python = false;
    net *n = c->net;
    for (uint32_t i = 0; i < n->large_in_python; i++) {
        if (n->large_users[i] != c->frame.large_user) continue;
        n->large_users[i] = n->large_users[--n->large_in_python];
        return;
    }
}

/* Not before the kernel has let go of it. */
void conn_release_sources(conn *c) {
    if (c->work != NULL) pending_cancel(c->work);
    for (uint32_t i = 0; c->window != NULL && i < c->window->count; i++) {
        pending *work = window_place(c->window, i)->work;
        if (work != NULL) pending_cancel(work);
    }
}

/* Python keeps what its session remembers; without memory for that nothing is. */
static void tell_end(const conn *c) {
    uint8_t bytes[IGGY09_MEMORY_MAX];
    size_t length = c->large != NULL ? iggy09_pack_memory(&c->large->memory, bytes) : 0;
    event *v = events_promised(&c->core->events, EVENT_CLOSED, conn_id(c));
    if (length > 0) v->data = malloc(length);
    if (v->data == NULL) return;
    memcpy(v->data, bytes, length);
    v->data_length = length;
}

void conn_close(conn *c) {
    if (c->closing) return;
    c->closing = true;
    c->core->counters.closed++;
    if (!c->moved) {             /* a moved socket lives on in another process */
        stream_stop(&c->stream); /* makes armed operations complete */
        tell_end(c);
    }
    if (c->wait.queued) waiters_remove(&c->core->waiters, &c->wait);
    if (c->wait_for != NULL) waiting_poll_leave(c->core, &c->wait_for->waiting_poll);
    share_stop_waiting(c);
    conn_left_python(c);
    if (!c->output.armed) conn_release_sources(c);
    conn_ready(c);
}
