/* How many events Python gets in a turn (core/event.h). */
#include "core/event.h"

#include "check.h"

static void test_turns_that_are_long_halve_what_python_gets_down_to_the_least(void) {
    event_queue q;
    CHECK_EQUAL(events_open(&q, 4), 0);
    CHECK_EQUAL(q.wanted, EVENTS_MAX);
    for (uint32_t wanted = EVENTS_MAX / 2; wanted > EVENTS_MIN; wanted /= 2) {
        events_after_turn_of_python(&q, PYTHON_TURN_US + 1);
        CHECK_EQUAL(q.wanted, wanted);
    }
    for (int i = 0; i < 3; i++) events_after_turn_of_python(&q, PYTHON_TURN_US + 1);
    CHECK_EQUAL(q.wanted, EVENTS_MIN);
    events_after_turn_of_python(&q, PYTHON_TURN_US); /* neither long nor short */
    CHECK_EQUAL(q.wanted, EVENTS_MIN);
    for (int i = 0; i < 10; i++) events_after_turn_of_python(&q, 100);
    CHECK_EQUAL(q.wanted, EVENTS_MAX);
    events_close(&q);
}

static void test_strangers_have_a_part_of_what_python_gets(void) {
    event_queue q;
    CHECK_EQUAL(events_open(&q, 4), 0);
    q.anonymous = EVENTS_ANONYMOUS_MAX;
    CHECK(events_are_enough(&q, true) && !events_are_enough(&q, false));
    for (int i = 0; i < 10; i++) events_after_turn_of_python(&q, PYTHON_TURN_US + 1);
    q.anonymous = EVENTS_MIN / EVENTS_ANONYMOUS_PART - 1;
    CHECK(!events_are_enough(&q, true));
    q.anonymous++;
    CHECK(events_are_enough(&q, true) && !events_are_enough(&q, false));
    q.count = EVENTS_MIN;
    CHECK(events_are_enough(&q, false));
    q.count = 0;
    events_close(&q);
}

int main(void) {
    RUN(test_turns_that_are_long_halve_what_python_gets_down_to_the_least);
    RUN(test_strangers_have_a_part_of_what_python_gets);
    return check_report();
}
