/* Who waits for messages (core/waiting_polls.h): who is woken by what, once, and how many may wait. */
#include "test_core_support.h"

#include "core/waiting_polls.h"
#include "wire/classic_request.h"

#define MANY 2000u /* test_core_support.h */
#define OF_USER_MAX 1000u
#define ALSO_ELSEWHERE namespace_of(2, 1, 1)

typedef struct waiting {
    watcher watcher; /* first */
    unsigned woken, order;
} waiting;

static unsigned wakes;
static unsigned asked, told;
static bool link_has_room;

static void on_woken(watcher *w) {
    waiting *of = (waiting *)w;
    of->woken++;
    of->order = ++wakes;
}

static bool on_watch(remote *r, uint32_t shard, uint64_t ns, uint64_t incarnation) {
    (void)r, (void)shard, (void)ns, (void)incarnation;
    asked++;
    return link_has_room;
}

static void on_tell(remote *r, uint32_t shard, uint64_t ns) {
    (void)r, (void)ns;
    CHECK_EQUAL(shard, 1);
    told++;
}

static remote peers = {.watch = on_watch, .tell = on_tell};
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
    *w = (waiting){.watcher = {.woken = on_woken}};
    CHECK(watcher_enter(k, &w->watcher, user_id, until_us));
}

static void test_each_is_woken_once_by_the_first_of_its_partitions(void) {
    begin();
    waiting one, other;
    enter(&one, 1, INT64_MAX);
    CHECK(watcher_watch(k, &one.watcher, &here));
    CHECK(watcher_watch(k, &one.watcher, &elsewhere));
    enter(&other, 1, INT64_MAX);
    CHECK(watcher_watch(k, &other.watcher, &also_elsewhere));
    CHECK_EQUAL(asked, 2);
    CHECK(core_owned(k, NS_HERE)->watched);
    watches_told(k, NS_ELSEWHERE);
    watches_told(k, NS_ELSEWHERE);
    watches_told(k, NS_HERE);
    CHECK_EQUAL(one.woken, 1);
    CHECK_EQUAL(other.woken, 0);
    CHECK(!core_owned(k, NS_HERE)->watched); /* a send costs nothing again */
    CHECK_EQUAL(k->watches.count, 1);
    watcher_leave(k, &other.watcher);
    watcher_leave(k, &other.watcher);
    CHECK_EQUAL(k->watches.count, 0);
    close_core();
}

static void test_a_partition_that_shows_nothing_new_wakes_nobody(void) {
    begin();
    waiting one;
    enter(&one, 1, INT64_MAX);
    CHECK(watcher_watch(k, &one.watcher, &here));
    watches_moved(core_owned(k, NS_HERE));
    CHECK_EQUAL(one.woken, 0);
    watches_ended(core_owned(k, NS_HERE));
    CHECK_EQUAL(one.woken, 1);
    close_core();
}

static void test_a_partition_of_before_or_a_link_without_room_cannot_be_watched(void) {
    begin();
    waiting one;
    enter(&one, 1, INT64_MAX);
    route_partition before = here;
    before.incarnation = 2;
    CHECK(!watcher_watch(k, &one.watcher, &before));
    link_has_room = false;
    CHECK(!watcher_watch(k, &one.watcher, &elsewhere));
    watcher_leave(k, &one.watcher);
    CHECK_EQUAL(k->watches.count, 0);
    CHECK(!watches_asked(k, 1, NS_HERE, 2));
    CHECK(!watches_asked(k, 1, NS_ELSEWHERE, 1));
    close_core();
}

static void test_another_shard_is_told_once_for_all_that_it_asks(void) {
    begin();
    for (int i = 0; i < 100; i++) CHECK(watches_asked(k, 1, NS_HERE, 1));
    CHECK(core_owned(k, NS_HERE)->watched);
    watches_told(k, NS_HERE);
    watches_told(k, NS_HERE);
    CHECK_EQUAL(told, 1);
    CHECK(!core_owned(k, NS_HERE)->watched);
    close_core();
}

