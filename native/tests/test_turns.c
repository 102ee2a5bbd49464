/* Whose turn a balanced send is: strictly in turn for who is alone, exchanged within a bound for a crowd. */
#include "core/turns.h"

#include "check.h"
#include "namespace.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL_BYTES (8u << 20)
#define SHARDS 2u
#define PARTITIONS 6u

static core *cores[SHARDS];
static route_topic *topics[SHARDS];
static int region, pools[SHARDS], bells[SHARDS];
static int64_t given[PARTITIONS];

static void drop(route_partition *p) { (void)p; }

/* Partition i belongs to shard owners[i]. */
static void open_shards(const uint32_t *owners) {
    region = memfd_create("region", 0);
    CHECK(links_region_format(region, SHARDS) == 0);
    for (uint32_t i = 0; i < SHARDS; i++) {
        pools[i] = memfd_create("pool", 0);
        CHECK(ftruncate(pools[i], POOL_BYTES) == 0);
        bells[i] = eventfd(0, EFD_NONBLOCK);
    }
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        core *k = cores[shard] = calloc(1, sizeof *k);
        k->options.shard = shard;
        k->now_us = 1000000;
        CHECK(links_open(&k->links, shard, SHARDS, region, pools, bells, POOL_BYTES) == 0);
        CHECK(routes_open(&k->routes, drop) == 0);
        route_topic *t = topics[shard] = routes_topic_put(&k->routes, 1, namespace_of(1, 1, 0), PARTITIONS);
        t->counter = 7;
        for (uint32_t i = 0; i < PARTITIONS; i++) {
            t->partitions[i] = (route_partition){.ns = namespace_of(1, 1, i), .owner = owners[i], .slot = 100 + i};
            if (owners[i] == shard) t->own[t->own_count++] = i;
        }
    }
    memset(given, 0, sizeof given);
}

static void close_shards(void) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        routes_close(&cores[shard]->routes);
        links_close(&cores[shard]->links);
        free(cores[shard]);
        close(pools[shard]);
        close(bells[shard]);
    }
    close(region);
}

static uint32_t send_from(uint32_t shard, uint64_t connection) {
    session who = {.connection = connection};
    cores[shard]->now_us += 10;
    uint32_t partition = turns_take(cores[shard], topics[shard], &who);
    CHECK(partition < PARTITIONS);
    given[partition]++;
    return partition;
}

static bool is_here(uint32_t shard, uint32_t partition) { return topics[shard]->partitions[partition].owner == shard; }

static int64_t spread(void) {
    int64_t least = given[0], most = given[0];
    for (uint32_t i = 1; i < PARTITIONS; i++) {
        if (given[i] < least) least = given[i];
        if (given[i] > most) most = given[i];
    }
    return most - least;
}

static const uint32_t halves[PARTITIONS] = {0, 1, 1, 0, 0, 1}, uneven[PARTITIONS] = {0, 1, 1, 1, 0, 1},
                      elsewhere[PARTITIONS] = {1, 1, 1, 1, 1, 1};

static void test_who_sends_alone_goes_round_in_turn(void) {
    open_shards(halves);
    for (uint32_t i = 0; i < 1000; i++) CHECK_EQUAL(send_from(0, 1), i % PARTITIONS);
    for (uint32_t i = 1000; i < 1000 + TURNS_CROWD; i++) CHECK_EQUAL(send_from(i % 2, 1 + i % 2), i % PARTITIONS);
    close_shards();
}

static void test_a_crowd_on_both_shards_stays_at_home(void) {
    uint32_t away = 0;
    open_shards(halves);
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t shard = i % 2; /* two connections on each */
        away += !is_here(shard, send_from(shard, i % 4)) && i > 1000;
    }
    CHECK(away == 0);
    CHECK(spread() <= 2 * TURNS_OWED_MAX + 1);
    CHECK(cores[0]->counters.turns_exchanged > 10000);
    close_shards();
}

/* The shard with two of six partitions has half of the requests: a third of its own is more than its share. */
static void test_no_partition_gets_more_than_its_share(void) {
    uint32_t away = 0;
    open_shards(uneven);
    for (uint32_t i = 0; i < 100000; i++) away += !is_here(i % 2, send_from(i % 2, i % 4));
    CHECK(spread() <= 2 * TURNS_OWED_MAX + 1);
    CHECK(away > 100000 / 6 - 1000 && away < 100000 / 6 + 1000);
    close_shards();
}

static void test_a_crowd_on_one_shard_alone_gives_the_others_their_turns(void) {
    open_shards(halves);
    for (uint32_t i = 0; i < 100000; i++) send_from(0, i % 2);
    CHECK(spread() <= 2 * TURNS_OWED_MAX + 1);
    close_shards();
}

static void test_a_shard_without_partitions_forwards(void) {
    open_shards(elsewhere);
    for (uint32_t i = 0; i < 1000; i++) CHECK_EQUAL(send_from(0, i % 2), i % PARTITIONS);
    close_shards();
}

static void test_a_pause_and_a_lone_sender_end_a_crowd(void) {
    open_shards(halves);
    for (uint32_t i = 0; i < 600; i++) send_from(0, i % 2);
    cores[0]->now_us += TURNS_PAUSE_US + 1;
    uint64_t exchanged = cores[0]->counters.turns_exchanged;
    for (uint32_t i = 0; i < TURNS_CROWD - 1; i++) send_from(0, i % 2);
    CHECK_EQUAL(cores[0]->counters.turns_exchanged, exchanged);
    for (uint32_t i = 0; i < 600; i++) send_from(0, i % 2);
    for (uint32_t i = 0; i < TURNS_ALONE + 1; i++) send_from(0, 5);
    exchanged = cores[0]->counters.turns_exchanged;
    uint32_t before = send_from(0, 5);
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t now = send_from(0, 5);
        CHECK_EQUAL(now, (before + 1) % PARTITIONS);
        before = now;
    }
    CHECK_EQUAL(cores[0]->counters.turns_exchanged, exchanged);
    close_shards();
}

int main(void) {
    RUN(test_who_sends_alone_goes_round_in_turn);
    RUN(test_a_crowd_on_both_shards_stays_at_home);
    RUN(test_no_partition_gets_more_than_its_share);
    RUN(test_a_crowd_on_one_shard_alone_gives_the_others_their_turns);
    RUN(test_a_shard_without_partitions_forwards);
    RUN(test_a_pause_and_a_lone_sender_end_a_crowd);
    return check_report();
}
