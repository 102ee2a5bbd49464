/* How long a connection may take: looked at for every connection every HOUSEKEEPING_US (docs/limits.md). */
#include "net/net.h"
#include "net/conn/places.h"

#include "base/bytes.h"
#include "base/status.h"

/* While others wait for the same memory: */
#define CONTENDED_SILENCE_US 1000000 /* who lets nothing move for so long goes, */
#define CONTENDED_US 5000000         /* and after so long in all who moves less than ... */
#define CONTENDED_BYTES_PER_S 65536
#define PRIVILEGE_US 10000000 /* a frame beyond its owner's part has to be complete by then */
#define THROTTLED_PATIENCE 4  /* so many partial_frame_timeouts a frame waits for its turn */
#define HOLDING_US 100000     /* after the head of a refusal: who does not ask on by then reads its body */
#define LINGER_US 1000000     /* what a client still sends after its last answer is taken in and dropped */

static bool too_slow(const conn *c, int64_t since_us, uint64_t bytes) {
    int64_t age_us = c->core->now_us - since_us;
    if (c->core->now_us - c->clocks.progress_us > CONTENDED_SILENCE_US) return true;
    return age_us > CONTENDED_US && bytes < (uint64_t)age_us * CONTENDED_BYTES_PER_S / 1000000;
}

static bool frame_overdue(const conn *c) {
    int64_t still_us = c->core->now_us - c->clocks.progress_us, timeout_us = c->net->options.partial_frame_timeout_us;
    if (c->memory.throttled) return c->core->now_us - c->clocks.throttled_us > THROTTLED_PATIENCE * timeout_us;
    if (c->frame.head_have == 0 || c->in_ready || c->input.starved) return false; /* or it is our turn */
    if (share_contended(c)) {
        const pot *p = c->memory.share->pot;
        if (too_slow(c, c->clocks.frame_us, c->frame.block_have)) return true;
        if (c == p->privileged && c->core->now_us - p->privileged_since_us > PRIVILEGE_US) return true;
    }
    int64_t length = c->frame.head_have == c->dialect->head_bytes ? c->frame.head.length : 0;
    return still_us > timeout_us ||
           c->core->now_us - c->clocks.frame_us > timeout_us + length * 1000000 / BYTES_PER_S_MIN;
}

/* Of memory for output: here, or at the owner whose window it has. */
static bool output_contended(const conn *c) {
    const core *k = c->core;
    if (c->work != NULL && c->work->memory_shard != k->options.shard)
        return links_output_contended(&k->links, c->work->memory_shard);
    bool holds = c->work != NULL || c->output.block != NULL || c->output.heap != NULL || c->output.made != NULL;
    return k->output.contended && holds;
}

static bool answer_overdue(const conn *c) {
    bool takes = c->reader.since_us != 0 && c->reader.moved_us > c->clocks.progress_us; /* what the kernel has */
    int64_t still_us = c->core->now_us - (takes ? c->reader.moved_us : c->clocks.progress_us);
    int64_t timeout_us = c->net->options.slow_reader_timeout_us;
    size_t length = c->output.length + (c->reader.since_us != 0 ? c->reader.length : 0);
    if (c->output.queued) return false; /* it is our turn */
    if ((share_contended(c) || output_contended(c)) && too_slow(c, c->clocks.output_us, c->output.sent)) return true;
    return still_us > timeout_us ||
           c->core->now_us - c->clocks.output_us > timeout_us + (int64_t)length * 1000000 / BYTES_PER_S_MIN;
}

static bool request_overdue(const conn *c) {
    int64_t since_us = c->output.begun && c->clocks.progress_us > c->clocks.request_us ? c->clocks.progress_us
                                                                                       : c->clocks.request_us;
    return c->core->now_us - since_us > c->net->options.request_timeout_us;
}

/* Its oldest request decides: those behind it have waited less, and a status would be read as its answer. */
static bool window_overdue(const conn *c, uint32_t *status) {
    if (c->output.bytes != NULL) return answer_overdue(c);
    if (!conn_may_be_told(c)) return false; /* it is our turn */
    *status = STATUS_TASK_TIMEOUT;
    return c->core->now_us - window_place(c->window, 0)->request_us > c->net->options.request_timeout_us;
}

