/* Descriptor rings, leases, doorbell flags, the balanced counter, the route table and the hot request parsers. */
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "io/links.h"
#include "net/logins.h"
#include "wire/classic_request.h"
#include "core/route.h"

#define POOL_BYTES (8u << 20)

typedef struct pair {
    int region, pools[2], bells[2];
    links a, b;
} pair;

static void open_pair(pair *p) {
    p->region = memfd_create("region", 0);
    CHECK(links_region_format(p->region, 2) == 0);
    for (int i = 0; i < 2; i++) {
        p->pools[i] = memfd_create("pool", 0);
        CHECK(ftruncate(p->pools[i], POOL_BYTES) == 0);
        p->bells[i] = eventfd(0, EFD_NONBLOCK);
    }
    CHECK(links_open(&p->a, 0, 2, p->region, p->pools, p->bells, POOL_BYTES) == 0);
    CHECK(links_open(&p->b, 1, 2, p->region, p->pools, p->bells, POOL_BYTES) == 0);
    links_admit(&p->a, 1, p->b.generation);
}

static void close_pair(pair *p) {
    links_close(&p->a);
    links_close(&p->b);
    for (int i = 0; i < 2; i++) {
        close(p->pools[i]);
        close(p->bells[i]);
    }
    close(p->region);
}

static void test_ring_keeps_order_and_stops_when_full(void) {
    pair p;
    open_pair(&p);
    descriptor d = {.operation = LINK_SEND}, out;
    for (uint64_t i = 0; i < LINK_SLOTS; i++) {
        d.sequence = i;
        CHECK(links_post(&p.a, 1, &d, NULL));
    }
    CHECK(!links_post(&p.a, 1, &d, NULL));
    CHECK(links_depth(&p.a, 0, 1) == LINK_SLOTS && links_depth(&p.b, 0, 1) == LINK_SLOTS);
    CHECK(links_depth(&p.a, 1, 0) == 0);
    CHECK(links_waiting(&p.b) && !links_waiting(&p.a));
    for (uint64_t i = 0; i < LINK_SLOTS; i++) CHECK(links_take(&p.b, 0, &out) && out.sequence == i);
    CHECK(!links_take(&p.b, 0, &out));
    CHECK(links_depth(&p.b, 0, 1) == 0);
    CHECK(links_post(&p.a, 1, &d, NULL));
    close_pair(&p);
}

static void test_a_cancelled_request_is_never_taken_and_a_taken_one_never_cancelled(void) {
    pair p;
    open_pair(&p);
    descriptor d = {.operation = LINK_SEND, .sequence = 1}, out;
    uint64_t first, second;
    CHECK(links_post(&p.a, 1, &d, &first));
    d.sequence = 2;
    CHECK(links_post(&p.a, 1, &d, &second));
    CHECK(links_cancel(&p.a, 1, first));
    CHECK(!links_cancel(&p.a, 1, first));
    CHECK(links_take(&p.b, 0, &out) && out.sequence == 2);
    CHECK(!links_cancel(&p.a, 1, second));
    for (int i = 0; i < (int)LINK_SLOTS; i++)
        CHECK(links_post(&p.a, 1, &d, NULL)); /* the same slots serve new requests */
    CHECK(!links_cancel(&p.a, 1, second));
    close_pair(&p);
}

static void test_a_successor_takes_what_its_predecessor_left_when_it_is_admitted(void) {
    pair p;
    open_pair(&p);
    descriptor d = {.operation = LINK_SEND, .lease_offset = 4096, .lease_length = 100}, out;
    CHECK(links_post(&p.a, 1, &d, NULL));
    uint32_t before = p.b.generation;
    links_close(&p.b);
    CHECK(links_open(&p.b, 1, 2, p.region, p.pools, p.bells, POOL_BYTES) == 0);
    CHECK(p.b.generation == before + 1);
    CHECK(!links_waiting(&p.b) && links_sleep(&p.b)); /* nothing of it before A knows of the death, and no hot loop */
    CHECK(!links_take(&p.b, 0, &out));
    CHECK_EQUAL(links_depth(&p.a, 0, 1), 1);
    links_admit(&p.a, 1, p.b.generation + 1); /* another one, which never took anything */
    CHECK(!links_take(&p.b, 0, &out));
    links_admit(&p.a, 1, p.b.generation);
    links_ring_doorbells(&p.a);
    uint64_t rung;
    CHECK(read(p.bells[1], &rung, sizeof rung) == sizeof rung);
    CHECK(links_take(&p.b, 0, &out) && links_lease(&p.b, 0, &out) == p.b.peer_pools[0] + 4096);
    links_close(&p.a); /* the asker dies: its lease is void */
    CHECK(links_open(&p.a, 0, 2, p.region, p.pools, p.bells, POOL_BYTES) == 0);
    CHECK(links_lease(&p.b, 0, &out) == NULL);
    CHECK(links_post(&p.a, 1, &d, NULL)); /* who is there when the asker starts may take */
    CHECK(links_take(&p.b, 0, &out) && links_lease(&p.b, 0, &out) != NULL);
    close_pair(&p);
}