static void test_an_owner_is_asked_once_for_a_crowd_and_again_when_it_has_told(void) {
    begin();
    waiting crowd[3], again[3];
    k->now_us = 5;
    for (int i = 0; i < 3; i++) {
        enter(&crowd[i], 1, INT64_MAX);
        CHECK(watcher_watch(k, &crowd[i].watcher, &elsewhere));
    }
    CHECK_EQUAL(asked, 1);
    watches_told(k, NS_ELSEWHERE);
    CHECK_EQUAL(wakes, 3);
    for (int i = 0; i < 3; i++) { /* the answer to the first question is no answer to later ones */
        enter(&again[i], 1, INT64_MAX);
        if (i == 2) k->now_us += 1000000;
        CHECK(watcher_watch(k, &again[i].watcher, &elsewhere));
    }
    CHECK_EQUAL(asked, 3);
    watches_owner_down(k, 1);
    CHECK_EQUAL(wakes, 6);
    enter(&crowd[0], 1, INT64_MAX);
    CHECK(watcher_watch(k, &crowd[0].watcher, &elsewhere));
    CHECK_EQUAL(asked, 4);
    link_has_room = false;
    enter(&crowd[1], 1, INT64_MAX);
    CHECK(!watcher_watch(k, &crowd[1].watcher, &also_elsewhere));
    watches_wake_all(k);
    close_core();
}

static void test_what_ends_wakes_those_whom_it_concerns(void) {
    begin();
    waiting local, far, stranger;
    enter(&local, 1, INT64_MAX);
    CHECK(watcher_watch(k, &local.watcher, &here));
    enter(&far, 1, INT64_MAX);
    CHECK(watcher_watch(k, &far.watcher, &elsewhere));
    enter(&stranger, 2, INT64_MAX);
    CHECK(watcher_watch(k, &stranger.watcher, &also_elsewhere));
    watches_wake_topic(k, namespace_of(3, 1, 0));
    watches_wake_stream(k, 3);
    CHECK_EQUAL(wakes, 0);
    watches_wake_topic(k, NS_HERE);
    CHECK_EQUAL(local.woken, 1);
    CHECK_EQUAL(wakes, 1);
    watches_wake_user(k, 1);
    CHECK_EQUAL(far.woken, 1);
    CHECK_EQUAL(stranger.woken, 0);
    enter(&far, 1, INT64_MAX);
    CHECK(watcher_watch(k, &far.watcher, &elsewhere));
    watches_owner_down(k, 1);
    CHECK_EQUAL(far.woken + stranger.woken, 2);
    enter(&far, 1, INT64_MAX);
    CHECK(watcher_watch(k, &far.watcher, &elsewhere));
    watches_wake_stream(k, 2);
    CHECK_EQUAL(far.woken, 1);
    enter(&far, 1, INT64_MAX);
    watches_wake_all(k);
    CHECK_EQUAL(k->watches.count, 0);
    close_core();
}

static void test_deadlines_come_in_their_order_and_nobody_is_looked_at_before(void) {
    begin();
    enum { COUNT = 1000 };
    waiting *all = calloc(COUNT, sizeof *all);
    k->now_us = 0;
    for (uint32_t i = 0; i < COUNT; i++) enter(&all[i], i, 1 + (int64_t)i * 7919 % COUNT);
    for (uint32_t i = 0; i < COUNT; i += 3) watcher_leave(k, &all[i].watcher); /* from the middle of the heap */
    watches_run(k, INT64_MAX);
    CHECK_EQUAL(wakes, 0);
    int64_t last = 0;
    while (k->watches.count > 0) {
        int64_t next = watches_next_us(&k->watches);
        CHECK(next > last);
        unsigned before = wakes;
        k->now_us = last = next;
        watches_run(k, INT64_MAX);
        CHECK_EQUAL(wakes, before + 1);
    }
    CHECK(watches_next_us(&k->watches) == INT64_MAX);
    for (uint32_t i = 0; i < COUNT; i++) CHECK_EQUAL(all[i].woken, i % 3 != 0);
    free(all);
    close_core();
}

