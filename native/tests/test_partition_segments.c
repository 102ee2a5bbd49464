/* When segments of a partition are sealed before they are full by the server's size, and the limit of its bytes. */
#include "stepped_clock.h"
#include "test_partition_support.h"

#include "log/expiry_clock.h"

#define SECOND UINT64_C(1000000)
#define RECORD 264u /* of 200 bytes */

static char trash[160];
static expiry_clock test_clock;

static partition *opened(model *m, uint64_t segment_size_bytes, const partition_limits *limits) {
    partition_options o = options_of(segment_size_bytes);
    test_clock = (expiry_clock){.wall_us = wall, .monotonic_us = monotonic};
    wall_now = 1000 * SECOND;
    monotonic_now = 5000000;
    o.clock = &test_clock;
    o.limits = limits;
    snprintf(trash, sizeof(trash), "%s/trash-%s", test_root, strrchr(o.directory, '/') + 1);
    model_init(m, segment_size_bytes);
    return partition_open(&o, NULL, 0);
}

static void step(partition *p) {
    partition_cleaned done;
    CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
    sync_all(p);
    monotonic_now += 1500000;
}

static void steps(partition *p) {
    for (int i = 0; i < 60; i++) step(p);
}

static void send_one(partition *p, model *m) { append(p, m, 1, 200, wall_now); }

static void close_all(partition *p, model *m) {
    partition_close(p);
    partition_release(p);
    model_free(m);
}

static void test_a_segment_grows_to_the_size_of_its_topic(void) {
    static model m;
    partition *p = opened(&m, 1 << 20, &(partition_limits){.segment_bytes = 4 * RECORD});
    for (int i = 0; i < 20; i++) send_one(p, &m); /* full by the fourth, sealed with the fifth */
    CHECK_EQUAL(partition_segment_count(p), 5);
    CHECK_EQUAL(partition_active_start(p), 20);
    partition_set_limits(p, &(partition_limits){.segment_bytes = 1 << 16});
    for (int i = 0; i < 20; i++) send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 20);
    partition_set_limits(p, &(partition_limits){.segment_bytes = RECORD}); /* it is larger than that: sealed with one */
    send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 41);
    partition_set_limits(p, &(partition_limits){0}); /* the server's again */
    for (int i = 0; i < 100; i++) send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 41);
    CHECK_EQUAL(partition_messages(p), m.count);
    close_all(p, &m);
}

static void test_a_segment_that_is_too_old_takes_no_message(void) {
    static model m;
    partition *p = opened(&m, 1 << 20, &(partition_limits){.segment_age_us = 10 * SECOND});
    wall_now += 100 * SECOND; /* nobody has written: nothing is old */
    send_one(p, &m);
    wall_now += 10 * SECOND - 1;
    send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 0);
    wall_now += 1;
    send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 2);
    wall_now += 9 * SECOND;
    send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 2);
    partition_set_limits(p, &(partition_limits){.segment_age_us = 5 * SECOND}); /* counts for what is there */
    send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 4);
    partition_set_limits(p, &(partition_limits){0});
    wall_now += 1000 * SECOND;
    send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 4);
    CHECK_EQUAL(partition_messages(p), m.count);
    close_all(p, &m);
}

static void test_an_idle_segment_is_sealed_once(void) {
    static model m;
    partition *p = opened(&m, 1 << 20, &(partition_limits){.segment_age_us = 10 * SECOND});
    steps(p);
    CHECK_EQUAL(partition_segment_count(p), 0);
    send_one(p, &m);
    wall_now += 10 * SECOND - 1;
    step(p);
    CHECK_EQUAL(partition_segment_count(p), 1);
    wall_now += 1;
    step(p);
    CHECK_EQUAL(partition_segment_count(p), 2);
    CHECK_EQUAL(partition_active_start(p), 1);
    wall_now += 1000 * SECOND;
    steps(p);
    CHECK_EQUAL(partition_segment_count(p), 2);
    CHECK_EQUAL(partition_messages(p), 1);
    send_one(p, &m);
    CHECK_EQUAL(partition_active_start(p), 1);
    close_all(p, &m);
}

static void test_a_large_batch_rolls_an_old_segment_before_its_first_part(void) {
    static model m;
    partition *p = opened(&m, 64 << 20, &(partition_limits){.segment_age_us = 10 * SECOND});
    send_one(p, &m);
    wall_now += 10 * SECOND;
    append_batch b = {.messages = buffer, .count = 8, .length = make_records(buffer, 8, 700000, 700000)};
    while (partition_append_part(p, &b, wall_now)) continue;
    partition_append(p, &b, 1, wall_now + 30 * SECOND); /* it was begun in time */
    CHECK_EQUAL(b.status, 0);
    CHECK_EQUAL(b.first_offset, 1);
    CHECK_EQUAL(partition_active_start(p), 1);
    CHECK_EQUAL(partition_messages(p), 9);
    close_all(p, &m);
}

