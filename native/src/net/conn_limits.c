/* How long a connection may take: looked at for every connection every HOUSEKEEPING_US (docs/limits.md). */
#include "engine/engine.h"

/* While others wait for the same memory: */
#define CONTENDED_SILENCE_US 1000000 /* who lets nothing move for so long goes, */
#define CONTENDED_US 5000000         /* and after so long in all who moves less than ... */
#define CONTENDED_BYTES_PER_S 65536
#define PRIVILEGE_US 10000000 /* a frame beyond its owner's part has to be complete by then */
#define THROTTLED_PATIENCE 4  /* so many partial_frame_timeouts a frame waits for its turn */
/* Always: a frame and a part of an answer have the timeout and a second for each so many bytes. */
#define BYTES_PER_S_MIN 16384
#define LINGER_US 1000000 /* what a client still sends after its last answer is taken in and dropped */

static bool too_slow(const engine *e, const conn *c, int64_t since_us, uint64_t bytes) {
    int64_t age_us = e->now_us - since_us;
    if (e->now_us - c->progress_us > CONTENDED_SILENCE_US) return true;
    return age_us > CONTENDED_US && bytes < (uint64_t)age_us * CONTENDED_BYTES_PER_S / 1000000;
}

static bool frame_overdue(const engine *e, const conn *c) {
    int64_t still_us = e->now_us - c->progress_us, timeout_us = e->options.partial_frame_timeout_us;
    if (c->throttled) return e->now_us - c->throttled_us > THROTTLED_PATIENCE * timeout_us;
    if (c->head_have == 0 || c->in_ready || c->starved) return false; /* or it is our turn */
    if (share_contended(c)) {
        const pot *p = c->share->pot;
        if (too_slow(e, c, c->frame_us, c->block_have)) return true;
        if (c == p->privileged && e->now_us - p->privileged_since_us > PRIVILEGE_US) return true;
    }
    int64_t length = c->head_have == FRAME_HEADER_SIZE ? c->payload_length : 0;
    return still_us > timeout_us || e->now_us - c->frame_us > timeout_us + length * 1000000 / BYTES_PER_S_MIN;
}

/* Of memory for output: here, or at the owner whose window it has. */
static bool output_contended(const engine *e, const conn *c) {
    if (c->lease_open) return links_output_contended(&e->links, c->forward_shard);
    return e->output_contended && (c->job != NULL || c->out_block != NULL || c->out_heap != NULL);
}

static bool answer_overdue(const engine *e, const conn *c) {
    int64_t still_us = e->now_us - c->progress_us, timeout_us = e->options.slow_reader_timeout_us;
    if (c->in_replies) return false; /* it is our turn */
    if ((share_contended(c) || output_contended(e, c)) && too_slow(e, c, c->output_us, c->out_sent)) return true;
    return still_us > timeout_us ||
           e->now_us - c->output_us > timeout_us + (int64_t)c->out_length * 1000000 / BYTES_PER_S_MIN;
}

static bool request_overdue(const engine *e, const conn *c) {
    int64_t since_us = c->answer_begun && c->progress_us > c->request_us ? c->progress_us : c->request_us;
    return e->now_us - since_us > e->options.request_timeout_us;
}

/* Whether the connection has to go; `status` is what it is told before, 0: nothing, as it may be inside an answer. */
static bool overdue(const engine *e, const conn *c, uint32_t *status) {
    int64_t still_us = e->now_us - c->progress_us;
    *status = 0;
    if (c->held != NULL) { /* by a partition here: its sync cannot begin, or does not end */
        if (!c->answer_begun) *status = STATUS_TASK_TIMEOUT;
        return request_overdue(e, c);
    }
    switch (c->state) {
    case CONN_RECEIVING:
        if (frame_overdue(e, c)) return true;
        *status = STATUS_UNAUTHENTICATED;
        if (!c->authenticated && e->now_us - c->anonymous_us > e->options.login_timeout_us) return true;
        *status = STATUS_STALE_CLIENT;
        return e->options.idle_timeout_us > 0 && c->head_have == 0 && still_us > e->options.idle_timeout_us;
    case CONN_WAITING: return still_us > e->options.partial_frame_timeout_us;
    case CONN_REPLYING:
        if (!c->authenticated && e->now_us - c->anonymous_us > e->options.login_timeout_us) return true;
        return answer_overdue(e, c);
    case CONN_READING:
        return c->job != NULL && (c->job->wait.queued || c->job->bulk != NULL) &&
               still_us > e->options.slow_reader_timeout_us;
    case CONN_PYTHON:
    case CONN_FORWARDED:
        if (!c->authenticated) { /* a login waits for those before it */
            *status = STATUS_UNAUTHENTICATED;
            return e->now_us - c->request_us > e->options.login_timeout_us;
        }
        if (!c->answer_begun) *status = STATUS_TASK_TIMEOUT;
        return request_overdue(e, c);
    case CONN_LINGERING: return e->now_us - c->request_us > LINGER_US;
    default: return false;
    }
}

static void put_off(const engine *e, int64_t *since_us, int64_t still_us) {
    *since_us = *since_us + still_us < e->now_us ? *since_us + still_us : e->now_us;
}

/* Not request_us: who waits for an answer waits in real time, and is counted so. */
void conn_forgive(conn *c, int64_t still_us) {
    int64_t *const clocks[] = {&c->progress_us,  &c->frame_us,  &c->anonymous_us,
                               &c->throttled_us, &c->output_us, &c->heartbeat_us};
    for (size_t i = 0; i < sizeof clocks / sizeof clocks[0]; i++) put_off(c->e, clocks[i], still_us);
}

void conn_check_times(conn *c) {
    engine *e = c->e;
    uint32_t status;
    if (c->closing) return;
    if (c->forwarded && c->forward_deadline_us != 0 && e->now_us >= c->forward_deadline_us) {
        forward_give_up(c);
    } else if (overdue(e, c, &status)) {
        if (c->state != CONN_LINGERING) e->counters.timeouts++;
        if (status != 0) conn_say_goodbye(c, status);
        else conn_close(c);
    }
}
