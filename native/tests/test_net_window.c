/* Several requests of one connection in work: order of answers, what has to wait until it is alone, and what becomes of
 * them when an owner says no, dies, or the client does not read. The owner on another shard is the test. */
#include "test_net_support.h"

#include "net/window.h"
#include "wire/classic_request.h"
#include "wire/frame_limits.h"

enum { HERE = 1, ELSEWHERE = 2, NOWHERE = 3, ASKED_MAX = 64 };

/* ---- frames, one behind the other ---- */

static uint8_t frames[1 << 16];
static size_t frames_length;

static uint8_t *put_head(uint32_t code, uint32_t payload) {
    uint32_t words[2] = {payload + 4, code};
    uint8_t *at = frames + frames_length;
    memset(at, 0, 8 + payload);
    memcpy(at, words, 8);
    frames_length += 8 + payload;
    return at + 8;
}

static void put_ping(void) { put_head(CODE_PING, 0); }

static void put_send(uint8_t stream, uint32_t size) {
    uint32_t metadata = 12 + 6 + 4, count = 1, end = RECORD_BYTES(size);
    uint8_t *at = put_head(CODE_SEND_MESSAGES, 4 + metadata + 16 + end);
    memcpy(at, &metadata, 4);
    memcpy(at + 4, "\1\4\1\0\0\0\1\4\1\0\0\0\2\4\0\0\0\0", 18);
    at[6] = stream;
    memcpy(at + 22, &count, 4);
    memcpy(at + 30, &end, 4);
    put_record(at + 42, size, 'z');
}

static void put_consumer(uint8_t *at, uint8_t stream) {
    memcpy(at, "\1\1\4\7\0\0\0\1\4\1\0\0\0\1\4\1\0\0\0\1\0\0\0\0", 24);
    at[9] = stream;
}

static void put_poll(uint8_t stream) {
    uint8_t *at = put_head(CODE_POLL_MESSAGES, 38);
    put_consumer(at, stream);
    at[24] = 1;
    at[33] = 100;
}

static void put_store(uint8_t stream, uint8_t offset) {
    uint8_t *at = put_head(CODE_STORE_CONSUMER_OFFSET, 32);
    put_consumer(at, stream);
    at[24] = offset;
}

/* ---- the owner of what is elsewhere ---- */

static struct {
    remote remote; /* first */
    struct {
        pending pending; /* first */
        caller from;
        request_kind kind;
        bool cancelled;
    } asked[ASKED_MAX];
    uint32_t count;
    bool full;
} away;

static void cancel(pending *p) {
    bool *cancelled = &((__typeof__(away.asked[0]) *)p)->cancelled;
    *cancelled = true;
}

static bool forward(remote *r, uint32_t shard, const partition_request *what, const caller *from) {
    static const pending_calls calls = {.cancel = cancel};
    (void)r, (void)shard;
    if (away.full || away.count == ASKED_MAX) return false;
    __typeof__(away.asked[0]) *a = &away.asked[away.count++];
    a->pending = (pending){.calls = &calls, .waits_for = WAITS_FOR_PEER, .memory_shard = 1};
    a->from = *from;
    a->kind = what->kind;
    a->cancelled = false;
    caller_parked(from, &a->pending);
    return true;
}

static caller asked(uint32_t number) {
    caller from = away.asked[number].from;
    caller_parked(&from, NULL);
    return from;
}

static void answer(uint32_t number, uint32_t status) {
    caller from = asked(number);
    caller_status(&from, status);
}

/* ---- a connection ---- */

static void route_to(uint8_t stream, uint64_t ns, uint32_t owner) {
    uint8_t key[12] = "\1\4\0\0\0\0\1\4\1\0\0\0";
    key[2] = stream;
    route *r = routes_put(&k->routes, 0, key, 12, 1, drop_route_partition);
    r->can_send = r->can_poll = true;
    r->partitions[0] = (route_partition){.ns = ns, .incarnation = 1, .owner = owner};
}

static memory_stream *open_one(partition_level level) {
    open_net(level);
    memset(&away, 0, sizeof away);
    away.remote.forward = forward;
    k->remote = &away.remote;
    route_to(HERE, NS_HERE, 0);
    route_to(ELSEWHERE, NS_ELSEWHERE, 1);
    frames_length = 0;
    memory_stream *m = dial(&dialect_classic, false, true);
    pump(m);
    return m;
}

