/* The believed clock and the one of stamps: jumps of the wall clock, starts, what was stored while one was doubted. */
#include "check.h"
#include "stepped_clock.h"
#include "log/expiry_clock.h"

#define SECOND UINT64_C(1000000)
#define HOUR (3600 * SECOND)

static expiry_clock fresh(uint64_t jump_max_us) {
    wall_now = 5000000 * SECOND;
    monotonic_now = 7000000;
    return (expiry_clock){.wall_us = wall, .monotonic_us = monotonic, .own = {.jump_max_us = jump_max_us}};
}

static void test_a_jump_either_way_is_doubted_as_long_as_it_is_far_or_as_the_bound(void) {
    const struct {
        int64_t jump_s, doubted_s;
    } cases[] = {{2, 2}, {-2, 2}, {1799, 1799}, {7200, 3600}, {-86400, 3600}, {31536000, 3600}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expiry_clock c = fresh(HOUR);
        uint64_t before = expiry_clock_now(&c);
        wall_now += (uint64_t)(cases[i].jump_s * (int64_t)SECOND);
        CHECK_EQUAL(expiry_clock_now(&c), before);
        CHECK_EQUAL(expiry_clock_stamp(&c), before);
        CHECK_EQUAL(c.own.jumps, 1);
        CHECK_EQUAL((uint64_t)c.own.jump_us, (uint64_t)(cases[i].jump_s * (int64_t)SECOND));
        pass((uint64_t)cases[i].doubted_s * SECOND - 1);
        CHECK_EQUAL(expiry_clock_now(&c), before + (uint64_t)cases[i].doubted_s * SECOND - 1);
        pass(1);
        CHECK_EQUAL(expiry_clock_now(&c), wall_now);
        CHECK_EQUAL(expiry_clock_stamp(&c), wall_now);
        CHECK_EQUAL(c.own.jump_us, 0);
    }
}

static void test_a_jump_that_is_set_right_leaves_nothing(void) {
    expiry_clock c = fresh(HOUR);
    expiry_clock_now(&c);
    wall_now += 365 * 24 * HOUR;
    pass(3599 * SECOND);
    CHECK(expiry_clock_now(&c) < wall_now);
    pass(SECOND / 2); /* the doubt began with the look */
    wall_now -= 365 * 24 * HOUR;
    CHECK_EQUAL(expiry_clock_now(&c), wall_now);
    CHECK_EQUAL(expiry_clock_stamp(&c), wall_now);
    CHECK_EQUAL(expiry_clock_reaches(&c, wall_now, 5), wall_now + 5);
    CHECK_EQUAL(expiry_clock_first_younger(&c, wall_now, 5), wall_now - 4);
}

static void test_another_jump_within_a_doubt_begins_a_doubt_of_its_own(void) {
    expiry_clock c = fresh(HOUR);
    uint64_t before = expiry_clock_now(&c);
    wall_now += 2 * HOUR;
    expiry_clock_now(&c);
    pass(3500 * SECOND);
    wall_now += 365 * 24 * HOUR;
    CHECK_EQUAL(expiry_clock_now(&c), before + 3500 * SECOND);
    pass(3599 * SECOND);
    CHECK_EQUAL(expiry_clock_now(&c), before + 7099 * SECOND);
    CHECK_EQUAL(c.own.jumps, 2);
    pass(SECOND);
    CHECK_EQUAL(expiry_clock_now(&c), wall_now);
}

static void test_a_clock_that_is_slewed_or_has_no_bound_is_followed(void) {
    expiry_clock c = fresh(HOUR);
    for (int i = 0; i < 1000; i++) {
        wall_now += i % 2 != 0 ? SECOND - 1 : 1 - SECOND;
        CHECK_EQUAL(expiry_clock_now(&c), wall_now);
        pass(1000);
    }
    c = fresh(0);
    expiry_clock_now(&c);
    wall_now -= 24 * HOUR;
    CHECK_EQUAL(expiry_clock_now(&c), wall_now);
    CHECK_EQUAL(c.own.jumps, 0);
}