/* Whether the connection has to go; `status` is what it is told before, 0: nothing, as it may be inside an answer. */
static bool overdue(const conn *c, uint32_t *status) {
    int64_t still_us = c->core->now_us - c->clocks.progress_us;
    *status = 0;
    if (conn_waits_for(c, WAITS_FOR_DEVICE)) { /* by a partition here: its sync cannot begin, or does not end */
        if (!c->output.begun) *status = STATUS_TASK_TIMEOUT;
        return request_overdue(c);
    }
    switch (c->state) {
    case CONN_RECEIVING:
        if (frame_overdue(c)) return true;
        if (c->stream.opening && c->core->now_us - c->clocks.anonymous_us > c->net->options.partial_frame_timeout_us)
            return true;
        *status = STATUS_UNAUTHENTICATED;
        if (!c->session.authenticated && c->core->now_us - c->clocks.anonymous_us > c->net->options.login_timeout_us)
            return true;
        *status = STATUS_STALE_CLIENT;
        return c->net->options.idle_timeout_us > 0 && c->frame.head_have == 0 &&
               still_us > c->net->options.idle_timeout_us;
    case CONN_WAITING: return still_us > c->net->options.partial_frame_timeout_us;
    case CONN_REPLYING:
        if (!c->session.authenticated && c->core->now_us - c->clocks.anonymous_us > c->net->options.login_timeout_us)
            return true;
        return answer_overdue(c);
    case CONN_WORKING:
        if (!conn_waits_for(c, WAITS_FOR_MEMORY) && !conn_waits_for(c, WAITS_FOR_PEER) &&
            !conn_waits_for(c, WAITS_FOR_RECORDS))
            return false;
        if (!c->output.begun) *status = STATUS_TASK_TIMEOUT;
        return request_overdue(c);
    case CONN_WINDOW: return window_overdue(c, status);
    case CONN_PYTHON:
        if (!c->session.authenticated) { /* a login waits for those before it */
            *status = STATUS_UNAUTHENTICATED;
            return c->core->now_us - c->clocks.request_us > c->net->options.login_timeout_us;
        }
        if (!c->output.begun) *status = STATUS_TASK_TIMEOUT;
        return request_overdue(c);
    case CONN_LINGERING: return c->core->now_us - c->clocks.request_us > LINGER_US && c->reader.since_us == 0;
    default: return false;
    }
}

static void put_off(const conn *c, int64_t *since_us, int64_t still_us) {
    *since_us = *since_us + still_us < c->core->now_us ? *since_us + still_us : c->core->now_us;
}

/* Not request_us: who waits for an answer waits in real time, and is counted so. */
void conn_forgive(conn *c, int64_t still_us) {
    int64_t *const clocks[] = {&c->clocks.progress_us,  &c->clocks.frame_us,  &c->clocks.anonymous_us,
                               &c->clocks.throttled_us, &c->clocks.output_us, &c->clocks.heartbeat_us,
                               &c->reader.moved_us};
    if (c->reader.since_us != 0) put_off(c, &c->reader.since_us, still_us);
    for (size_t i = 0; i < sizeof clocks / sizeof clocks[0]; i++) put_off(c, clocks[i], still_us);
}

bool conn_may_be_told(const conn *c) {
    if (c->state == CONN_WINDOW) return c->output.bytes == NULL && !window_may_leave(c->window);
    bool working = c->state == CONN_WORKING;
    bool reading = working && c->frame.head.kind == REQUEST_POLL && !conn_waits_for(c, WAITS_FOR_PEER);
    return c->state != CONN_REPLYING && c->state != CONN_HOLDING && !reading && !(working && c->output.begun);
}

/* 0.0.1 and 0.0.2 write a code of one byte: their shortest requests never become what tells a dialect. */
static bool is_before_all_dialects(const conn *c) {
    if (c->dialect->choose == NULL || c->frame.head_have <= 4) return false;
    return load_u32(c->frame.head_bytes) - 1 < 3 && c->core->now_us - c->clocks.progress_us > HOLDING_US;
}

void conn_check_times(conn *c) {
    uint32_t status;
    if (!c->closing && is_before_all_dialects(c)) {
        conn_close(c);
        return;
    }
    if (c->state == CONN_HOLDING && !c->closing && c->core->now_us - c->clocks.progress_us > HOLDING_US) {
        conn_send_body(c);
        return;
    }
    stream_look(&c->stream);
    conn_wait_look(c);
    if (c->closing) return;
    if (conn_reader_is_late(c)) {
        c->core->counters.timeouts++;
        conn_reset(c);
        return;
    }
    if (!overdue(c, &status)) return;
    if (c->state != CONN_LINGERING) c->core->counters.timeouts++;
    if (status != 0) conn_say_goodbye(c, status);
    else if (c->output.bytes != NULL || c->reader.since_us != 0) conn_reset(c);
    else conn_close(c);
}

void conn_was_answered(conn *c) { put_off(c, &c->clocks.heartbeat_us, c->core->now_us - c->clocks.request_us); }

/* A client that waits for an answer sends nothing meanwhile: that is not its silence. One that does not read what was
 * answered is silent. */
static bool awaits_us(const conn *c) {
    return c->state == CONN_PYTHON || c->state == CONN_WORKING || c->state == CONN_WAITING ||
           c->state == CONN_AWAITING || c->state == CONN_UNPACKING ||
           (c->state == CONN_WINDOW && c->output.bytes == NULL);
}

bool conn_is_silent(const conn *c, int64_t since_us) { return !awaits_us(c) && c->clocks.heartbeat_us < since_us; }

/* What lies unread in the kernel, or waits for room or for a turn of ours, may be its PING. */
static bool waits_for_a_turn(const conn *c) {
    return c->input.starved || c->memory.throttled || c->output.queued || c->state == CONN_MOVING;
}

/* The end of a wait, bytes that arrive and bytes that the client takes are signs of life, beside PING. */
int64_t conn_silence_us(const conn *c, int64_t now_us) {
    if (awaits_us(c) || waits_for_a_turn(c)) return 0;
    int64_t heard_us = c->clocks.heartbeat_us;
    if (c->clocks.progress_us > heard_us) heard_us = c->clocks.progress_us;
    if (c->reader.moved_us > heard_us) heard_us = c->reader.moved_us;
    return now_us > heard_us ? now_us - heard_us : 0;
}