static void close_one(memory_stream *m) {
    hang_up(m);
    CHECK_EQUAL(n.conns.count, 0);
    CHECK_EQUAL(shares_bytes(&n), 0);
    close_net();
}

/* All frames in one receive, and no commit yet. */
static void receive_all(memory_stream *m) {
    feed(m, frames, frames_length, UINT32_MAX);
    frames_length = 0;
    k->now_us = clock_monotonic_us();
    net_run_prompt_frames(&n, INT64_MAX);
    net_run_bulk_frames(&n, INT64_MAX);
}

static uint32_t in_work(const memory_stream *m) { return m->c->state == CONN_WINDOW ? m->c->window->count : 0; }

/* Its answers so far, which are statuses alone. */
static void expect(memory_stream *m, const uint32_t *statuses, size_t count) {
    await_output(m, count * 8);
    for (size_t i = 0; i < count; i++) {
        uint32_t words[2] = {statuses[i], 0};
        CHECK(memcmp(m->output + i * 8, words, 8) == 0);
    }
}

#define EXPECT(m, ...) expect(m, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

static uint64_t messages_here(void) { return partition_next_offset(core_owned(k, NS_HERE)->p); }

static void pump_often(memory_stream *m) {
    for (int i = 0; i < 20; i++) pump(m);
}

/* ---- what must hold ---- */

static void test_what_comes_together_is_written_and_answered_together(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    for (int i = 0; i < 5; i++) put_send(HERE, 100);
    put_ping();
    receive_all(m);
    CHECK_EQUAL(in_work(m), 6);
    CHECK_EQUAL(m->output_length, 0);
    CHECK(shares_bytes(&n) > 0);
    uint64_t writes = k->counters.append_calls;
    EXPECT(m, 0, 0, 0, 0, 0, 0);
    CHECK_EQUAL(k->counters.append_calls - writes, 1);
    CHECK_EQUAL(messages_here(), 5);
    CHECK(m->c->window == NULL && m->c->state == CONN_RECEIVING && m->receiving);
    CHECK_EQUAL(shares_bytes(&n), 0);
    close_one(m);
}

static void test_one_request_at_a_time_has_no_window(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    for (unsigned i = 1; i <= 3; i++) {
        put_send(HERE, 100);
        receive_all(m);
        CHECK(m->c->window == NULL && m->c->state == CONN_WORKING);
        await_output(m, i * 8);
    }
    n.options.pipeline_window_requests = 1;
    for (int i = 0; i < 3; i++) put_send(HERE, 100);
    receive_all(m);
    CHECK(m->c->window == NULL);
    EXPECT(m, 0, 0, 0, 0, 0, 0);
    close_one(m);
}

static void test_answers_keep_the_order_of_the_requests(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    put_send(ELSEWHERE, 10);
    put_send(HERE, 10);
    put_store(ELSEWHERE, 3);
    put_ping();
    put_send(ELSEWHERE, 10);
    receive_all(m);
    CHECK_EQUAL(away.count, 1); /* the store waits for the sends before it */
    pump_often(m);
    CHECK_EQUAL(m->output_length, 0);
    answer(0, STATUS_PARTITION_NOT_FOUND);
    EXPECT(m, STATUS_PARTITION_NOT_FOUND, 0);
    pump_often(m);
    CHECK_EQUAL(away.count, 3);
    answer(2, STATUS_CANNOT_WRITE_TO_FILE);
    pump_often(m);
    CHECK_EQUAL(m->output_length, 2 * 8);
    answer(1, 0);
    EXPECT(m, STATUS_PARTITION_NOT_FOUND, 0, 0, 0, STATUS_CANNOT_WRITE_TO_FILE);
    close_one(m);
}

static void test_a_poll_and_what_python_decides_wait_until_they_are_alone(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    put_send(HERE, 10);
    put_send(HERE, 10);
    put_poll(HERE);
    put_send(HERE, 10);
    put_send(NOWHERE, 10);
    put_send(HERE, 10);
    receive_all(m);
    CHECK_EQUAL(in_work(m), 2);
    size_t polled = 24 + 2 * RECORD_BYTES(10);
    await_output(m, 2 * 8 + polled + 8);
    uint32_t count = 0;
    memcpy(&count, m->output + 2 * 8 + 20, 4);
    CHECK_EQUAL(count, 2);
    pump_often(m);
    CHECK_EQUAL(messages_here(), 3); /* the one behind the missing route has not begun */
    REQUIRE(k->events.count > 0);
    CHECK_EQUAL(k->events.list[k->events.count - 1].kind, EVENT_ROUTE_MISS);
    CHECK(m->c->state == CONN_PYTHON && m->c->window == NULL);
    conn_left_python(m->c);
    conn_reply_status(m->c, STATUS_TOPIC_ID_NOT_FOUND);
    await_output(m, 2 * 8 + polled + 3 * 8);
    CHECK_EQUAL(messages_here(), 4);
    events_clear(&k->events);
    close_one(m);
}

