/* Several requests of one connection in work: order of answers, what has to wait until it is alone, and what becomes of
 * them when an owner says no, dies, or the client does not read. The owner on another shard is the test. */
#include "test_net_window_support.h"

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
