/* Waiting polls (core/waiting_polls.h): what wakes each of them, once, and how many may wait. */
#include "test_core_support.h"

#include "core/waiting_polls.h"
#include "wire/classic_request.h"

#define MANY 2000u /* test_core_support.h */
#define OF_USER_MAX 1000u
#define ALSO_ELSEWHERE namespace_of(2, 1, 1)

typedef struct waiting {
    waiting_poll waiting_poll; /* first */
    unsigned woken, order;
} waiting;

static unsigned wakes;
static unsigned asked, told;
static bool link_has_room;

static void on_woken(waiting_poll *w) {
    waiting *of = (waiting *)w;
    of->woken++;
    of->order = ++wakes;
}

static bool on_ask_wake(remote *r, uint32_t shard, uint64_t ns, uint64_t incarnation) {
    (void)r, (void)shard, (void)ns, (void)incarnation;
    asked++;
    return link_has_room;
}

static void on_wake(remote *r, uint32_t shard, uint64_t ns) {
    (void)r, (void)ns;
    CHECK_EQUAL(shard, 1);
    told++;
}

static remote peers = {.ask_wake = on_ask_wake, .wake = on_wake};
static route_partition here, elsewhere, also_elsewhere;

static void begin(void) {
    open_core(LEVEL_WRITTEN);
    k->remote = &peers;
    here = (route_partition){.ns = NS_HERE, .incarnation = 1, .owner = 0};
    elsewhere = (route_partition){.ns = NS_ELSEWHERE, .incarnation = 1, .owner = 1};
    also_elsewhere = (route_partition){.ns = ALSO_ELSEWHERE, .incarnation = 1, .owner = 1};
    wakes = asked = told = 0;
    link_has_room = true;
}

static void enter(waiting *w, uint32_t user_id, int64_t until_us) {
    *w = (waiting){.waiting_poll = {.woken = on_woken}};
    CHECK(waiting_poll_enter(k, &w->waiting_poll, user_id, until_us));
}

static void test_a_waiting_poll_is_woken_once_by_the_first_of_its_partitions(void) {
    begin();
    waiting one, other;
    enter(&one, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &one.waiting_poll, &here));
    CHECK(waiting_poll_add(k, &one.waiting_poll, &elsewhere));
    enter(&other, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &other.waiting_poll, &also_elsewhere));
    CHECK_EQUAL(asked, 2);
    CHECK(core_owned(k, NS_HERE)->has_waiting_polls);
    waiting_polls_told(k, NS_ELSEWHERE);
    waiting_polls_told(k, NS_ELSEWHERE);
    waiting_polls_told(k, NS_HERE);
    CHECK_EQUAL(one.woken, 1);
    CHECK_EQUAL(other.woken, 0);
    CHECK(!core_owned(k, NS_HERE)->has_waiting_polls); /* a send costs nothing again */
    CHECK_EQUAL(k->waiting_polls.count, 1);
    waiting_poll_leave(k, &other.waiting_poll);
    waiting_poll_leave(k, &other.waiting_poll);
    CHECK_EQUAL(k->waiting_polls.count, 0);
    close_core();
}

static void test_a_partition_with_no_new_messages_wakes_no_poll(void) {
    begin();
    waiting one;
    enter(&one, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &one.waiting_poll, &here));
    waiting_polls_wake(core_owned(k, NS_HERE));
    CHECK_EQUAL(one.woken, 0);
    waiting_polls_ended(core_owned(k, NS_HERE));
    CHECK_EQUAL(one.woken, 1);
    close_core();
}

static void test_a_poll_cannot_wait_at_an_earlier_partition_or_over_a_full_link(void) {
    begin();
    waiting one;
    enter(&one, 1, INT64_MAX);
    route_partition before = here;
    before.incarnation = 2;
    CHECK(!waiting_poll_add(k, &one.waiting_poll, &before));
    link_has_room = false;
    CHECK(!waiting_poll_add(k, &one.waiting_poll, &elsewhere));
    waiting_poll_leave(k, &one.waiting_poll);
    CHECK_EQUAL(k->waiting_polls.count, 0);
    CHECK(!waiting_polls_asked(k, 1, NS_HERE, 2));
    CHECK(!waiting_polls_asked(k, 1, NS_ELSEWHERE, 1));
    close_core();
}

static void test_a_shard_that_asks_often_is_woken_once(void) {
    begin();
    for (int i = 0; i < 100; i++) CHECK(waiting_polls_asked(k, 1, NS_HERE, 1));
    CHECK(core_owned(k, NS_HERE)->has_waiting_polls);
    waiting_polls_told(k, NS_HERE);
    waiting_polls_told(k, NS_HERE);
    CHECK_EQUAL(told, 1);
    CHECK(!core_owned(k, NS_HERE)->has_waiting_polls);
    close_core();
}

