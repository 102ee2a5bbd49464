/* The loop of one worker: completions in, decisions, one commit (commit.c) and one enter a turn. */
#include "log/descriptors.h"
#include "engine/engine.h"

#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine_api.h"

#define HOUSEKEEPING_US 250000
#define ACCEPT_BACKOFF_US 20000
#define SHORT_SYNC_US 1000 /* until files that are not synced are, when they keep the log above its share */
#define WAITERS_POLL_US 5000
#define IDLE_US 60000000
#define WORK_SLICE_US 5000 /* then completions, timers and Python get their turn */
#define BULK_SLICE_US 100
#define FRAMES_BETWEEN_LOOKS 16u  /* at the clock */
#define BULK_REPLIES_PER_PASS 16u /* large parts of answers; the rest after what came meanwhile */
#define BULK_FRAMES_PER_PASS 16u  /* of those who have sent ahead, and of those without a login */
#define TRIM_KEEP_BYTES (24u << 20)
#define TRIM_SLICE_BYTES (1u << 20)
#define TRIM_INTERVAL_US 1000
#define STANDSTILL_US 1000000 /* a pass of the loop that took longer: nobody was heard meanwhile */

int64_t clock_monotonic_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- events for Python ---- */

event *engine_event(engine *e, event_kind kind, uint64_t connection) {
    if (e->events_count == e->events_capacity) {
        uint32_t capacity = e->events_capacity * 2;
        event *larger = realloc(e->events, capacity * sizeof *larger);
        if (larger == NULL) abort();
        e->events = larger;
        e->events_capacity = capacity;
    }
    event *v = &e->events[e->events_count++];
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->connection = connection;
    return v;
}

bool engine_events_full(const engine *e, const conn *c) {
    return e->events_count >= EVENTS_MAX || (!c->authenticated && e->events_anonymous >= EVENTS_ANONYMOUS_MAX);
}

/* ---- waiting for memory or descriptors ---- */

void engine_wait(engine *e, waiter *w, bool (*retry)(waiter *)) {
    assert(!w->queued);
    *w = (waiter){.retry = retry, .queued = true, .previous = e->waiters_last};
    if (e->waiters == NULL) e->waiters = w;
    else e->waiters_last->next = w;
    e->waiters_last = w;
    e->counters.memory_waits++;
}

void engine_unwait(engine *e, waiter *w) {
    if (!w->queued) return;
    if (w->previous == NULL) e->waiters = w->next;
    else w->previous->next = w->next;
    if (w->next == NULL) e->waiters_last = w->previous;
    else w->next->previous = w->previous;
    w->queued = false;
}

static void run_waiters(engine *e, int64_t until_us) {
    waiter *last = e->waiters_last;
    uint32_t count = 0;
    for (bool more = e->waiters != NULL; more && e->waiters != NULL;) {
        waiter *w = e->waiters;
        more = w != last;
        bool (*retry)(waiter *) = w->retry;
        engine_unwait(e, w);
        if (!retry(w) && !w->queued) {
            engine_wait(e, w, retry);
            e->counters.memory_waits--;
        }
        if (more && ++count % FRAMES_BETWEEN_LOOKS == 0 && clock_monotonic_us() > until_us) return;
    }
}

void *engine_allocate(engine *e, size_t bytes, bool partial_frame) {
    return partial_frame ? pool_alloc_reserving(e->pool, bytes, pool_capacity(e->pool) / 8)
                         : pool_alloc(e->pool, bytes);
}

/* ---- the turn ---- */

static void arm_poll(engine *e, operation *op, int fd, bool *armed) {
    if (*armed || fd < 0) return;
    io_poll(&e->io, op, fd);
    *armed = true;
}

