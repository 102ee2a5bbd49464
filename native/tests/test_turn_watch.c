/* How long passes of the loop compute (engine/turn_watch.h). */
#include "engine/turn_watch.h"
#include "check.h"

#include <unistd.h>

#define LONG_US 5000

static void compute(int64_t us) {
    int64_t until_us = clock_thread_cpu_us() + us;
    while (clock_thread_cpu_us() < until_us) continue;
}

static void test_a_pass_that_computes_is_measured_until_somebody_takes_it(void) {
    turn_watch w = {0};
    int64_t began_us = clock_monotonic_us();
    turn_watch_begin(&w, began_us);
    compute(LONG_US);
    turn_watch_end(&w, began_us, clock_monotonic_us());
    began_us = clock_monotonic_us();
    compute(LONG_US / 2);
    turn_watch_end(&w, began_us, clock_monotonic_us());
    int64_t longest_us = turn_watch_take(&w);
    CHECK(longest_us >= LONG_US - 1); /* two readings, each in whole microseconds */
    CHECK_EQUAL(turn_watch_take(&w), 0);
}

static void test_a_pass_that_waits_is_not_long(void) {
    turn_watch w = {0};
    int64_t began_us = clock_monotonic_us();
    turn_watch_begin(&w, began_us);
    usleep(20 * LONG_US);
    turn_watch_end(&w, began_us, clock_monotonic_us());
    CHECK(turn_watch_take(&w) < LONG_US);
}

static void test_what_was_computed_before_is_not_charged(void) {
    turn_watch w = {0};
    turn_watch_begin(&w, clock_monotonic_us());
    compute(LONG_US); /* Python */
    int64_t began_us = clock_monotonic_us();
    turn_watch_begin(&w, began_us);
    usleep(20 * LONG_US);
    turn_watch_end(&w, began_us, clock_monotonic_us());
    CHECK(turn_watch_take(&w) < LONG_US);
}

static void test_passes_shorter_than_a_millisecond_do_not_add_up(void) {
    turn_watch w = {0};
    turn_watch_begin(&w, clock_monotonic_us());
    int64_t now_us = clock_monotonic_us();
    for (int i = 0; i < 1000; i++, now_us += TURN_WATCH_LOOK_US / 2) {
        compute(TURN_WATCH_LOOK_US / 20);
        turn_watch_end(&w, now_us, now_us + TURN_WATCH_LOOK_US / 2); /* by a clock of our own */
    }
    CHECK_EQUAL(turn_watch_take(&w), 0);
}

int main(void) {
    RUN(test_a_pass_that_computes_is_measured_until_somebody_takes_it);
    RUN(test_a_pass_that_waits_is_not_long);
    RUN(test_what_was_computed_before_is_not_charged);
    RUN(test_passes_shorter_than_a_millisecond_do_not_add_up);
    return check_report();
}
