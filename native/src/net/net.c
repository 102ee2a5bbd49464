/* All connections of a worker: their tables, and the parts of a turn that are theirs. */
#include "net/net.h"

#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>

#define BULK_REPLIES_PER_PASS 16u /* large parts of answers; the rest after what came meanwhile */
#define BULK_FRAMES_PER_PASS 16u  /* of those who have sent ahead, and of those without a login */

static void accept_from(net *n, listener_kind kind, int fd, const struct sockaddr_storage *from) {
    stream s;
    if (!stream_for(kind, fd, &n->tls, &n->websockets, &s)) return;
    uint32_t transport = kind == LISTENER_WEBSOCKET ? TRANSPORT_WEBSOCKET : TRANSPORT_TCP;
    conn_accept(n, s, n->options.dialect, transport, from);
}

void net_accept(net *n, listener_kind kind, int fd) {
    if (!introductions_take(n, kind, fd)) accept_from(n, kind, fd, NULL);
}

static int open_introductions(net *n) {
    n->introductions.introduced = accept_from;
    for (listener_kind kind = 0; kind < LISTENER_KINDS; kind++) {
        const char *lines = n->options.proxies[kind];
        if (lines != NULL && !trusted_parse(&n->introductions.proxies[kind], lines)) return -EINVAL;
        n->options.proxies[kind] = NULL; /* the caller's memory */
    }
    return 0;
}

int net_open(net *n, core *k, const net_options *options) {
    uint32_t places = options->limits.connections + SPARE_PLACES; /* all of them may come to one shard */
    n->core = k;
    n->options = *options;
    n->go_on = conn_arm_receive;
    n->evict = conn_close;
    n->conns.capacity = places;
    n->conns.places = calloc(places, sizeof *n->conns.places);
    n->conns.generations = calloc(places, sizeof *n->conns.generations);
    n->conns.free_indexes = calloc(places, sizeof *n->conns.free_indexes);
    if (n->conns.places == NULL || n->conns.generations == NULL || n->conns.free_indexes == NULL) return -ENOMEM;
    for (uint32_t i = 0; i < places; i++) n->conns.free_indexes[n->conns.free_count++] = places - 1 - i;
    uint64_t quarter = pool_capacity(k->pool) / 4;
    n->send_bytes_max = quarter < options->dialect->send_bytes_max ? (uint32_t)quarter
                                                                   : options->dialect->send_bytes_max;
    shares_open(n);
    int result = open_introductions(n);
    if (result == 0) result = samples_open(&n->samples, options->sample_every);
    if (result == 0) result = websockets_open(&n->websockets, &options->websocket);
    return result != 0 ? result : tls_open(&n->tls, options->tls);
}

void net_close(net *n) {
    for (uint32_t i = 0; i < n->conns.capacity; i++) {
        conn *c = n->conns.places[i];
        if (c == NULL) continue;
        stream_close(&c->stream, NULL);
        free(c->output.heap);
        free(c->window);
        if (c->large != NULL) free(c->large->unpacking);
        free(c->large);
        seats_free(&c->session.seats);
        free(c);
    }
    introductions_close(n);
    shares_close(n);
}

void net_free(net *n) {
    websockets_close(&n->websockets);
    tls_close(&n->tls);
    samples_free(&n->samples);
    free(n->conns.places);
    free(n->conns.generations);
    free(n->conns.free_indexes);
}

/* As many as there are buffers, first come first served: each of them had something to receive. */
static void run_starved(net *n) {
    for (buffer_set set = 0; set < BUFFER_SETS; set++) {
        conn_queue *q = &n->starved[set];
        for (uint32_t left = n->core->io.free_buffers[set]; q->first != NULL && left > 0; left--) {
            conn *c = q->first;
            q->first = c->input.next_starved;
            if (q->first == NULL) q->last = NULL;
            c->input.starved = false;
            if (c->closing) conn_ready(c);
            else conn_arm_receive(c);
        }
    }
}

/* Those that are in the queue now, in order; what becomes ready meanwhile comes after them. Counts frames: each has
 * one at least, and maybe a window of them; a slice of a large one takes as long as many. */
