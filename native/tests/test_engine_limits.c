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

static void run_on(io_engine which) {
    s.io_engine = which;
    s.alone = true;
    s.bounds.limits.connections = CROWD + 100;
    start_server(&s);
    RUN(test_a_crowd_that_logs_in_at_once_is_answered);
    RUN(test_requests_for_a_dead_owner_are_refused_or_closed_in_time);
    stop_server(&s);
}

int main(void) {
    raise_descriptor_limit();
    for_each_engine(run_on);
    return check_report();
}