static void test_the_steady_clock_takes_part_in_no_jump(void) {
    expiry_clock c = fresh(0);
    expiry_clock_now(&c);
    uint64_t steady = expiry_clock_steady(&c);
    wall_now += 24 * HOUR;
    CHECK_EQUAL(expiry_clock_steady(&c), steady);
    pass(3);
    CHECK_EQUAL(expiry_clock_steady(&c), steady + 3);
    CHECK_EQUAL(expiry_clock_steady_at(&c, wall_now - 24 * HOUR, wall_now, steady), steady - 24 * HOUR);
    CHECK_EQUAL(expiry_clock_steady_at(&c, wall_now + HOUR, wall_now, steady), steady); /* ahead: it begins now */
    CHECK_EQUAL(expiry_clock_steady_at(&c, 0, wall_now, 5), 0);
}

/* Two hours too late until it was set right: what was stored since then is an hour old when that is believed. */
static void test_what_is_stored_while_a_clock_is_doubted_ages_from_the_end_of_the_doubt(void) {
    expiry_clock c = fresh(HOUR);
    uint64_t old = expiry_clock_stamp(&c);
    pass(60 * SECOND);
    wall_now += 2 * HOUR;
    uint64_t first = expiry_clock_stamp(&c);
    CHECK_EQUAL(first, old + 60 * SECOND);
    pass(1800 * SECOND);
    uint64_t middle = expiry_clock_stamp(&c);
    pass(1800 * SECOND);
    uint64_t ended = expiry_clock_now(&c);
    CHECK_EQUAL(ended, wall_now);
    CHECK_EQUAL(expiry_clock_reaches(&c, old, HOUR), old + HOUR);
    CHECK_EQUAL(expiry_clock_reaches(&c, first, HOUR), ended + HOUR);
    CHECK_EQUAL(expiry_clock_reaches(&c, middle, HOUR), ended + HOUR);
    CHECK_EQUAL(expiry_clock_reaches(&c, ended, HOUR), ended + HOUR);
    CHECK_EQUAL(expiry_clock_reaches(&c, middle, UINT64_MAX), UINT64_MAX);
    CHECK_EQUAL(expiry_clock_first_younger(&c, ended + HOUR - 1, HOUR), first);
    CHECK_EQUAL(expiry_clock_first_younger(&c, ended + HOUR, HOUR), ended + 1);
    CHECK_EQUAL(expiry_clock_first_younger(&c, ended, 5 * HOUR), ended - 5 * HOUR + 1);
    clock_memory m; /* a start knows it, too */
    expiry_clock_recall(&c, &m);
    expiry_clock d = fresh(HOUR);
    wall_now = ended;
    m.since_boot_us = 0; /* a boot later */
    expiry_clock_begin(&d, &m);
    CHECK_EQUAL(expiry_clock_reaches(&d, middle, HOUR), ended + HOUR);
}

static void test_the_last_four_spans_of_doubt_are_remembered(void) {
    expiry_clock c = fresh(HOUR);
    expiry_clock_now(&c);
    uint64_t stamps[SHARED_DOUBTS + 1], ended[SHARED_DOUBTS + 1];
    for (unsigned i = 0; i <= SHARED_DOUBTS; i++) {
        pass(60 * SECOND);
        wall_now += 2 * HOUR;
        stamps[i] = expiry_clock_stamp(&c);
        pass(HOUR);
        ended[i] = expiry_clock_now(&c);
        CHECK_EQUAL(ended[i], wall_now);
    }
    CHECK_EQUAL(expiry_clock_reaches(&c, stamps[0], HOUR), stamps[0] + HOUR); /* by its stamp: too early */
    for (unsigned i = 1; i <= SHARED_DOUBTS; i++)
        CHECK_EQUAL(expiry_clock_reaches(&c, stamps[i], HOUR), ended[i] + HOUR);
}

