/* The loop of one worker: completions in, decisions, one commit (commit.c) and one enter a turn. */
#include "engine/engine.h"

#include "base/clock.h"
#include "core/commit.h"
#include "core/read_queue.h"
#include "core/sync.h"
#include "engine/engine_api.h"

#include <errno.h>
#include <unistd.h>

#define HOUSEKEEPING_US 250000
#define SHORT_SYNC_US 1000 /* until files that are not synced are, when they keep the log above its share */
#define WAITERS_POLL_US 5000
#define IDLE_US 60000000
#define WORK_SLICE_US 5000 /* then completions, timers and Python get their turn */
#define BULK_SLICE_US 100
#define TRIM_KEEP_BYTES (24u << 20)
#define TRIM_SLICE_BYTES (1u << 20)
#define TRIM_INTERVAL_US 1000
#define LOOKS_BETWEEN_CLOCKS 16
#define STANDSTILL_US 1000000 /* a pass of the loop that took longer: nobody was heard meanwhile */

static void arm_poll(engine *e, operation *op, int fd, bool *armed) {
    if (*armed || fd < 0) return;
    io_poll(&e->core.io, op, fd);
    *armed = true;
}

static void arm_standing(engine *e) {
    arm_poll(e, &e->standing.epoll, e->standing.epoll_fd, &e->standing.epoll_armed);
    arm_poll(e, &e->standing.doorbell, e->core.links.doorbells[e->core.links.shard], &e->standing.doorbell_armed);
    /* without a free place connections that move wait in that socket */
    bool room = e->standing.serving && e->net.conns.free_count > 0;
    arm_poll(e, &e->standing.handover, room ? e->options.handover_receive_fd : -1, &e->standing.handover_armed);
    listeners_arm(e);
}

static void on_doorbell(engine *e) {
    e->standing.doorbell_armed = false;
    while (read(e->core.links.doorbells[e->core.links.shard], &e->standing.doorbell_value,
                sizeof e->standing.doorbell_value) < 0 &&
           errno == EINTR)
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
    case OPERATION_UNPACK: segment_compressed_on_read(op->owner, result); break;
    case OPERATION_INTRODUCTION: introduction_on_receive(op->owner, result); break;
    case OPERATION_ACCEPT: listener_on_accept(op->owner, result, done->more); break;
    case OPERATION_DOORBELL: on_doorbell(e); break;
    case OPERATION_EPOLL:
        e->standing.epoll_armed = false;
        e->standing.epoll_ready = true;
        break;
    case OPERATION_HANDOVER:
        e->standing.handover_armed = false;
        handover_receive(&e->peers);
        break;
    }
}

static bool has_bulk_work(const engine *e) {
    return net_has_bulk_work(&e->net) || reads_may_go_on(&e->core) || commit_has_parts(&e->core);
}

static bool has_prompt_work(const engine *e) { return net_has_prompt_work(&e->net) || e->core.commit.touched != NULL; }

static bool python_is_due(const engine *e) { return events_are_enough(&e->core.events, false); }

/* Something can go on without Python. */
static bool has_work(const engine *e) {
    return !python_is_due(e) &&
           (has_prompt_work(e) || has_bulk_work(e) || net_has_checks(&e->net) || e->peers.copies > 0);
}

static void work_promptly(engine *e) {
    core *k = &e->core;
    int64_t until_us = clock_monotonic_us() + WORK_SLICE_US;
    do {
        conn_reclaim_buffers(&e->net);
        if (e->standing.serving) peers_serve(&e->peers, until_us);
        net_take_input(&e->net);
        if (k->waiters.first != NULL) waiters_run(&k->waiters, until_us);
        net_run_prompt_frames(&e->net, until_us);
        links_ring_doorbells(&k->links); /* the others work at what was forwarded while this shard writes */
        commit_all(k);
        net_flush_prompt(&e->net, until_us);
    } while (has_prompt_work(e) && !python_is_due(e) && clock_monotonic_us() < until_us);
}