static void test_whole_segments_go_and_the_active_one_stays(void) {
    static model m;
    partition_limits limits = {.bytes_max = 12 * RECORD, .segment_bytes = 4 * RECORD};
    partition *p = opened(&m, 1 << 20, &limits);
    for (int i = 0; i < 12; i++) send_one(p, &m); /* segments of five: 0, 5, 10 */
    steps(p);
    CHECK_EQUAL(partition_first_offset(p), 0);
    send_one(p, &m);
    steps(p);
    CHECK_EQUAL(partition_first_offset(p), 5);
    CHECK_EQUAL(partition_size_bytes(p), 8 * RECORD);
    CHECK_EQUAL(partition_segment_count(p), 2); /* its files, too */
    for (int i = 0; i < 400; i++) send_one(p, &m);
    steps(p);
    CHECK(partition_size_bytes(p) <= limits.bytes_max && partition_size_bytes(p) > limits.bytes_max - 5 * RECORD);
    limits.bytes_max = 1;
    partition_set_limits(p, &limits);
    steps(p);
    CHECK_EQUAL(partition_first_offset(p), partition_active_start(p));
    CHECK_EQUAL(partition_segment_count(p), 1);
    CHECK(partition_messages(p) > 0);
    CHECK_EQUAL(partition_next_offset(p), m.count);
    close_all(p, &m);
}

static void test_stored_offsets_hold_whole_segments_back(void) {
    static model m;
    partition_limits limits = {.bytes_max = 1, .segment_bytes = 4 * RECORD, .size_held_us = 1000 * SECOND};
    partition *p = opened(&m, 1 << 20, &limits);
    for (int i = 0; i < 20; i++) send_one(p, &m);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 7), 0);
    steps(p);
    CHECK_EQUAL(partition_first_offset(p), 5); /* 5 to 9 are one segment */
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 9), 0);
    steps(p);
    CHECK_EQUAL(partition_first_offset(p), 10);
    wall_now += 1001 * SECOND; /* nobody holds them for longer */
    steps(p);
    CHECK_EQUAL(partition_first_offset(p), 20);
    close_all(p, &m);
}

static void test_a_stored_offset_that_moves_on_frees_no_more_than_the_size_wants(void) {
    static model m;
    partition_limits limits = {
        .bytes_max = 12 * RECORD, .segment_bytes = 4 * RECORD, .held_us = 1000 * SECOND, .size_held_us = 1000 * SECOND};
    partition *p = opened(&m, 1 << 20, &limits);
    for (int i = 0; i < 19; i++) send_one(p, &m); /* segments of five: 0, 5, 10, 15 */
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 2), 0);
    steps(p);
    CHECK_EQUAL(partition_first_offset(p), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 18), 0);
    steps(p);
    CHECK_EQUAL(partition_first_offset(p), 10);
    CHECK_EQUAL(partition_messages(p), 9);
    close_all(p, &m);
}

static void test_messages_go_soon_after_their_second(void) {
    for (int before = 0; before < 12; before++) {
        static model m;
        partition *p = opened(&m, 1 << 20, &(partition_limits){.messages_max = 1});
        partition_cleaned done;
        send_one(p, &m);
        for (int i = 0; i < before; i++, monotonic_now += 100000)
            CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
        send_one(p, &m);
        send_one(p, &m);
        int64_t sent = monotonic_now;
        for (int i = 0; i < 40 && partition_first_offset(p) < 2; i++, monotonic_now += 100000)
            CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
        CHECK(monotonic_now - sent > 1000000 && monotonic_now - sent <= 1400000);
        CHECK_EQUAL(partition_first_offset(p), 2);
        close_all(p, &m);
        test_root_remove();
        test_root_make();
    }
}

int main(void) {
    test_root_make();
    RUN(test_a_segment_grows_to_the_size_of_its_topic);
    RUN(test_a_segment_that_is_too_old_takes_no_message);
    RUN(test_an_idle_segment_is_sealed_once);
    RUN(test_a_large_batch_rolls_an_old_segment_before_its_first_part);
    RUN(test_whole_segments_go_and_the_active_one_stays);
    RUN(test_messages_go_soon_after_their_second);
    RUN(test_stored_offsets_hold_whole_segments_back);
    RUN(test_a_stored_offset_that_moves_on_frees_no_more_than_the_size_wants);
    test_root_remove();
    return check_report();
}