static void test_a_start_goes_on_with_what_was_known(void) {
    expiry_clock c = fresh(HOUR);
    expiry_clock_begin(&c, &(clock_memory){.believed_us = wall_now - 2 * HOUR}); /* after a boot */
    CHECK_EQUAL(expiry_clock_stamp(&c), wall_now);
    CHECK_EQUAL(expiry_clock_now(&c), wall_now - 2 * HOUR);
    CHECK_EQUAL(c.own.jumps, 1);
    pass(HOUR);
    CHECK_EQUAL(expiry_clock_now(&c), wall_now);
    c = fresh(HOUR);
    clock_memory within = {.believed_us = wall_now - 2 * HOUR, .stamps_us = wall_now - 2 * HOUR};
    expiry_clock_begin(&c, &within);
    CHECK_EQUAL(expiry_clock_stamp(&c), wall_now - 2 * HOUR);
    c = fresh(HOUR);
    monotonic_now = (int64_t)(2 * HOUR);
    within.believed_doubted_us = within.stamps_doubted_us = 3000 * SECOND; /* and what has passed of the doubt counts */
    expiry_clock_begin(&c, &within);
    CHECK_EQUAL(expiry_clock_stamp(&c), wall_now - 2 * HOUR);
    pass(600 * SECOND);
    CHECK_EQUAL(expiry_clock_stamp(&c), wall_now);
    CHECK_EQUAL(expiry_clock_now(&c), wall_now);
    c = fresh(HOUR);
    expiry_clock_begin(&c, &(clock_memory){0}); /* nothing is known */
    CHECK_EQUAL(expiry_clock_now(&c), wall_now);
}

/* What the last run knew is read, and taken up seconds later on a machine that is busy. */
static void test_a_start_that_is_late_goes_on_from_the_moment_at_which_that_was_known(void) {
    expiry_clock c = fresh(HOUR);
    uint64_t began = expiry_clock_now(&c);
    wall_now += 2 * HOUR;
    expiry_clock_now(&c);
    clock_memory m;
    expiry_clock_recall(&c, &m);
    pass(5 * SECOND);
    expiry_clock d = fresh(HOUR);
    wall_now += 2 * HOUR;
    pass(5 * SECOND);
    expiry_clock_begin(&d, &m);
    CHECK_EQUAL(expiry_clock_now(&d), began + 5 * SECOND);
    CHECK_EQUAL(expiry_clock_stamp(&d), began + 5 * SECOND);
    pass(3595 * SECOND - 2);
    CHECK(expiry_clock_now(&d) < wall_now); /* the doubt goes on, and ends when it should */
    pass(1);
    CHECK_EQUAL(expiry_clock_now(&d), wall_now);
}

static unsigned pauses;

static uint64_t wall_after_a_pause(void *context) {
    if (pauses > 0) {
        pauses--;
        pass(5 * SECOND);
    }
    return wall(context);
}

static void test_a_process_that_pauses_between_two_clocks_sees_no_jump(void) {
    expiry_clock c = fresh(HOUR);
    c.wall_us = wall_after_a_pause;
    pauses = 2;
    CHECK_EQUAL(expiry_clock_now(&c), wall_now); /* the first look */
    for (pauses = 2; pauses > 0;) CHECK_EQUAL(expiry_clock_now(&c), wall_now);
    CHECK_EQUAL(c.own.jumps, 0);
    expiry_clock d = fresh(HOUR);
    d.wall_us = wall_after_a_pause;
    pauses = 2;
    expiry_clock_begin(&d, &(clock_memory){0});
    CHECK_EQUAL(expiry_clock_now(&d), wall_now);
    CHECK_EQUAL(d.own.jumps, 0);
}

/* The clock of a boot was wrong for five minutes; what is stored meanwhile has stamps of that. */
static void test_a_boot_with_a_wrong_clock_loses_nothing_when_it_is_set_right(void) {
    const struct {
        int64_t wrong_s, off_s;
    } cases[] = {{-4999000, 60}, {-7200, 1800}, {-7200, 18000}, {7200, 60}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expiry_clock c = fresh(HOUR);
        uint64_t before = wall_now;
        wall_now += (uint64_t)((cases[i].off_s + cases[i].wrong_s) * (int64_t)SECOND);
        expiry_clock_begin(&c, &(clock_memory){.believed_us = before});
        uint64_t stored = expiry_clock_stamp(&c), age = 20 * 60 * SECOND;
        pass(300 * SECOND);
        uint64_t now = expiry_clock_now(&c);
        CHECK(expiry_clock_first_younger(&c, now, age) <= stored);
        CHECK(expiry_clock_reaches(&c, stored, age) > now);
        wall_now -= (uint64_t)(cases[i].wrong_s * (int64_t)SECOND);
        expiry_clock_now(&c);
        bool nearer = cases[i].off_s < 7200;
        CHECK(!nearer || expiry_clock_stamp(&c) == wall_now);
        for (int minute = 0; minute < 14; minute++) {
            now = expiry_clock_now(&c);
            CHECK(expiry_clock_first_younger(&c, now, age) <= stored);
            CHECK(expiry_clock_reaches(&c, stored, age) > now);
            pass(60 * SECOND);
        }
        pass(46 * 60 * SECOND);
        now = expiry_clock_now(&c);
        CHECK_EQUAL(now, wall_now);
        CHECK_EQUAL(expiry_clock_stamp(&c), wall_now);
        if (!nearer) CHECK(expiry_clock_first_younger(&c, now, age) <= stored); /* the doubt has just ended */
    }
}