/* What sends ahead, has no login, is large: a slice, then the completions of the others. */
static void work_in_bulk(engine *e) {
    core *k = &e->core;
    int64_t until_us = clock_monotonic_us() + BULK_SLICE_US;
    uint32_t visits = 0; /* since the last look at the clock: closing connections cost time, too, and bring no frame */
    do {
        visits += net_run_bulk_frames(&e->net, until_us);
        links_ring_doorbells(&k->links);
        bool small = !reads_may_go_on(k) && !net_has_bulk_replies(&e->net) && !commit_has_parts(k);
        if (!small) reads_run_bulk(k, until_us);
        commit_part(k);
        commit_all(k);
        net_flush_prompt(&e->net, until_us);
        if (!small) net_flush_bulk(&e->net, until_us);
        io_push(&k->io); /* the kernel's part of it belongs to the slice */
        if (small && visits > 0 && visits < FRAMES_BETWEEN_LOOKS) continue;
        visits = 0;
        if (clock_monotonic_us() >= until_us) return;
    } while (has_bulk_work(e) && !python_is_due(e));
}

static void work(engine *e) {
    work_promptly(e);
    if (has_bulk_work(e) && !python_is_due(e)) {
        io_push(&e->core.io); /* the answers of the others do not wait for it */
        work_in_bulk(e);
    }
    links_ring_doorbells(&e->core.links);
}

static void housekeeping(engine *e) {
    reads_look_at_output(&e->core);
    forward_check_times(&e->peers);
    net_begin_checks(&e->net);
    e->trimming = true;
    room_look(&e->core.commit.room);
    commit_report_room(&e->core);
    file_cache_spares_keep(&e->core.files);
}

static void run_timers(engine *e) {
    if (file_cache_was_short(&e->core.files)) {
        if (e->core.sync.next_us > e->core.now_us + SHORT_SYNC_US)
            e->core.sync.next_us = e->core.now_us + SHORT_SYNC_US;
        if (e->core.sync.next_save_us > e->core.now_us + SHORT_SYNC_US)
            e->core.sync.next_save_us = e->core.now_us + SHORT_SYNC_US;
    }
    if (e->core.now_us >= e->core.sync.next_us) {
        e->core.sync.next_us = e->core.now_us + e->options.sync_interval_us;
        sync_tick(&e->core);
    }
    if (e->options.save_interval_us > 0 && e->core.now_us >= e->core.sync.next_save_us) {
        e->core.sync.next_save_us = e->core.now_us + e->options.save_interval_us;
        sync_save_tick(&e->core);
    }
    if (waiting_polls_next_us(&e->core.waiting_polls) <= e->core.now_us)
        waiting_polls_run(&e->core, clock_monotonic_us() + BULK_SLICE_US);
    if (e->core.now_us >= e->next_housekeeping_us) {
        e->next_housekeeping_us = e->core.now_us + HOUSEKEEPING_US;
        housekeeping(e);
    }
    if (net_has_checks(&e->net)) net_check_times(&e->net, clock_monotonic_us() + BULK_SLICE_US);
    if (e->trimming && e->core.now_us >= e->next_trim_us) {
        e->next_trim_us = e->core.now_us + TRIM_INTERVAL_US;
        e->trimming = pool_trim(e->core.pool, TRIM_KEEP_BYTES, TRIM_SLICE_BYTES);
    }
}

static int64_t wait_limit(const engine *e, int64_t deadline_us) {
    int64_t until = deadline_us < e->next_housekeeping_us ? deadline_us : e->next_housekeeping_us;
    if (e->core.sync.dirty != NULL && e->core.sync.next_us < until) until = e->core.sync.next_us;
    if (e->core.sync.dirty != NULL && e->options.save_interval_us > 0 && e->core.sync.next_save_us < until)
        until = e->core.sync.next_save_us;
    if (waiting_polls_next_us(&e->core.waiting_polls) < until) until = waiting_polls_next_us(&e->core.waiting_polls);
    until = listeners_wait_limit(e, until);
    if (e->trimming && e->next_trim_us < until) until = e->next_trim_us;
    if (openings_wait(&e->net.openings) && e->net.openings.next_us < until) until = e->net.openings.next_us;
    bool wait = e->core.waiters.first != NULL || e->core.reads.bulk[READS_WITHOUT_BLOCK].first != NULL;
    if (wait && e->core.now_us + WAITERS_POLL_US < until) until = e->core.now_us + WAITERS_POLL_US;
    return until > e->core.now_us ? until - e->core.now_us : 0;
}