static uint32_t run_queue(net *n, conn_queue *q, uint32_t count_max, int64_t until_us) {
    const conn *last = q->last;
    uint32_t count = 0, look_at = FRAMES_BETWEEN_LOOKS - 1;
    while (q->first != NULL && count < count_max) {
        if (count >= look_at) {
            look_at = count + FRAMES_BETWEEN_LOOKS;
            if (clock_monotonic_us() > until_us) break;
        }
        uint64_t frames = n->core->counters.frames;
        conn *c = q->first;
        bool is_last = c == last;
        q->first = c->next_ready;
        if (q->first == NULL) q->last = NULL;
        c->in_ready = false;
        bool unpacks = !c->closing && c->state == CONN_UNPACKING;
        if (c->input.unread) look_at = count; /* what is translated takes as long as many frames, and may bring none */
        if (c->closing) conn_try_free(c);
        else conn_advance(c);
        frames = n->core->counters.frames - frames;
        count += unpacks ? FRAMES_BETWEEN_LOOKS : frames > 1 ? (uint32_t)frames : 1;
        if (is_last) break;
    }
    return count;
}

static void flush_replies(net *n, conn_queue *q, uint32_t count_max, int64_t until_us) {
    const conn *last = q->last;
    for (uint32_t count = 0; q->first != NULL && count < count_max; count++) {
        conn *c = q->first;
        bool is_last = c == last;
        q->first = c->output.next_reply;
        if (q->first == NULL) q->last = NULL;
        conn_flush_reply(c, q->first == NULL && n->ready.first == NULL);
        if (is_last || (q == &n->bulk_replies && clock_monotonic_us() > until_us)) return;
    }
}

void net_take_input(net *n) {
    run_starved(n);
    shares_run(n);
}

void net_run_prompt_frames(net *n, int64_t until_us) {
    if (n->ready.first != NULL) run_queue(n, &n->ready, UINT32_MAX, until_us);
}

static uint32_t run_openings(net *n, int64_t until_us) {
    openings *o = &n->openings;
    int64_t began_us = clock_monotonic_us();
    if (!openings_are_due(o, began_us)) return 0;
    bool few = o->few.first != NULL;
    run_queue(n, few ? &o->few : &o->many, 1, until_us);
    int64_t now_us = clock_monotonic_us();
    o->next_us = now_us + (now_us - began_us) * (few ? 1 : 3);
    return FRAMES_BETWEEN_LOOKS; /* a look at the clock is due */
}

uint32_t net_run_bulk_frames(net *n, int64_t until_us) {
    uint32_t count = run_openings(n, until_us);
    count += run_queue(n, &n->ready_pipelined, BULK_FRAMES_PER_PASS, until_us);
    return count + run_queue(n, &n->ready_anonymous, BULK_FRAMES_PER_PASS, until_us);
}

void net_flush_prompt(net *n, int64_t until_us) {
    if (n->replies.first != NULL) flush_replies(n, &n->replies, UINT32_MAX, until_us);
}

void net_flush_bulk(net *n, int64_t until_us) { flush_replies(n, &n->bulk_replies, BULK_REPLIES_PER_PASS, until_us); }

void net_begin_checks(net *n) {
    introductions_check(n);
    if (!net_has_checks(n)) n->check_next = 0;
}

/* As many as the time allows. */
void net_check_times(net *n, int64_t until_us) {
    for (uint32_t count = 1; net_has_checks(n); count++) {
        conn *c = n->conns.places[n->check_next++];
        if (c != NULL) conn_check_times(c);
        if (count % FRAMES_BETWEEN_LOOKS == 0 && clock_monotonic_us() > until_us) return;
    }
}

void net_forgive(net *n, int64_t still_us) {
    introductions_forgive(n, still_us);
    for (uint32_t set = 0; set < BUFFER_SETS; set++) n->pots[set].privileged_since_us += still_us;
    for (uint32_t i = 0; i < n->conns.capacity; i++)
        if (n->conns.places[i] != NULL) conn_forgive(n->conns.places[i], still_us);
}

void net_close_all(net *n, uint32_t status) {
    n->stopping_status = status;
    introductions_end(n);
    for (uint32_t i = 0; i < n->conns.capacity; i++) {
        conn *c = n->conns.places[i];
        if (c == NULL || c->closing) continue;
        if (c->state == CONN_RECEIVING || c->state == CONN_AWAITING) conn_say_goodbye(c, status);
        else if (c->state == CONN_LINGERING) conn_close(c);
        else if (c->state == CONN_HOLDING) conn_send_body(c);
    }
}