static void arm_standing(engine *e) {
    arm_poll(e, &e->epoll_operation, e->epoll_fd, &e->epoll_armed);
    arm_poll(e, &e->doorbell_operation, e->links.doorbells[e->links.shard], &e->doorbell_armed);
    /* without a free place connections that move wait in that socket */
    bool room = e->serving && e->free_count > 0;
    arm_poll(e, &e->handover_operation, room ? e->options.handover_receive_fd : -1, &e->handover_armed);
    if (e->listen_fd >= 0 && !e->accept_armed && e->now_us >= e->accept_again_us) {
        io_accept(&e->io, &e->accept_operation, e->listen_fd);
        e->accept_armed = true;
    }
}

static void on_accept(engine *e, int result, bool more) {
    if (!more) e->accept_armed = false;
    if (result < 0) {
        bool none = result == -EMFILE || result == -ENFILE;
        bool again = result == -EINTR || result == -ECONNABORTED || result == -ECANCELED;
        if (!again && !(none && descriptors_release_some())) e->accept_again_us = e->now_us + ACCEPT_BACKOFF_US;
        return;
    }
    conn *c = conn_open(e, result);
    if (c == NULL) return;
    event *v = engine_event(e, EVENT_ACCEPTED, conn_id(c));
    memcpy(v->address, c->address, sizeof v->address);
    conn_ready(c);
}

static void on_doorbell(engine *e) {
    e->doorbell_armed = false;
    while (read(e->links.doorbells[e->links.shard], &e->doorbell_value, sizeof e->doorbell_value) < 0 && errno == EINTR)
        continue;
}

static void complete(void *context, const completion *done) {
    engine *e = context;
    operation *op = done->op;
    int result = done->result;
    switch (op->kind) {
    case OPERATION_RECEIVE: conn_on_receive(op->owner, result, done->buffer); break;
    case OPERATION_SEND: conn_on_send(op->owner, result); break;
    case OPERATION_READ: reads_on_read(op->owner, result); break;
    case OPERATION_SYNC: sync_on_complete(op, result); break;
    case OPERATION_ACCEPT: on_accept(e, result, done->more); break;
    case OPERATION_DOORBELL: on_doorbell(e); break;
    case OPERATION_EPOLL:
        e->epoll_armed = false;
        e->epoll_ready = true;
        break;
    case OPERATION_HANDOVER:
        e->handover_armed = false;
        handover_receive(e);
        break;
    }
}

/* Those that are in the queue now, in order; what becomes ready meanwhile comes after them. */
static void run_queue(conn_queue *q, uint32_t count_max, int64_t until_us) {
    const conn *last = q->last;
    for (uint32_t count = 0; q->first != NULL && count < count_max; count++) {
        if (count % FRAMES_BETWEEN_LOOKS == FRAMES_BETWEEN_LOOKS - 1 && clock_monotonic_us() > until_us) return;
        conn *c = q->first;
        bool is_last = c == last;
        q->first = c->next_ready;
        if (q->first == NULL) q->last = NULL;
        c->in_ready = false;
        if (c->closing) conn_try_free(c);
        else conn_advance(c);
        if (is_last) return;
    }
}

/* As many as there are buffers, first come first served: each of them had something to receive. */
static void run_starved(engine *e) {
    for (buffer_set set = 0; set < BUFFER_SETS; set++) {
        conn_queue *q = &e->starved[set];
        for (uint32_t left = e->io.free_buffers[set]; q->first != NULL && left > 0; left--) {
            conn *c = q->first;
            q->first = c->next_starved;
            if (q->first == NULL) q->last = NULL;
            c->starved = false;
            if (c->closing) conn_ready(c);
            else conn_arm_receive(c);
        }
    }
}

static void flush_replies(engine *e, conn_queue *q, uint32_t count_max, int64_t until_us) {
    const conn *last = q->last;
    for (uint32_t count = 0; q->first != NULL && count < count_max; count++) {
        conn *c = q->first;
        bool is_last = c == last;
        q->first = c->next_reply;
        if (q->first == NULL) q->last = NULL;
        conn_flush_reply(c, q->first == NULL && e->ready.first == NULL);
        if (is_last || (q == &e->bulk_replies && clock_monotonic_us() > until_us)) return;
    }
}