static void test_a_crowd_is_woken_in_slices_and_who_comes_meanwhile_waits_on(void) {
    begin();
    enum { COUNT = 1000 };
    waiting *all = calloc(COUNT, sizeof *all), late;
    for (uint32_t i = 0; i < COUNT; i++) {
        enter(&all[i], 1, INT64_MAX);
        CHECK(watcher_watch(k, &all[i].watcher, &elsewhere));
    }
    watches_told(k, NS_ELSEWHERE);
    CHECK_EQUAL(wakes, WAKES_AT_ONCE);
    CHECK(watches_next_us(&k->watches) <= k->now_us); /* the loop does not sleep */
    enter(&late, 1, INT64_MAX);
    CHECK(watcher_watch(k, &late.watcher, &elsewhere));
    watcher_leave(k, &all[COUNT / 2].watcher);
    watches_run(k, 0); /* no time: a few */
    CHECK(wakes > WAKES_AT_ONCE && wakes < COUNT / 2);
    watches_run(k, INT64_MAX);
    CHECK_EQUAL(wakes, COUNT - 1);
    CHECK_EQUAL(late.woken, 0);
    CHECK_EQUAL(all[COUNT / 2].woken, 0);
    for (uint32_t i = 1; i < COUNT / 2; i++) CHECK(all[i].order > all[i - 1].order); /* who waits longest first */
    CHECK(watches_next_us(&k->watches) == INT64_MAX);
    watches_told(k, NS_ELSEWHERE);
    CHECK_EQUAL(late.woken, 1);
    CHECK_EQUAL(k->watches.count, 0);
    free(all);
    close_core();
}

static void test_a_partition_that_ends_amid_a_crowd_and_begins_anew_is_watched_again(void) {
    begin();
    enum { COUNT = 3 * WAKES_AT_ONCE };
    waiting *all = calloc(COUNT, sizeof *all), late;
    for (uint32_t i = 0; i < COUNT; i++) {
        enter(&all[i], 1, INT64_MAX);
        CHECK(watcher_watch(k, &all[i].watcher, &here));
    }
    watches_ended(core_owned(k, NS_HERE));
    enter(&late, 1, INT64_MAX);
    CHECK(watcher_watch(k, &late.watcher, &here));
    watches_run(k, INT64_MAX);
    CHECK_EQUAL(wakes, COUNT);
    CHECK_EQUAL(late.woken, 0);
    CHECK(core_owned(k, NS_HERE)->watched);
    watches_ended(core_owned(k, NS_HERE));
    CHECK_EQUAL(late.woken, 1);
    CHECK(!core_owned(k, NS_HERE)->watched);
    free(all);
    close_core();
}

static void test_one_user_has_half_of_the_places_and_a_shard_its_number(void) {
    begin();
    waiting *all = calloc(MANY + 1, sizeof *all);
    for (uint32_t i = 0; i < OF_USER_MAX; i++) enter(&all[i], 1, INT64_MAX);
    waiting *beyond = &all[MANY];
    beyond->watcher.woken = on_woken;
    CHECK(!watcher_enter(k, &beyond->watcher, 1, INT64_MAX));
    for (uint32_t i = OF_USER_MAX; i < MANY; i++) enter(&all[i], 2 + i % 2, INT64_MAX);
    CHECK(!watcher_enter(k, &beyond->watcher, 4, INT64_MAX));
    watcher_leave(k, &all[0].watcher);
    CHECK(watcher_enter(k, &beyond->watcher, 1, INT64_MAX));
    watches_wake_all(k);
    CHECK(wakes < MANY); /* the others in slices */
    watches_run(k, INT64_MAX);
    CHECK_EQUAL(wakes, MANY);
    for (uint32_t i = 0; i < ROUTE_USER_PLACES; i++) CHECK_EQUAL(k->watches.by_user[i], 0);
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
    RUN(test_each_is_woken_once_by_the_first_of_its_partitions);
    RUN(test_a_partition_that_shows_nothing_new_wakes_nobody);
    RUN(test_a_partition_of_before_or_a_link_without_room_cannot_be_watched);
    RUN(test_another_shard_is_told_once_for_all_that_it_asks);
    RUN(test_an_owner_is_asked_once_for_a_crowd_and_again_when_it_has_told);
    RUN(test_what_ends_wakes_those_whom_it_concerns);
    RUN(test_deadlines_come_in_their_order_and_nobody_is_looked_at_before);
    RUN(test_a_crowd_is_woken_in_slices_and_who_comes_meanwhile_waits_on);
    RUN(test_a_partition_that_ends_amid_a_crowd_and_begins_anew_is_watched_again);
    RUN(test_one_user_has_half_of_the_places_and_a_shard_its_number);
    return check_report();
}