/* What is stamped by the believed clock itself, as uses of an offset, while it doubts a boot. */
static void test_the_end_of_a_doubt_of_a_boot_is_remembered(void) {
    expiry_clock c = fresh(HOUR);
    uint64_t before = wall_now;
    wall_now += 8 * 24 * HOUR;
    expiry_clock_begin(&c, &(clock_memory){.believed_us = before});
    uint64_t used = expiry_clock_now(&c);
    pass(HOUR);
    uint64_t now = expiry_clock_now(&c);
    CHECK_EQUAL(now, wall_now);
    CHECK(expiry_clock_first_younger(&c, now, 7 * 24 * HOUR) <= used);
    CHECK_EQUAL(expiry_clock_reaches(&c, used, HOUR), now + HOUR);
}

static void test_those_who_share_a_clock_go_on_without_the_one_that_looks(void) {
    shared_clock shared = {.jump_max_us = HOUR};
    expiry_clock looks = fresh(0), reads = looks;
    looks.shared = reads.shared = &shared;
    CHECK_EQUAL(expiry_clock_now(&reads), wall_now); /* before its first look */
    looks.looks = true;
    expiry_clock_now(&looks);
    uint64_t before = wall_now;
    wall_now += 24 * HOUR;
    CHECK_EQUAL(expiry_clock_now(&reads), before); /* of a jump that nobody has seen yet */
    CHECK_EQUAL(expiry_clock_stamp(&reads), before);
    pass(24 * HOUR);
    CHECK_EQUAL(expiry_clock_stamp(&reads), before + 24 * HOUR);
    expiry_clock_now(&looks);
    pass(HOUR);
    expiry_clock_now(&looks);
    CHECK_EQUAL(expiry_clock_now(&reads), wall_now);
}

static void test_numbers_of_sessions_grow_whatever_the_clock_does(void) {
    shared_clock shared = {.jump_max_us = 0};
    expiry_clock one = fresh(0), other = one;
    one.shared = other.shared = &shared;
    uint64_t last = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t number = expiry_clock_session_number(i % 2 != 0 ? &one : &other);
        CHECK(number > last);
        last = number;
        wall_now += i % 3 != 0 ? (uint64_t)-(int64_t)HOUR : HOUR;
    }
}

int main(void) {
    RUN(test_a_jump_either_way_is_doubted_as_long_as_it_is_far_or_as_the_bound);
    RUN(test_a_jump_that_is_set_right_leaves_nothing);
    RUN(test_another_jump_within_a_doubt_begins_a_doubt_of_its_own);
    RUN(test_a_clock_that_is_slewed_or_has_no_bound_is_followed);
    RUN(test_the_steady_clock_takes_part_in_no_jump);
    RUN(test_what_is_stored_while_a_clock_is_doubted_ages_from_the_end_of_the_doubt);
    RUN(test_the_last_four_spans_of_doubt_are_remembered);
    RUN(test_a_start_goes_on_with_what_was_known);
    RUN(test_a_start_that_is_late_goes_on_from_the_moment_at_which_that_was_known);
    RUN(test_a_process_that_pauses_between_two_clocks_sees_no_jump);
    RUN(test_a_boot_with_a_wrong_clock_loses_nothing_when_it_is_set_right);
    RUN(test_the_end_of_a_doubt_of_a_boot_is_remembered);
    RUN(test_those_who_share_a_clock_go_on_without_the_one_that_looks);
    RUN(test_numbers_of_sessions_grow_whatever_the_clock_does);
    return check_report();
}