static void test_an_owner_is_asked_once_for_a_crowd_and_again_after_its_answer(void) {
    begin();
    waiting crowd[3], again[3];
    k->now_us = 5;
    for (int i = 0; i < 3; i++) {
        enter(&crowd[i], 1, INT64_MAX);
        CHECK(waiting_poll_add(k, &crowd[i].waiting_poll, &elsewhere));
    }
    CHECK_EQUAL(asked, 1);
    waiting_polls_told(k, NS_ELSEWHERE);
    CHECK_EQUAL(wakes, 3);
    for (int i = 0; i < 3; i++) { /* the answer to the first question is no answer to later ones */
        enter(&again[i], 1, INT64_MAX);
        if (i == 2) k->now_us += 1000000;
        CHECK(waiting_poll_add(k, &again[i].waiting_poll, &elsewhere));
    }
    CHECK_EQUAL(asked, 3);
    waiting_polls_owner_down(k, 1);
    CHECK_EQUAL(wakes, 6);
    enter(&crowd[0], 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &crowd[0].waiting_poll, &elsewhere));
    CHECK_EQUAL(asked, 4);
    link_has_room = false;
    enter(&crowd[1], 1, INT64_MAX);
    CHECK(!waiting_poll_add(k, &crowd[1].waiting_poll, &also_elsewhere));
    waiting_polls_wake_all(k);
    close_core();
}

static void test_a_change_wakes_the_polls_of_its_user_topic_stream_and_owner(void) {
    begin();
    waiting local, far, stranger;
    enter(&local, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &local.waiting_poll, &here));
    enter(&far, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &far.waiting_poll, &elsewhere));
    enter(&stranger, 2, INT64_MAX);
    CHECK(waiting_poll_add(k, &stranger.waiting_poll, &also_elsewhere));
    waiting_polls_wake_topic(k, namespace_of(3, 1, 0));
    waiting_polls_wake_stream(k, 3);
    CHECK_EQUAL(wakes, 0);
    waiting_polls_wake_topic(k, NS_HERE);
    CHECK_EQUAL(local.woken, 1);
    CHECK_EQUAL(wakes, 1);
    waiting_polls_wake_user(k, 1);
    CHECK_EQUAL(far.woken, 1);
    CHECK_EQUAL(stranger.woken, 0);
    enter(&far, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &far.waiting_poll, &elsewhere));
    waiting_polls_owner_down(k, 1);
    CHECK_EQUAL(far.woken + stranger.woken, 2);
    enter(&far, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &far.waiting_poll, &elsewhere));
    waiting_polls_wake_stream(k, 2);
    CHECK_EQUAL(far.woken, 1);
    enter(&far, 1, INT64_MAX);
    waiting_polls_wake_all(k);
    CHECK_EQUAL(k->waiting_polls.count, 0);
    close_core();
}

static void test_deadlines_wake_polls_in_their_order(void) {
    begin();
    enum { COUNT = 1000 };
    waiting *all = calloc(COUNT, sizeof *all);
    k->now_us = 0;
    for (uint32_t i = 0; i < COUNT; i++) enter(&all[i], i, 1 + (int64_t)i * 7919 % COUNT);
    for (uint32_t i = 0; i < COUNT; i += 3)
        waiting_poll_leave(k, &all[i].waiting_poll); /* from the middle of the heap */
    waiting_polls_run(k, INT64_MAX);
    CHECK_EQUAL(wakes, 0);
    int64_t last = 0;
    while (k->waiting_polls.count > 0) {
        int64_t next = waiting_polls_next_us(&k->waiting_polls);
        CHECK(next > last);
        unsigned before = wakes;
        k->now_us = last = next;
        waiting_polls_run(k, INT64_MAX);
        CHECK_EQUAL(wakes, before + 1);
    }
    CHECK(waiting_polls_next_us(&k->waiting_polls) == INT64_MAX);
    for (uint32_t i = 0; i < COUNT; i++) CHECK_EQUAL(all[i].woken, i % 3 != 0);
    free(all);
    close_core();
}

static void test_a_crowd_is_woken_in_slices_and_later_polls_wait_on(void) {
    begin();
    enum { COUNT = 1000 };
    waiting *all = calloc(COUNT, sizeof *all), late;
    for (uint32_t i = 0; i < COUNT; i++) {
        enter(&all[i], 1, INT64_MAX);
        CHECK(waiting_poll_add(k, &all[i].waiting_poll, &elsewhere));
    }
    waiting_polls_told(k, NS_ELSEWHERE);
    CHECK_EQUAL(wakes, WAKES_AT_ONCE);
    CHECK(waiting_polls_next_us(&k->waiting_polls) <= k->now_us); /* the loop does not sleep */
    enter(&late, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &late.waiting_poll, &elsewhere));
    waiting_poll_leave(k, &all[COUNT / 2].waiting_poll);
    waiting_polls_run(k, 0); /* no time: a few */
    CHECK(wakes > WAKES_AT_ONCE && wakes < COUNT / 2);
    waiting_polls_run(k, INT64_MAX);
    CHECK_EQUAL(wakes, COUNT - 1);
    CHECK_EQUAL(late.woken, 0);
    CHECK_EQUAL(all[COUNT / 2].woken, 0);
    for (uint32_t i = 1; i < COUNT / 2; i++) CHECK(all[i].order > all[i - 1].order); /* the oldest first */
    CHECK(waiting_polls_next_us(&k->waiting_polls) == INT64_MAX);
    waiting_polls_told(k, NS_ELSEWHERE);
    CHECK_EQUAL(late.woken, 1);
    CHECK_EQUAL(k->waiting_polls.count, 0);
    free(all);
    close_core();
}