static bool anonymous_may_work(const engine *e) {
    return e->ready_anonymous.first != NULL && e->events_anonymous < EVENTS_ANONYMOUS_MAX;
}

/* What is done in slices: it never makes those wait for long who have asked one thing. */
static bool has_bulk_work(const engine *e) {
    return e->ready_pipelined.first != NULL || anonymous_may_work(e) || e->bulk_replies.first != NULL ||
           reads_may_go_on(e);
}

static bool has_prompt_work(const engine *e) {
    return e->ready.first != NULL || e->replies.first != NULL || e->touched != NULL;
}

/* Something can go on without Python. */
static bool has_work(const engine *e) {
    return e->events_count < EVENTS_MAX &&
           (has_prompt_work(e) || has_bulk_work(e) || e->check_next < e->conns_capacity);
}

static void work_promptly(engine *e) {
    int64_t until_us = clock_monotonic_us() + WORK_SLICE_US;
    do {
        conn_reclaim_buffers(e);
        if (e->serving) forward_serve(e, until_us);
        run_starved(e);
        shares_run(e);
        run_waiters(e, until_us);
        run_queue(&e->ready, UINT32_MAX, until_us);
        engine_commit(e);
        flush_replies(e, &e->replies, UINT32_MAX, until_us);
    } while (has_prompt_work(e) && e->events_count < EVENTS_MAX && clock_monotonic_us() < until_us);
}

/* What sends ahead, has no login, is large: a slice, then the completions of the others. */
static void work_in_bulk(engine *e) {
    int64_t until_us = clock_monotonic_us() + BULK_SLICE_US;
    do {
        run_queue(&e->ready_pipelined, BULK_FRAMES_PER_PASS, until_us);
        run_queue(&e->ready_anonymous, BULK_FRAMES_PER_PASS, until_us);
        reads_run_bulk(e, until_us);
        engine_commit(e);
        flush_replies(e, &e->replies, UINT32_MAX, until_us);
        flush_replies(e, &e->bulk_replies, BULK_REPLIES_PER_PASS, until_us);
        io_submit(&e->io); /* the kernel's part of it belongs to the slice */
    } while (has_bulk_work(e) && e->events_count < EVENTS_MAX && clock_monotonic_us() < until_us);
}

static void work(engine *e) {
    work_promptly(e);
    if (has_bulk_work(e) && e->events_count < EVENTS_MAX) {
        io_submit(&e->io); /* the answers of the others do not wait for it */
        work_in_bulk(e);
    }
    links_ring_doorbells(&e->links);
}

/* Their times, as many as a slice holds; the rest in the next passes. */
static void check_connections(engine *e) {
    int64_t until_us = clock_monotonic_us() + BULK_SLICE_US;
    for (uint32_t count = 1; e->check_next < e->conns_capacity; count++) {
        conn *c = e->conns[e->check_next++];
        if (c != NULL) conn_check_times(c);
        if (count % FRAMES_BETWEEN_LOOKS == 0 && clock_monotonic_us() > until_us) return;
    }
}

static void housekeeping(engine *e) {
    reads_look_at_output(e);
    if (e->check_next >= e->conns_capacity) e->check_next = 0;
    e->trimming = true;
    room_look(&e->room);
    engine_report_room(e);
    descriptors_spares_keep();
}