static void test_a_full_ring_of_descriptors_makes_the_rest_wait_in_order(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    for (int i = 0; i < 4; i++) put_send(ELSEWHERE, 10);
    away.full = true;
    receive_all(m);
    CHECK(in_work(m) == 0 && m->c->state == CONN_WAITING);
    away.full = false;
    pump_often(m);
    CHECK_EQUAL(away.count, 1);
    answer(0, 0);
    pump_often(m);
    CHECK_EQUAL(in_work(m), 3);
    for (uint32_t i = 1; i < 4; i++) answer(i, 0);
    EXPECT(m, 0, 0, 0, 0);
    close_one(m);
}

static void test_requests_told_to_ask_again_keep_their_place_or_are_not_carried_out(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    put_send(ELSEWHERE, 10);
    put_send(HERE, 10);
    put_send(ELSEWHERE, 10);
    put_send(ELSEWHERE, 10);
    receive_all(m);
    pump_often(m);
    for (uint32_t i = 0; i < 3; i++) {
        caller from = asked(i);
        caller_again(&from);
    }
    EXPECT(m, STATUS_SHARD_COMMUNICATION_ERROR, 0);
    pump_often(m);
    CHECK_EQUAL(away.count, 4); /* the third one is asked once more, alone */
    CHECK(m->c->state == CONN_WORKING && m->c->window == NULL);
    caller from = asked(3);
    caller_again(&from);
    REQUIRE(k->events.count > 0);
    CHECK_EQUAL(k->events.list[k->events.count - 1].kind, EVENT_ROUTE_MISS);
    events_clear(&k->events);
    m->c->state = CONN_RECEIVING; /* what engine_resume does */
    conn_execute(m->c);
    answer(4, 0);
    pump_often(m);
    CHECK_EQUAL(away.count, 6);
    answer(5, 0);
    EXPECT(m, STATUS_SHARD_COMMUNICATION_ERROR, 0, 0, 0);
    close_one(m);
}

static void test_an_owner_that_dies_closes_the_connection_and_frees_it_when_all_have_ended(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    for (int i = 0; i < 3; i++) put_send(ELSEWHERE, 10);
    receive_all(m);
    caller from = asked(0);
    caller_gone(&from);
    CHECK(m->c->closing && away.asked[1].cancelled && away.asked[2].cancelled);
    pump_often(m);
    CHECK(!m->closed); /* the owner may still read the others */
    for (uint32_t i = 1; i < 3; i++) {
        from = asked(i);
        caller_dropped(&from);
    }
    pump_often(m);
    CHECK(m->closed);
    free(m);
    CHECK_EQUAL(n.conns.count, 0);
    CHECK_EQUAL(shares_bytes(&n), 0);
    close_net();
}

static void test_nothing_behind_an_answer_that_closes_is_carried_out(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    put_send(HERE, 10);
    put_send(HERE, 10);
    uint32_t words[2] = {FRAME_CONTROL_MAX + 5, CODE_STORE_CONSUMER_OFFSET};
    memcpy(frames + frames_length, words, 8);
    frames_length += 8;
    put_send(HERE, 10);
    receive_all(m);
    EXPECT(m, 0, 0, STATUS_INVALID_COMMAND);
    pump_often(m);
    CHECK(m->c->state == CONN_LINGERING);
    CHECK_EQUAL(messages_here(), 2);
    close_one(m);
}

static void test_what_comes_while_the_device_works_is_in_work_too(void) {
    memory_stream *m = open_one(LEVEL_DURABLE);
    k->files.budget.syncs = 0; /* none can begin */
    for (int i = 0; i < 3; i++) put_send(HERE, 10);
    receive_all(m);
    pump_often(m);
    CHECK(m->receiving && m->c->input.block == NULL);
    CHECK_EQUAL(in_work(m), 3);
    for (int i = 0; i < 3; i++) put_send(HERE, 10);
    receive_all(m);
    pump_often(m);
    CHECK_EQUAL(in_work(m), 6);
    CHECK_EQUAL(messages_here(), 6);
    CHECK_EQUAL(m->output_length, 0);
    k->files.budget.syncs = 4;
    EXPECT(m, 0, 0, 0, 0, 0, 0);
    CHECK_EQUAL(k->counters.syncs, 1);
    close_one(m);
}