static void test_a_partition_that_closes_amid_a_crowd_and_opens_again_wakes_later_polls(void) {
    begin();
    enum { COUNT = 3 * WAKES_AT_ONCE };
    waiting *all = calloc(COUNT, sizeof *all), late;
    for (uint32_t i = 0; i < COUNT; i++) {
        enter(&all[i], 1, INT64_MAX);
        CHECK(waiting_poll_add(k, &all[i].waiting_poll, &here));
    }
    waiting_polls_ended(core_owned(k, NS_HERE));
    enter(&late, 1, INT64_MAX);
    CHECK(waiting_poll_add(k, &late.waiting_poll, &here));
    waiting_polls_run(k, INT64_MAX);
    CHECK_EQUAL(wakes, COUNT);
    CHECK_EQUAL(late.woken, 0);
    CHECK(core_owned(k, NS_HERE)->has_waiting_polls);
    waiting_polls_ended(core_owned(k, NS_HERE));
    CHECK_EQUAL(late.woken, 1);
    CHECK(!core_owned(k, NS_HERE)->has_waiting_polls);
    free(all);
    close_core();
}

static void test_a_user_has_half_of_the_waiting_polls_of_a_shard(void) {
    begin();
    waiting *all = calloc(MANY + 1, sizeof *all);
    for (uint32_t i = 0; i < OF_USER_MAX; i++) enter(&all[i], 1, INT64_MAX);
    waiting *beyond = &all[MANY];
    beyond->waiting_poll.woken = on_woken;
    CHECK(!waiting_poll_enter(k, &beyond->waiting_poll, 1, INT64_MAX));
    for (uint32_t i = OF_USER_MAX; i < MANY; i++) enter(&all[i], 2 + i % 2, INT64_MAX);
    CHECK(!waiting_poll_enter(k, &beyond->waiting_poll, 4, INT64_MAX));
    waiting_poll_leave(k, &all[0].waiting_poll);
    CHECK(waiting_poll_enter(k, &beyond->waiting_poll, 1, INT64_MAX));
    waiting_polls_wake_all(k);
    CHECK(wakes < MANY); /* the others in slices */
    waiting_polls_run(k, INT64_MAX);
    CHECK_EQUAL(wakes, MANY);
    for (uint32_t i = 0; i < ROUTE_USER_PLACES; i++) CHECK_EQUAL(k->waiting_polls.by_user[i], 0);
    free(all);
    close_core();
}

static void test_bytes_behind_a_request_are_not_kept_with_it(void) {
    uint8_t payload[4000] = {1, 1, 4, 7, 0, 0, 0, 2, 1, 's', 2, 1, 't', 1};
    payload[18] = 5;  /* next */
    payload[27] = 10; /* messages */
    payload[32] = 100;
    consumer_request q;
    CHECK(!request_parse_waiting_poll(payload, 35, &q));
    CHECK(request_parse_waiting_poll(payload, 36, &q));
    CHECK_EQUAL(q.wait_ms, 100);
    CHECK_EQUAL(q.kept_length, 36);
    CHECK(request_parse_waiting_poll(payload, sizeof payload, &q));
    CHECK_EQUAL(q.kept_length, 36);
}

int main(void) {
    RUN(test_bytes_behind_a_request_are_not_kept_with_it);
    RUN(test_a_waiting_poll_is_woken_once_by_the_first_of_its_partitions);
    RUN(test_a_partition_with_no_new_messages_wakes_no_poll);
    RUN(test_a_poll_cannot_wait_at_an_earlier_partition_or_over_a_full_link);
    RUN(test_a_shard_that_asks_often_is_woken_once);
    RUN(test_an_owner_is_asked_once_for_a_crowd_and_again_after_its_answer);
    RUN(test_a_change_wakes_the_polls_of_its_user_topic_stream_and_owner);
    RUN(test_deadlines_wake_polls_in_their_order);
    RUN(test_a_crowd_is_woken_in_slices_and_later_polls_wait_on);
    RUN(test_a_partition_that_closes_amid_a_crowd_and_opens_again_wakes_later_polls);
    RUN(test_a_user_has_half_of_the_waiting_polls_of_a_shard);
    return check_report();
}