static void test_leases_outside_the_pool_are_refused(void) {
    pair p;
    open_pair(&p);
    descriptor d = {.generation = p.a.generation, .lease_offset = POOL_BYTES - 10, .lease_length = 11};
    CHECK(links_lease(&p.b, 0, &d) == NULL);
    d.lease_length = 10;
    CHECK(links_lease(&p.b, 0, &d) != NULL);
    d.lease_offset = UINT64_MAX - 4;
    CHECK(links_lease(&p.b, 0, &d) == NULL);
    close_pair(&p);
}

static void test_doorbell_rings_only_for_sleepers(void) {
    pair p;
    open_pair(&p);
    descriptor d = {.operation = LINK_NEXT}, out;
    uint64_t rung;
    CHECK(links_post(&p.a, 1, &d, NULL));
    links_ring_doorbells(&p.a);
    CHECK(read(p.bells[1], &rung, sizeof rung) < 0);
    CHECK(!links_sleep(&p.b)); /* something waits */
    CHECK(links_take(&p.b, 0, &out) && links_sleep(&p.b));
    CHECK(links_post(&p.a, 1, &d, NULL));
    links_ring_doorbells(&p.a);
    CHECK(read(p.bells[1], &rung, sizeof rung) == sizeof rung && rung == 1);
    close_pair(&p);
}

static void test_balanced_counter_is_shared_and_wraps(void) {
    pair p;
    open_pair(&p);
    bool after_us;
    for (uint32_t i = 0; i < 7; i++) {
        CHECK(links_balance(i % 2 ? &p.a : &p.b, 5, 3, &after_us) == i % 3);
        CHECK(!after_us || i == 0);
    }
    CHECK(links_balance(&p.b, 5, 3, &after_us) == 1 && after_us);
    CHECK(links_balance(&p.b, 5, 3, NULL) == 2);
    CHECK(links_balance(&p.b, 5, 3, NULL) == 0);
    CHECK(links_balance(&p.a, 5, 1, NULL) == 0); /* the counter stood at 1: beyond the end counts as 0 */
    close_pair(&p);
}

#define MINUTE_US 60000000ull

static void test_failed_logins_are_counted_for_all_and_every_minute_halves_them(void) {
    pair p;
    open_pair(&p);
    uint64_t here = logins_key(&p.a, "here", 4), there = logins_key(&p.b, "there", 5), now_us = 7 * MINUTE_US + 1;
    CHECK(here != there && here == logins_key(&p.b, "here", 4));
    for (int i = 0; i < 8; i++) logins_begin(i % 2 ? &p.a : &p.b, here, now_us);
    CHECK_EQUAL(logins_failures(&p.a, here, now_us), 8);
    CHECK_EQUAL(logins_failures(&p.b, here, now_us), 8);
    CHECK_EQUAL(logins_failures(&p.b, there, now_us), 0);
    logins_take_back(&p.b, here, now_us);
    logins_take_back(&p.b, there, now_us);
    CHECK_EQUAL(logins_failures(&p.a, here, now_us), 7);
    links restarted; /* the counts outlive a worker */
    CHECK(links_open(&restarted, 0, 2, p.region, p.pools, p.bells, POOL_BYTES) == 0);
    CHECK_EQUAL(logins_failures(&restarted, here, now_us), 7);
    CHECK_EQUAL(logins_failures(&p.a, here, now_us + MINUTE_US), 3);
    CHECK_EQUAL(logins_failures(&p.a, here, now_us + 3 * MINUTE_US), 0);
    CHECK_EQUAL(logins_failures(&p.a, here, now_us + 100 * MINUTE_US), 0);
    logins_begin(&p.a, here, now_us + 2 * MINUTE_US);
    CHECK_EQUAL(logins_failures(&p.b, here, now_us + 2 * MINUTE_US), 2);
    logins_clear(&p.b, here, now_us + 2 * MINUTE_US);
    CHECK_EQUAL(logins_failures(&p.a, here, now_us + 2 * MINUTE_US), 0);
    links_close(&restarted);
    close_pair(&p);
}

static void test_failures_under_many_keys_neither_clear_one_nor_count_for_another(void) {
    pair p;
    open_pair(&p);
    uint64_t here = logins_key(&p.a, "here", 4), now_us = MINUTE_US;
    for (int i = 0; i < 100; i++) logins_begin(&p.a, here, now_us);
    uint32_t most = 0;
    for (uint32_t other = 0; other < 20000; other++) {
        uint64_t key = logins_key(&p.a, &other, sizeof other);
        logins_begin(&p.b, key, now_us);
        logins_clear(&p.b, key, now_us);
    }
    for (uint32_t other = 0; other < 10000; other++) logins_begin(&p.b, logins_key(&p.b, &other, sizeof other), now_us);
    for (uint32_t other = 10000; other < 10100; other++) {
        uint32_t failures = logins_failures(&p.b, logins_key(&p.b, &other, sizeof other), now_us);
        if (failures > most) most = failures;
    }
    CHECK(logins_failures(&p.a, here, now_us) >= 90); /* a key that shares a cell takes with it what it brought */
    CHECK(most < 5);
    close_pair(&p);
}

