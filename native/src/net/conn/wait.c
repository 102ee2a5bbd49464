/* The waiting poll of a connection (docs/adr/0057). A poll that found nothing is executed again from its frame when
 * something may have changed: rights, the group's assignment and the partition are looked at anew each time, as if the
 * client polled again. Meanwhile the connection holds a copy of the frame, a `waiting_poll` (core/waiting_polls.h) and
 * no shared buffer, and hears whether its client leaves. */
#include "net/conn/wait.h"

#include "base/status.h"
#include "net/net.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

static void ask_again(conn_wait *w) {
    w->woken = true;
    if (w->of->state == CONN_AWAITING) conn_ready_again(w->of);
}

static void on_woken(waiting_poll *of) {
    conn_wait *w = (conn_wait *)of;
    w->armed = false;
    ask_again(w);
}

conn_wait *conn_wait_make(conn *c, const consumer_request *asked) {
    uint32_t length = asked->kept_length;
    conn_wait *w = malloc(sizeof *w + length);
    if (w == NULL) return NULL;
    *w = (conn_wait){
        .waiting_poll = {.woken = on_woken}, .of = c, .until_us = c->core->now_us + (int64_t)asked->wait_ms * 1000};
    memcpy(w->payload, c->frame.payload, length);
    c->frame.head.length = length;
    return w;
}

bool conn_wait_arm(conn *c, uint32_t *status) {
    conn_wait *w = c->wait_for;
    request q;
    core *k = c->core;
    if (c->dialect->parse(&c->frame.head, c->frame.payload, &q) != 0 || q.kind != REQUEST_POLL) return false;
    const consumer_request *asked = &q.consumer;
    const route *r = routes_find(&k->routes, c->session.user_id, asked->address,
                                 asked->stream_length + asked->topic_length);
    if (r == NULL) return false;
    uint32_t one = asked->partition_id, count = 1;
    const seat *s = NULL;
    if (asked->kind == CONSUMER_GROUP && !asked->partition_given) {
        s = seats_find(&c->session.seats, asked->member_key, asked->member_key_length, r->topic->version);
        if (s == NULL) return false;
        count = s->count;
    }
    if (count > WAITING_POLL_PARTITIONS_MAX) {
        *status = STATUS_TOO_MANY_PARTITIONS;
        return false;
    }
    if (!waiting_poll_enter(k, &w->waiting_poll, c->session.user_id, w->until_us)) {
        *status = STATUS_FEATURE_UNAVAILABLE;
        return false;
    }
    bool looks = count > 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t partition = s != NULL ? s->partitions[i].partition : one;
        const route_partition *p = partition < r->topic->partitions_count ? &r->topic->partitions[partition] : NULL;
        if (p == NULL || !waiting_poll_add(k, &w->waiting_poll, p)) {
            waiting_poll_leave(k, &w->waiting_poll);
            return false;
        }
        looks |= p->owner != k->options.shard;
    }
    w->armed = true;
    w->looks = looks ? count : 0;
    return true;
}

void conn_wait_wake(conn *c) {
    conn_wait *w = c->wait_for;
    if (w == NULL) return;
    waiting_poll_leave(c->core, &w->waiting_poll);
    on_woken(&w->waiting_poll);
}

/* No receive is under way while later requests wait in the input, so the end of the client is not heard. Its wait is
 * over then, and they have their turn. */
void conn_wait_look(conn *c) {
    struct pollfd ends = {.fd = c->stream.fd, .events = POLLRDHUP};
    if (c->state != CONN_AWAITING || c->closing || c->input.armed || poll(&ends, 1, 0) <= 0) return;
    c->wait_for->until_us = c->core->now_us;
    conn_wait_wake(c);
}

void conn_wait_free(conn *c) {
    if (c->wait_for == NULL) return;
    waiting_poll_leave(c->core, &c->wait_for->waiting_poll);
    free(c->wait_for);
    c->wait_for = NULL;
}
