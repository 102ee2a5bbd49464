/* Seats and fences: rotation, marks, what is undone, what is refused. */
#include "check.h"

#include <string.h>

#include "core/fence.h"
#include "core/seat.h"

static seat *three(seat **seats, uint64_t group, const char *key) {
    seat *s = seats_put(seats, group, (const uint8_t *)key, (uint32_t)strlen(key), 3);
    for (uint32_t i = 0; s != NULL && i < 3; i++) seat_set(s, i, 4 + i, SEAT_NONE, SEAT_NONE);
    if (s != NULL) s->last_polled = SEAT_NONE;
    return s;
}

static seat *find(seat **seats, const char *key, uint64_t version) {
    return seats_find(seats, (const uint8_t *)key, (uint32_t)strlen(key), version);
}

static void test_polls_rotate_over_all_partitions_and_leave_marks(void) {
    seat *seats = NULL, *s = three(&seats, 1, "a");
    seat_work work = {0};
    for (uint32_t i = 0; i < 7; i++) {
        REQUIRE(seat_begin(s, true, SEAT_NONE, i % 2 == 1, &work));
        CHECK_EQUAL(s->partitions[work.at].partition, 4 + i % 3);
        seat_polled(&work, i < 5 ? 2 : 0, 10 + i);
        CHECK(work.seat == NULL);
    }
    CHECK_EQUAL(s->rotation, 1);
    CHECK_EQUAL(s->last_polled, 4);
    CHECK_EQUAL(s->partitions[0].polled, 13); /* the last poll was empty */
    CHECK_EQUAL(s->partitions[0].committed, 13);
    CHECK_EQUAL(s->partitions[1].polled, 14);
    CHECK_EQUAL(s->partitions[1].committed, 11);
    CHECK_EQUAL((uint64_t)s->partitions[2].committed, (uint64_t)SEAT_NONE);
    seats_free(&seats);
}

static void test_a_named_partition_does_not_turn_the_rotation(void) {
    seat *seats = NULL, *s = three(&seats, 1, "a");
    seat_work work = {0};
    CHECK(seat_begin(s, true, 6, false, &work));
    CHECK_EQUAL(work.at, 2);
    CHECK_EQUAL(s->rotation, 0);
    CHECK_EQUAL(s->last_polled, 6);
    CHECK(!seat_begin(s, true, 7, false, &work)); /* not ours: Python decides */
    seats_free(&seats);
}

static void test_every_partition_of_a_large_seat_is_found_at_its_place(void) {
    enum { COUNT = 20000 };
    seat *seats = NULL, *s = seats_put(&seats, 1, (const uint8_t *)"a", 1, COUNT);
    seat_work work = {0};
    REQUIRE(s != NULL);
    for (uint32_t i = 0; i < COUNT; i++) seat_set(s, i, 7 * i, SEAT_NONE, SEAT_NONE);
    for (uint32_t i = 0; i < COUNT; i++) {
        REQUIRE(seat_begin(s, true, 7 * (int64_t)i, false, &work));
        CHECK_EQUAL(work.at, i);
        CHECK(!seat_begin(s, true, 7 * (int64_t)i + 1, false, &work));
    }
    CHECK(!seat_begin(s, true, (int64_t)1 << 40, false, &work));
    seats_free(&seats);
}

static void test_a_commit_without_a_partition_goes_to_the_one_polled_last(void) {
    seat *seats = NULL, *s = three(&seats, 1, "a");
    seat_work work = {0};
    CHECK(seat_begin(s, false, SEAT_NONE, false, &work));
    CHECK_EQUAL(work.at, 0);
    seat_committed(&work, true);
    CHECK_EQUAL((uint64_t)s->partitions[0].committed, (uint64_t)SEAT_NONE); /* nothing was polled */
    CHECK(seat_begin(s, true, 5, false, &work));
    seat_polled(&work, 1, 8);
    CHECK(seat_begin(s, false, SEAT_NONE, false, &work));
    CHECK_EQUAL(work.at, 1);
    work.offset = 8;
    seat_committed(&work, false);
    CHECK_EQUAL((uint64_t)s->partitions[1].committed, (uint64_t)SEAT_NONE);
    CHECK(seat_begin(s, false, 5, false, &work));
    work.offset = 8;
    seat_committed(&work, true);
    CHECK_EQUAL(s->partitions[1].committed, 8);
    s->last_polled = 9; /* pending by now */
    CHECK(!seat_begin(s, false, SEAT_NONE, false, &work));
    seats_free(&seats);
}

