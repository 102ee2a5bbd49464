/* What happens at the bounds of the engine that only many connections reach, and at a dead owner: no connection is
 * forgotten. */
#include "test_engine_support.h"

#define CROWD 1300 /* more than the provided buffers, EVENTS_MAX and LINK_SLOTS */

static server s;
static int fds[CROWD];

/* All log in at once: receives run out of buffers, events out of places; every login is answered. */
static void test_a_crowd_that_logs_in_at_once_is_answered(void) {
    uint32_t words[2] = {5, CODE_LOGIN_USER}, length;
    uint8_t frame[9];
    memcpy(frame, words, 8);
    frame[8] = 'x';
    for (int i = 0; i < CROWD; i++) fds[i] = dial(&s);
    for (int i = 0; i < CROWD; i++) CHECK(send(fds[i], frame, sizeof frame, MSG_NOSIGNAL) == (ssize_t)sizeof frame);
    for (int i = 0; i < CROWD; i++) CHECK_EQUAL(next_status(fds[i], &length, NULL), 0);
}

/* A stream that the dead shard owns. */
static uint32_t lost_stream(void) {
    uint32_t stream = 0;
    while (hash_owner(namespace_of(stream, 0, 0), SHARDS) != 1) stream++;
    return stream;
}

/* The ring to the dead owner takes LINK_SLOTS requests: those are refused after HELD_REQUEST_US; the others, which wait
 * for a free descriptor, are closed after the timeout of waiting. */
static void test_requests_for_a_dead_owner_are_refused_or_closed_in_time(void) {
    uint32_t total, words[2], length;
    uint8_t *payload = send_payload(lost_stream(), 1, 10, &total);
    words[0] = total + 4;
    words[1] = CODE_SEND_MESSAGES;
    for (int i = 0; i < CROWD; i++) {
        CHECK(send(fds[i], words, 8, MSG_NOSIGNAL | MSG_MORE) == 8);
        CHECK(send(fds[i], payload, total, MSG_NOSIGNAL) == (ssize_t)total);
    }
    free(payload);
    int refused = 0, closed = 0;
    for (int i = 0; i < CROWD; i++) {
        int64_t status = next_status(fds[i], &length, NULL);
        refused += status == STATUS_SHARD_COMMUNICATION_ERROR;
        closed += status == -1;
    }
    CHECK_EQUAL(refused, LINK_SLOTS);
    CHECK_EQUAL(closed, CROWD - LINK_SLOTS);
    for (int i = 0; i < CROWD; i++) close(fds[i]);
}

#define LARGE 40 /* connections with a large request each */
static uint64_t large[LARGE];
static _Atomic unsigned large_asked, large_answered;
static _Atomic bool large_go_on;

static bool keeps_large(engine *e, const event *v) {
    (void)e;
    if (v->kind != EVENT_REQUEST || v->code != CODE_UPDATE_PERMISSIONS) return false;
    large[large_asked % LARGE] = v->connection;
    large_asked++;
    return true;
}

static void answer_large(server *of, engine *e) {
    (void)of;
    for (; large_go_on && large_answered < large_asked; large_answered++)
        engine_reply(e, large[large_answered % LARGE], 0, NULL, 0, false);
}

/* Python has LARGE_REQUESTS_MAX of them until it has answered one; small requests pass, and all are answered. */
static void test_large_requests_beyond_those_that_python_has_wait(void) {
    static uint8_t payload[2 * LARGE_REQUEST_BYTES];
    uint32_t words[2] = {sizeof payload + 4, CODE_UPDATE_PERMISSIONS}, length;
    large_asked = large_answered = 0;
    large_go_on = false;
    int other = dial(&s);
    CHECK_EQUAL(call(other, CODE_LOGIN_USER, "x", 1, &length, NULL), 0);
    for (int i = 0; i < LARGE; i++) {
        uint8_t login[2] = {'x', (uint8_t)(1 + i % 5)}; /* of five users */
        fds[i] = dial(&s);
        CHECK_EQUAL(call(fds[i], CODE_LOGIN_USER, login, sizeof login, &length, NULL), 0);
        CHECK(send(fds[i], words, 8, MSG_NOSIGNAL | MSG_MORE) == 8);
        CHECK(send(fds[i], payload, sizeof payload, MSG_NOSIGNAL) == (ssize_t)sizeof payload);
    }
    for (int tries = 0; tries < 3000 && large_asked < LARGE_REQUESTS_MAX; tries++) usleep(10000);
    for (int i = 0; i < 20; i++) {
        CHECK_EQUAL(call(other, CODE_NEVER_ANSWERED - 1, NULL, 0, &length, NULL), 3);
        usleep(10000);
    }
    CHECK_EQUAL(large_asked, LARGE_REQUESTS_MAX);
    large_go_on = true;
    for (int i = 0; i < LARGE; i++) CHECK_EQUAL(next_status(fds[i], &length, NULL), 0);
    CHECK_EQUAL(large_asked, LARGE);
    for (int i = 0; i < LARGE; i++) close(fds[i]);
    close(other);
}

static void run_on(io_engine which) {
    s.io_engine = which;
    s.alone = true;
    s.keeps = keeps_large;
    s.each_turn = answer_large;
    s.bounds.limits.connections = CROWD + 100;
    start_server(&s);
    RUN(test_a_crowd_that_logs_in_at_once_is_answered);
    RUN(test_requests_for_a_dead_owner_are_refused_or_closed_in_time);
    RUN(test_large_requests_beyond_those_that_python_has_wait);
    stop_server(&s);
}

int main(void) {
    raise_descriptor_limit();
    for_each_engine(run_on);
    return check_report();
}
