/* Shares of producers: of a partition and of a worker one user has as many as are left free, counted against a plain
 * list over producers that come, are forgotten, and are read again from the file. */
#include "check.h"
#include "log/producers.h"
#include "log/producers_table.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BEGUN 10u
#define USERS 5u /* 0: root */
#define IDS 12000u
#define STEPS 30000u

static char directories[2][32] = {"/tmp/shardd-shares-XXXXXX", "/tmp/shardd-shares-XXXXXX"};
static file_cache files;
static producer_memory memory;
static producers known[2];
static uint64_t ends[2];
static uint8_t owners[IDS]; /* USERS: the metadata have forgotten it */
static bool listed[2][IDS];

static uint64_t owner_of(const void *context, uint64_t producer) {
    CHECK(context == owners);
    return owners[producer] < USERS ? owners[producer] : 0;
}

static bool is_known(void *context, uint64_t producer) {
    (void)context;
    return owners[producer] < USERS;
}

static void reopen(unsigned which) {
    producers_free(&known[which]);
    known[which] = (producers){.incarnation = 7,
                               .fd = -1,
                               .memory = &memory,
                               .disk = &disk_system,
                               .files = &files,
                               .directory = directories[which]};
    CHECK_EQUAL(producers_open(&known[which], ends[which]), 0);
}

static void begin(void) {
    char path[96];
    for (unsigned which = 0; which < 2; which++) {
        if (known[which].memory != NULL) producers_free(&known[which]);
        known[which] = (producers){.fd = -1};
        snprintf(path, sizeof path, "%s/producers", directories[which]);
        unlink(path);
        ends[which] = 0;
        for (unsigned i = 0; i < IDS; i++) listed[which][i] = false;
    }
    CHECK_EQUAL(memory.used, 0);
    offset_shares_clear(&memory.shares);
    for (unsigned i = 0; i < IDS; i++) owners[i] = USERS;
    memory = (producer_memory){.boot = {1}, .known_last = BEGUN - 1, .owner_of = owner_of, .context = owners};
    reopen(0);
    reopen(1);
}

/* The first batch of a producer. */
static uint32_t send(unsigned which, uint64_t producer) {
    producer_batch b = {.producer = producer, .begun = BEGUN};
    produced made;
    uint32_t status = producers_judge(&known[which], &b, &made);
    if (status != 0 || made.kind == PRODUCED_DUPLICATE) return status;
    CHECK_EQUAL(made.kind, PRODUCED_STORED);
    CHECK_EQUAL(producers_write(&known[which], &b, ends[which], 1), 0);
    producers_stored(&known[which], &b, ends[which]++, 1);
    return 0;
}

static uint32_t count_of(unsigned which, int owner) { /* -1: all */
    uint32_t count = 0;
    for (unsigned i = 0; i < IDS; i++) count += listed[which][i] && (owner < 0 || owners[i] == owner);
    return count;
}

/* So many of this user, from this id on, or until one is refused. */
static uint32_t fill(unsigned which, uint64_t first, uint32_t most, uint8_t owner) {
    for (uint32_t i = 0; i < most; i++) {
        owners[first + i] = owner;
        if (send(which, first + i) != 0) return i;
    }
    return most;
}

static void test_half_of_a_partition_is_left_for_others(void) {
    begin();
    CHECK_EQUAL(fill(0, 1, 5000, 1), PRODUCERS_OF_PARTITION_MAX / 2);
    CHECK_EQUAL(send(0, 1), 0); /* those that are there go on */
    reopen(0);                  /* the file does not say whose they are */
    CHECK_EQUAL(known[0].count, PRODUCERS_OF_PARTITION_MAX / 2);
    CHECK_EQUAL(fill(0, 5001, 1, 1), 0);
    CHECK_EQUAL(fill(0, 5002, 3000, 2), PRODUCERS_OF_PARTITION_MAX / 4);
    CHECK_EQUAL(fill(0, 8010, 3000, 0), PRODUCERS_OF_PARTITION_MAX / 4); /* root counts for no user */
    CHECK_EQUAL(fill(0, 11900, 1, 3), 0);
}

static void test_what_the_metadata_forget_leaves_its_share(void) {
    begin();
    CHECK_EQUAL(fill(0, 1, 5000, 1), PRODUCERS_OF_PARTITION_MAX / 2);
    for (unsigned i = 1; i <= 100; i++) owners[i] = USERS;
    owners[5000] = 1;
    CHECK_EQUAL(send(0, 5000), STATUS_FEATURE_UNAVAILABLE);
    producers_sweep(&known[0], is_known, NULL);
    CHECK_EQUAL(fill(0, 6000, 200, 1), 100);
}

static void test_a_user_leaves_room_in_its_worker(void) {
    begin();
    CHECK_EQUAL(fill(0, 1, 1000, 1), 1000);
    uint32_t real = memory.used;
    memory.used = PRODUCERS_OF_WORKER_MAX - 1000; /* those of other partitions */
    CHECK_EQUAL(fill(1, 2000, 1, 1), 0);
    CHECK_EQUAL(fill(1, 3000, 2000, 2), 500);
    memory.used -= PRODUCERS_OF_WORKER_MAX - 1000 - real;
}

static void test_shares_are_those_of_a_plain_list(void) {
    uint64_t random = 42;
    uint32_t refused = 0, reopened = 0;
    begin();
    for (uint32_t step = 0; step < STEPS; step++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t id = 1 + (random >> 33) % (IDS - 1);
        unsigned which = (random >> 20) % 2, what = (random >> 21) % 4000;
        uint8_t user = (random >> 50) % 4 == 0 ? (uint8_t)((random >> 55) % USERS) : 1;
        if (what < 2) {
            reopen(which);
            reopened++;
        } else if (what < 5) {
            for (unsigned i = 0; i < 300; i++) owners[1 + (id + i) % (IDS - 1)] = USERS;
            for (unsigned each = 0; each < 2; each++) {
                producers_sweep(&known[each], is_known, NULL);
                for (unsigned i = 1; i < IDS; i++) listed[each][i] &= owners[i] < USERS;
            }
        } else if (owners[id] < USERS || !(listed[0][id] || listed[1][id])) {
            if (owners[id] >= USERS) owners[id] = user;
            if (listed[which][id]) continue;
            bool fits = true;
            if (known[which].count > PRODUCERS_OF_PARTITION_MAX / 4) {
                uint32_t own = owners[id] != 0 ? count_of(which, owners[id]) : 0;
                fits = own < PRODUCERS_OF_PARTITION_MAX - count_of(which, -1);
            }
            CHECK_EQUAL(send(which, id), fits ? 0 : STATUS_FEATURE_UNAVAILABLE);
            listed[which][id] = fits;
            refused += !fits;
        }
    }
    for (unsigned which = 0; which < 2; which++) CHECK_EQUAL(known[which].count, count_of(which, -1));
    CHECK_EQUAL(memory.used, known[0].count + known[1].count);
    CHECK(refused > 100 && reopened > 5);
}

int main(void) {
    for (unsigned which = 0; which < 2; which++)
        if (mkdtemp(directories[which]) == NULL) return 1;
    files.budget = (descriptor_budget){.segment_pairs = 4, .offset_files = 4};
    RUN(test_half_of_a_partition_is_left_for_others);
    RUN(test_what_the_metadata_forget_leaves_its_share);
    RUN(test_a_user_leaves_room_in_its_worker);
    RUN(test_shares_are_those_of_a_plain_list);
    begin();
    for (unsigned which = 0; which < 2; which++) {
        producers_free(&known[which]);
        rmdir(directories[which]);
    }
    return check_report();
}