static void test_a_request_that_starts_over_leaves_no_trace(void) {
    seat *seats = NULL, *s = three(&seats, 1, "a");
    seat_work work = {0};
    seat_undo(&work);
    for (int i = 0; i < 3; i++) {
        CHECK(seat_begin(s, true, SEAT_NONE, true, &work));
        CHECK_EQUAL(work.at, 0);
        seat_undo(&work);
    }
    CHECK_EQUAL(s->rotation, 0);
    CHECK_EQUAL((uint64_t)s->last_polled, (uint64_t)SEAT_NONE);
    seats_free(&seats);
}

static void test_seats_are_found_by_bytes_and_version_and_have_a_limit(void) {
    seat *seats = NULL;
    char key[2] = "a";
    for (uint32_t i = 0; i < SEATS_MAX; i++, key[0]++) CHECK(three(&seats, i, key) != NULL);
    CHECK(three(&seats, 99, "z") == NULL);
    CHECK_EQUAL(find(&seats, "c", 0)->group, 2);
    CHECK_EQUAL(seats->group, 2);
    CHECK(find(&seats, "c", 1) == NULL);
    CHECK(find(&seats, "cc", 0) == NULL);
    CHECK(three(&seats, 2, "other words for it") != NULL);
    CHECK(find(&seats, "c", 0) == NULL);
    seat *taken = seats_take(&seats, 2);
    REQUIRE(taken != NULL);
    seat_free(taken);
    CHECK(seats_take(&seats, 2) == NULL);
    uint8_t long_key[SEAT_KEY_MAX + 1] = {0};
    CHECK(seats_put(&seats, 7777, long_key, sizeof long_key, 1) == NULL);
    seat *none = seats_put(&seats, 7777, long_key, SEAT_KEY_MAX, 0);
    seat_work work;
    REQUIRE(none != NULL);
    CHECK(!seat_begin(none, true, SEAT_NONE, true, &work));
    seats_free(&seats);
    CHECK(seats == NULL);
}

static void test_an_older_generation_does_not_pass(void) {
    fences f = {0};
    CHECK(fences_pass(&f, 1, 0));
    CHECK_EQUAL(f.count, 0);
    for (uint32_t group = 0; group < 100; group++) CHECK(fences_pass(&f, group, 5 + group));
    for (uint32_t group = 0; group < 100; group++) {
        CHECK(!fences_pass(&f, group, 4 + group));
        CHECK(fences_pass(&f, group, 5 + group));
        CHECK(fences_pass(&f, group, 0));
    }
    CHECK(fences_pass(&f, 3, 1000));
    CHECK(!fences_pass(&f, 3, 999));
    fences_drop(&f, 3);
    fences_drop(&f, 12345);
    CHECK(fences_pass(&f, 3, 1));
    CHECK(!fences_pass(&f, 99, 1));
    fences_free(&f);
}

int main(void) {
    RUN(test_polls_rotate_over_all_partitions_and_leave_marks);
    RUN(test_a_named_partition_does_not_turn_the_rotation);
    RUN(test_every_partition_of_a_large_seat_is_found_at_its_place);
    RUN(test_a_commit_without_a_partition_goes_to_the_one_polled_last);
    RUN(test_a_request_that_starts_over_leaves_no_trace);
    RUN(test_seats_are_found_by_bytes_and_version_and_have_a_limit);
    RUN(test_an_older_generation_does_not_pass);
    return check_report();
}
