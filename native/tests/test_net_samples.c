/* Requests that are traced: which ones, what is told of them, and that their places come back. */
#include "test_net_window_support.h"

/* Takes those that have ended; how many. */
static uint32_t take(sample *out, uint32_t room) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < SAMPLES_MAX; i++) {
        sample *one = &n.samples.places[i];
        if (one->state != SAMPLE_ENDED) continue;
        if (count < room) out[count] = *one;
        count++;
        one->state = SAMPLE_FREE;
    }
    return count;
}

static uint32_t open_places(void) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < SAMPLES_MAX; i++) count += n.samples.places[i].state == SAMPLE_OPEN;
    return count;
}

static memory_stream *open_sampled(uint32_t every) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    CHECK_EQUAL(samples_open(&n.samples, every), 0);
    return m;
}

static void test_nothing_is_chosen_while_it_is_off(void) {
    memory_stream *m = open_one(LEVEL_WRITTEN);
    put_send(HERE, 10);
    receive_all(m);
    await_output(m, 8);
    CHECK(n.samples.places == NULL && m->c->sample == NULL);
    close_one(m);
}

static void test_one_of_three_is_told_with_what_it_begins_with(void) {
    memory_stream *m = open_sampled(3);
    sample told[8];
    for (unsigned i = 1; i <= 7; i++) {
        put_send(HERE, 100);
        receive_all(m);
        await_output(m, i * 8);
    }
    CHECK_EQUAL(take(told, 8), 2);
    CHECK_EQUAL(told[0].code, CODE_SEND_MESSAGES);
    CHECK_EQUAL(told[0].status, 0);
    CHECK_EQUAL(told[0].connection, conn_id(m->c));
    CHECK_EQUAL(told[0].length, 4 + 22 + 16 + RECORD_BYTES(100));
    CHECK_EQUAL(told[0].begin_length, told[0].length);
    CHECK_EQUAL(told[0].begin[4 + 2], HERE);
    CHECK(told[0].took_us >= 0);
    close_one(m);
}

static void test_a_refusal_is_told_with_its_status(void) {
    memory_stream *m = open_sampled(1);
    sample told[8];
    put_send(ELSEWHERE, 10);
    receive_all(m);
    pump_often(m);
    CHECK_EQUAL(open_places(), 1);
    CHECK_EQUAL(take(told, 8), 0); /* not answered yet */
    answer(0, STATUS_CANNOT_WRITE_TO_FILE);
    EXPECT(m, STATUS_CANNOT_WRITE_TO_FILE);
    CHECK_EQUAL(take(told, 8), 1);
    CHECK_EQUAL(told[0].status, STATUS_CANNOT_WRITE_TO_FILE);
    close_one(m);
}

static void test_requests_in_work_together_are_told_each(void) {
    memory_stream *m = open_sampled(2);
    sample told[8];
    for (int i = 0; i < 6; i++) put_send(HERE, 5000);
    receive_all(m);
    CHECK_EQUAL(in_work(m), 6);
    EXPECT(m, 0, 0, 0, 0, 0, 0);
    CHECK_EQUAL(take(told, 8), 3);
    CHECK_EQUAL(told[2].begin_length, SAMPLE_BYTES);
    close_one(m);
}

static void test_a_client_that_goes_gives_its_places_back(void) {
    memory_stream *m = open_sampled(1);
    for (int i = 0; i < 4; i++) put_send(ELSEWHERE, 10);
    receive_all(m);
    CHECK_EQUAL(open_places(), 4);
    m->ended = true;
    conn_close(m->c);
    pump_often(m);
    for (uint32_t i = 0; i < 4; i++) {
        caller from = asked(i);
        caller_dropped(&from);
    }
    pump_often(m);
    CHECK(m->closed);
    free(m);
    CHECK_EQUAL(n.conns.count, 0);
    CHECK_EQUAL(open_places(), 0);
    close_net();
}

static void test_without_a_free_place_nothing_is_chosen_and_it_is_counted(void) {
    memory_stream *m = open_sampled(1);
    sample told[1];
    for (unsigned i = 1; i <= SAMPLES_MAX + 5; i++) {
        put_ping();
        receive_all(m);
        await_output(m, i * 8);
    }
    CHECK_EQUAL(n.samples.missed, 5);
    CHECK_EQUAL(take(told, 1), SAMPLES_MAX);
    CHECK_EQUAL(told[0].begin_length, 0);
    close_one(m);
}

static void test_a_ping_with_a_payload_that_is_not_kept_is_told_without_it(void) {
    memory_stream *m = open_sampled(1);
    sample told[2];
    put_head(CODE_PING, 5000);
    receive_all(m);
    await_output(m, 8);
    CHECK_EQUAL(take(told, 2), 1);
    CHECK_EQUAL(told[0].code, CODE_PING);
    CHECK_EQUAL(told[0].begin_length, 0);
    close_one(m);
}

int main(void) {
    RUN(test_a_ping_with_a_payload_that_is_not_kept_is_told_without_it);
    RUN(test_nothing_is_chosen_while_it_is_off);
    RUN(test_one_of_three_is_told_with_what_it_begins_with);
    RUN(test_a_refusal_is_told_with_its_status);
    RUN(test_requests_in_work_together_are_told_each);
    RUN(test_a_client_that_goes_gives_its_places_back);
    RUN(test_without_a_free_place_nothing_is_chosen_and_it_is_counted);
    return check_report();
}