static void test_moments_of_a_key_are_apart_and_those_of_others_do_not_count(void) {
    pair p;
    open_pair(&p);
    uint64_t here = logins_key(&p.a, "here", 4), there = logins_key(&p.a, "there", 5);
    CHECK_EQUAL(logins_moment(&p.a, here, 1000, 50), 1050);
    CHECK_EQUAL(logins_moment(&p.b, here, 1000, 100), 1150);
    CHECK_EQUAL(logins_moment(&p.b, there, 1000, 50), 1050);
    CHECK_EQUAL(logins_moment(&p.a, here, 5000, 50), 5050);
    close_pair(&p);
}

static void test_who_logged_in_is_known_for_a_while_and_others_cannot_drive_him_out(void) {
    pair p;
    open_pair(&p);
    uint64_t alice = logins_key(&p.a, "alice", 5);
    uint64_t home = logins_key(&p.a, "alice at home", 13);
    CHECK(!logins_is_known(&p.a, alice, home, 10, 100));
    logins_remember(&p.a, alice, home, 10);
    CHECK(logins_is_known(&p.b, alice, home, 109, 100));
    CHECK(!logins_is_known(&p.b, alice, home, 110, 100));
    logins_remember(&p.a, alice, home, 50);
    CHECK(logins_is_known(&p.b, alice, home, 149, 100));
    uint64_t other = alice + 1; /* the accounts of the next places */
    for (uint64_t i = 0; i < 10000; i++) logins_remember(&p.b, other, logins_key(&p.b, &i, sizeof i), 51);
    CHECK(logins_is_known(&p.a, alice, home, 149, 100));
    for (uint64_t i = 0; i < SHARED_LOGIN_PLACES; i++) logins_remember(&p.b, alice, logins_key(&p.b, &i, sizeof i), 52);
    CHECK(!logins_is_known(&p.a, alice, home, 149, 100)); /* the oldest of its own leaves */
    close_pair(&p);
}

static void test_only_perfect_polls_are_hot(void) {
    uint8_t poll[] = {1, 1, 4, 9, 0, 0,  0, 2, 2, 's', 't', 1, 4, 3,   0, 0, 0, 1,
                      5, 0, 0, 0, 1, 42, 0, 0, 0, 0,   0,   0, 0, 100, 0, 0, 0, 1};
    consumer_request q;
    CHECK(request_parse_poll(poll, sizeof poll, &q));
    CHECK(q.consumer_id == 9 && q.partition_id == 5 && q.strategy == 1 && q.value == 42 && q.count == 100 &&
          q.auto_commit);
    CHECK(q.stream_length == 4 && q.topic_length == 6 && q.address == poll + 7);
    for (size_t cut = 0; cut < sizeof poll; cut++) {
        uint8_t exact[sizeof poll]; /* a copy of its own size: ASan sees an over-read */
        memcpy(exact, poll, cut);
        CHECK(!request_parse_poll(exact, cut, &q));
    }
    uint8_t named[] = {1, 2, 1, 0xff, 1, 4, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0};
    CHECK(!request_parse_store(named, sizeof named, &q)); /* the consumer's name is no UTF-8 */
    named[3] = 'c';
    CHECK(request_parse_store(named, sizeof named, &q) && q.value == 42 && q.partition_id == 0);
    poll[0] = 2;
    CHECK(request_parse_poll(poll, sizeof poll, &q) && q.kind == CONSUMER_GROUP); /* well formed, but Python's */
    poll[0] = 3;
    CHECK(!request_parse_poll(poll, sizeof poll, &q));
    poll[0] = 1;
    poll[22] = 6;
    CHECK(!request_parse_poll(poll, sizeof poll, &q)); /* unknown strategy */
}

int main(void) {
    RUN(test_ring_keeps_order_and_stops_when_full);
    RUN(test_a_cancelled_request_is_never_taken_and_a_taken_one_never_cancelled);
    RUN(test_a_successor_takes_what_its_predecessor_left_when_it_is_admitted);
    RUN(test_leases_outside_the_pool_are_refused);
    RUN(test_doorbell_rings_only_for_sleepers);
    RUN(test_balanced_counter_is_shared_and_wraps);
    RUN(test_failed_logins_are_counted_for_all_and_every_minute_halves_them);
    RUN(test_failures_under_many_keys_neither_clear_one_nor_count_for_another);
    RUN(test_moments_of_a_key_are_apart_and_those_of_others_do_not_count);
    RUN(test_who_logged_in_is_known_for_a_while_and_others_cannot_drive_him_out);
    RUN(test_only_perfect_polls_are_hot);
    return check_report();
}