static void look_at_service(engine *e) {
    uint64_t served = e->core.counters.frames + e->core.counters.served_for_peers;
    if (served == e->busy_poll.served) return;
    e->busy_poll.served = served;
    e->busy_poll.served_us = e->core.now_us;
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Looks for completions and for descriptors of peers, which need no doorbell meanwhile: who sleeps has to be woken, and
 * that takes longer than the next request of a client that waits for each answer. True when there is something. */
static bool poll_busily(engine *e, int64_t deadline_us) {
    look_at_service(e);
    int64_t until_us = e->busy_poll.served_us + e->options.busy_poll_us;
    int64_t limit_us = e->core.now_us + wait_limit(e, deadline_us);
    if (until_us > limit_us) until_us = limit_us;
    if (until_us <= e->core.now_us) return false;
    io_push(&e->core.io);
    do {
        for (int n = 0; n < LOOKS_BETWEEN_CLOCKS; n++) {
            if (io_ready(&e->core.io) || links_waiting(&e->core.links)) return true;
            relax();
        }
    } while (clock_monotonic_us() < until_us);
    return false;
}

static void set_activity(engine *e, worker_activity activity) {
    atomic_store_explicit(&e->page->activity, (uint32_t)activity, memory_order_relaxed);
}

/* A pass waits for HOUSEKEEPING_US at most: for what it took beyond that the loop stood still (device, CPU, Python). */
static void begin_pass(engine *e) {
    e->core.now_us = clock_monotonic_us();
    int64_t still_us = e->core.now_us - e->pass_us - HOUSEKEEPING_US;
    e->pass_us = e->core.now_us;
    e->net.filled_bytes = 0;
    if (still_us > STANDSTILL_US) net_forgive(&e->net, still_us);
    uint64_t beat = atomic_load_explicit(&e->page->beat, memory_order_relaxed);
    atomic_store_explicit(&e->page->beat, beat + 1, memory_order_relaxed);
}

bool engine_turn(engine *e, int epoll_fd, int64_t timeout_us) {
    set_activity(e, ACTIVITY_ENGINE);
    begin_pass(e);
    events_after_turn_of_python(&e->core.events, e->pass_us - e->python_us);
    turn_watch_begin(&e->watch, e->core.now_us);
    int64_t deadline_us = e->core.now_us + (timeout_us >= 0 ? timeout_us : IDLE_US);
    e->standing.epoll_fd = epoll_fd;
    e->standing.epoll_ready = false;
    e->core.counters.turns++;
    for (;;) {
        io_reap(&e->core.io, complete, e);
        run_timers(e);
        work(e);
        bool settled = sync_begin_pending(&e->core); /* all batches of the turn are written */
        arm_standing(e);                             /* after the completions that used it up */
        if (e->core.events.count > 0 || e->standing.epoll_ready || e->core.now_us >= deadline_us) break;
        bool idle = !settled && !has_work(e);
        set_activity(e, ACTIVITY_WAITING);
        if (idle && e->options.busy_poll_us > 0) idle = !poll_busily(e, deadline_us);
        int64_t limit = idle && links_sleep(&e->core.links) ? wait_limit(e, deadline_us) : 0;
        io_enter(&e->core.io, limit);
        set_activity(e, ACTIVITY_ENGINE);
        links_wake(&e->core.links);
        int64_t began_us = e->pass_us;
        begin_pass(e);
        turn_watch_end(&e->watch, began_us, e->core.now_us);
    }
    io_submit(&e->core.io);
    e->python_us = clock_monotonic_us();
    turn_watch_end(&e->watch, e->pass_us, e->python_us);
    set_activity(e, ACTIVITY_PYTHON);
    e->core.counters.python_events += e->core.events.count;
    return e->standing.epoll_ready;
}