static void run_timers(engine *e) {
    if (descriptors_short()) {
        if (e->next_sync_us > e->now_us + SHORT_SYNC_US) e->next_sync_us = e->now_us + SHORT_SYNC_US;
        if (e->next_save_us > e->now_us + SHORT_SYNC_US) e->next_save_us = e->now_us + SHORT_SYNC_US;
    }
    if (e->now_us >= e->next_sync_us) {
        e->next_sync_us = e->now_us + e->options.sync_interval_us;
        sync_tick(e);
    }
    if (e->options.save_interval_us > 0 && e->now_us >= e->next_save_us) {
        e->next_save_us = e->now_us + e->options.save_interval_us;
        sync_save_tick(e);
    }
    if (e->now_us >= e->next_housekeeping_us) {
        e->next_housekeeping_us = e->now_us + HOUSEKEEPING_US;
        housekeeping(e);
    }
    if (e->check_next < e->conns_capacity) check_connections(e);
    if (e->trimming && e->now_us >= e->next_trim_us) {
        e->next_trim_us = e->now_us + TRIM_INTERVAL_US;
        e->trimming = pool_trim(e->pool, TRIM_KEEP_BYTES, TRIM_SLICE_BYTES);
    }
}

static int64_t wait_limit(const engine *e, int64_t deadline_us) {
    int64_t until = deadline_us < e->next_housekeeping_us ? deadline_us : e->next_housekeeping_us;
    if (e->dirty != NULL && e->next_sync_us < until) until = e->next_sync_us;
    if (e->dirty != NULL && e->options.save_interval_us > 0 && e->next_save_us < until) until = e->next_save_us;
    if (e->listen_fd >= 0 && !e->accept_armed && e->accept_again_us < until) until = e->accept_again_us;
    if (e->trimming && e->next_trim_us < until) until = e->next_trim_us;
    if ((e->waiters != NULL || e->bulk_reads[READS_WITHOUT_BLOCK].first != NULL) && e->now_us + WAITERS_POLL_US < until)
        until = e->now_us + WAITERS_POLL_US;
    return until > e->now_us ? until - e->now_us : 0;
}

static void set_activity(engine *e, worker_activity activity) {
    atomic_store_explicit(&e->page->activity, (uint32_t)activity, memory_order_relaxed);
}

/* A pass waits for HOUSEKEEPING_US at most: for what it took beyond that the loop stood still (device, CPU, Python). */
static void begin_pass(engine *e) {
    e->now_us = clock_monotonic_us();
    int64_t still_us = e->now_us - e->pass_us - HOUSEKEEPING_US;
    e->pass_us = e->now_us;
    if (still_us > STANDSTILL_US) {
        for (uint32_t set = 0; set < BUFFER_SETS; set++) e->pots[set].privileged_since_us += still_us;
        for (uint32_t i = 0; i < e->conns_capacity; i++)
            if (e->conns[i] != NULL) conn_forgive(e->conns[i], still_us);
    }
    uint64_t beat = atomic_load_explicit(&e->page->beat, memory_order_relaxed);
    atomic_store_explicit(&e->page->beat, beat + 1, memory_order_relaxed);
}

bool engine_turn(engine *e, int epoll_fd, int64_t timeout_us) {
    set_activity(e, ACTIVITY_ENGINE);
    begin_pass(e);
    int64_t deadline_us = e->now_us + (timeout_us >= 0 ? timeout_us : IDLE_US);
    e->epoll_fd = epoll_fd;
    e->epoll_ready = false;
    e->counters.turns++;
    for (;;) {
        io_reap(&e->io, complete, e);
        run_timers(e);
        work(e);
        bool settled = sync_begin_pending(e); /* all batches of the turn are written */
        arm_standing(e);                      /* after the completions that used it up */
        if (e->events_count > 0 || e->epoll_ready || e->now_us >= deadline_us) break;
        int64_t limit = !settled && !has_work(e) && links_sleep(&e->links) ? wait_limit(e, deadline_us) : 0;
        set_activity(e, ACTIVITY_WAITING);
        io_enter(&e->io, limit);
        set_activity(e, ACTIVITY_ENGINE);
        links_wake(&e->links);
        begin_pass(e);
    }
    io_submit(&e->io);
    set_activity(e, ACTIVITY_PYTHON);
    e->counters.python_events += e->events_count;
    return e->epoll_ready;
}