/* Nothing more than a window is taken from who does not read. */
static void test_a_reader_that_does_not_read_fills_its_window_and_no_more(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    m->send_max = 0;
    for (uint32_t i = 0; i < WINDOW_REQUESTS_MAX + 8; i++) put_send(HERE, 10);
    receive_all(m);
    CHECK_EQUAL(in_work(m), WINDOW_REQUESTS_MAX);
    pump_often(m);
    CHECK_EQUAL(messages_here(), WINDOW_REQUESTS_MAX);
    CHECK(!m->receiving && m->output_length == 0);
    m->c->clocks.progress_us -= 2 * n.options.slow_reader_timeout_us;
    conn_check_times(m->c);
    CHECK(m->c->closing);
    CHECK_EQUAL(m->output_length, 0); /* a status would be a part of an answer */
    close_one(m);
}

static void test_the_oldest_request_decides_whether_the_time_is_over(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    put_send(ELSEWHERE, 10);
    put_send(HERE, 10);
    receive_all(m);
    pump_often(m);
    conn_check_times(m->c);
    CHECK(!m->c->closing);
    window_place(m->c->window, 0)->request_us -= 2 * n.options.request_timeout_us;
    conn_check_times(m->c);
    CHECK(m->c->closing);
    EXPECT(m, STATUS_TASK_TIMEOUT);
    CHECK(away.asked[0].cancelled);
    caller from = asked(0);
    caller_dropped(&from);
    close_one(m);
}

static void test_a_stopping_server_answers_what_is_in_work_and_says_goodbye(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    put_send(ELSEWHERE, 10);
    put_send(HERE, 10);
    put_poll(HERE);
    receive_all(m);
    net_close_all(&n, STATUS_DISCONNECTED);
    pump_often(m);
    CHECK(!m->c->closing);
    answer(0, 0);
    EXPECT(m, 0, 0, STATUS_DISCONNECTED);
    close_one(m);
}

static void test_a_connection_moves_when_its_window_is_empty(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    m->c->stream.movable = true;
    for (uint32_t i = 0; i < MOVE_AFTER_REQUESTS + 4; i++) put_send(ELSEWHERE, 10);
    receive_all(m);
    CHECK_EQUAL(in_work(m), MOVE_AFTER_REQUESTS);
    for (uint32_t i = 0; i + 1 < MOVE_AFTER_REQUESTS; i++) answer(i, 0);
    pump_often(m);
    CHECK(m->c->state == CONN_WINDOW);
    answer(MOVE_AFTER_REQUESTS - 1, 0);
    await_output(m, MOVE_AFTER_REQUESTS * 8);
    CHECK(m->c->state == CONN_MOVING);
    CHECK_EQUAL(away.count, MOVE_AFTER_REQUESTS);
    CHECK_EQUAL(k->events.list[k->events.count - 1].kind, EVENT_MOVE);
    CHECK(m->c->input.length > 0); /* goes along */
    events_clear(&k->events);
    close_one(m);
}

int main(void) {
    RUN(test_what_comes_together_is_written_and_answered_together);
    RUN(test_one_request_at_a_time_has_no_window);
    RUN(test_answers_keep_the_order_of_the_requests);
    RUN(test_a_poll_and_what_python_decides_wait_until_they_are_alone);
    RUN(test_a_full_ring_of_descriptors_makes_the_rest_wait_in_order);
    RUN(test_requests_told_to_ask_again_keep_their_place_or_are_not_carried_out);
    RUN(test_an_owner_that_dies_closes_the_connection_and_frees_it_when_all_have_ended);
    RUN(test_nothing_behind_an_answer_that_closes_is_carried_out);
    RUN(test_what_comes_while_the_device_works_is_in_work_too);
    RUN(test_a_reader_that_does_not_read_fills_its_window_and_no_more);
    RUN(test_the_oldest_request_decides_whether_the_time_is_over);
    RUN(test_a_stopping_server_answers_what_is_in_work_and_says_goodbye);
    RUN(test_a_connection_moves_when_its_window_is_empty);
    return check_report();
}
