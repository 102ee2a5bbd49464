/* Which messages of the batches of a commit go on: those whose id is new, in the order of the batches, whatever is
 * looked at ahead, refused in between, or done in steps. */
#include "base/bytes.h"
#include "log/expiry_clock.h"
#include "log/id_window.h"
#include "test_partition_fixture.h"

#define BATCHES 12u
#define RECORDS_MAX 90u /* more than ids are fetched together */
#define IDS 700u
#define BODY 9u
#define RECORD (RECORD_HEADER_SIZE + BODY)

static uint64_t wall(void *context) {
    (void)context;
    return UINT64_C(1) << 49;
}

static int64_t monotonic(void *context) {
    (void)context;
    return 5000000;
}

static expiry_clock test_clock = {.wall_us = wall, .monotonic_us = monotonic};
static id_memory memory;
static id_source ids;
static partition *p;
static uint8_t buffer[BATCHES][RECORDS_MAX * RECORD];
static bool known[IDS + 1];

static void open_partition(void) {
    static char directory[128];
    snprintf(directory, sizeof directory, "%s/p", test_root);
    partition_options options = {.ns = 1,
                                 .incarnation = 2,
                                 .directory = directory,
                                 .segment_size_bytes = 1500,
                                 .disk = &disk_system,
                                 .files = &open_files,
                                 .clock = &test_clock,
                                 .ids = &ids};
    p = partition_open(&options, NULL, 0);
    REQUIRE(p != NULL);
    CHECK(partition_set_window(p, &memory, 100000, UINT64_C(1) << 40));
    memset(known, 0, sizeof known);
}

static append_batch make(uint8_t *out) {
    append_batch b = {.messages = out, .count = (uint32_t)test_random(RECORDS_MAX + 1)};
    b.length = make_records(out, b.count, BODY, BODY);
    for (uint32_t i = 0; i < b.count; i++) {
        uint64_t id = test_random(IDS + 1); /* 0: none */
        memcpy(out + (uint64_t)i * RECORD + 8, &id, sizeof id);
    }
    return b;
}

/* What is left of the batch, as its ids say. */
static uint32_t expected(const append_batch *b, uint64_t *left) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        uint64_t id = load_u64(b->messages + (uint64_t)i * RECORD + 8);
        if (id != 0 && known[id]) continue;
        known[id] = true;
        left[count++] = id;
    }
    return count;
}

static void check(const append_batch *b, const uint64_t *left, uint32_t count) {
    CHECK_EQUAL(b->count, count);
    CHECK_EQUAL(b->length, (uint64_t)count * RECORD);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *record = b->messages + (uint64_t)i * RECORD;
        uint64_t id = load_u64(record + 8);
        if (left[i] == 0) CHECK(id != 0 || load_u64(record + 16) != 0); /* it has got one */
        else CHECK_EQUAL(id, left[i]);
    }
}

static void test_batches_of_a_commit_lose_what_is_known(void) {
    static uint64_t left[BATCHES][RECORDS_MAX];
    unsigned refused = 0;
    for (unsigned round = 0; round < 300; round++) {
        if (round % 20 == 0) {
            if (round > 0) partition_release(p);
            open_partition();
        }
        append_batch batches[BATCHES];
        uint32_t counts[BATCHES];
        bool refuses[BATCHES];
        for (unsigned i = 0; i < BATCHES; i++) {
            batches[i] = make(buffer[i]);
            refuses[i] = test_random(6) == 0;
            counts[i] = refuses[i] ? 0 : expected(&batches[i], left[i]);
        }
        id_group group;
        group.count = group.used = 0;
        for (unsigned i = 0; i < BATCHES; i++) {
            id_filter filter = {0};
            refused += refuses[i];
            if (refuses[i]) {
                partition_filter_skips(&group, batches[i].count);
                continue;
            }
            CHECK(partition_reserve_ids(p, batches[i].count, 1000));
            CHECK(partition_filter(p, &batches[i], BATCHES - i - 1, &filter, &group, UINT32_MAX, 1000));
            check(&batches[i], left[i], counts[i]);
        }
    }
    CHECK(refused > 100);
    partition_release(p);
}

static void test_a_batch_in_steps_is_the_same(void) {
    static uint64_t left[RECORDS_MAX];
    open_partition();
    for (unsigned round = 0; round < 300; round++) {
        append_batch b = make(buffer[0]);
        uint32_t count = expected(&b, left), steps = 1, step = 1 + (uint32_t)test_random(40), records = b.count;
        id_filter filter = {0};
        CHECK(partition_reserve_ids(p, records, 1000));
        for (bool done = false; !done; steps++) {
            id_group group;
            group.count = group.used = 0;
            done = partition_filter(p, &b, 0, &filter, &group, step, 1000);
            CHECK(filter.read <= steps * step && (done || filter.read == steps * step));
        }
        check(&b, left, count);
    }
    partition_release(p);
}

static void test_what_was_loaded_is_known(void) {
    static uint8_t entries[500 * 24];
    for (uint64_t i = 0, id = 1, time_us = 900; i < 500; i++) {
        uint64_t number = id + i;
        memset(entries + i * 24, 0, 24);
        memcpy(entries + i * 24, &number, 8);
        memcpy(entries + i * 24 + 16, &time_us, 8);
    }
    static uint64_t left[RECORDS_MAX];
    open_partition();
    CHECK(partition_load_window(p, entries, 500));
    for (unsigned id = 1; id <= 500; id++) known[id] = true;
    for (unsigned round = 0; round < 20; round++) {
        append_batch b = make(buffer[0]);
        uint32_t count = expected(&b, left);
        id_filter filter = {0};
        id_group group;
        group.count = group.used = 0;
        CHECK(partition_reserve_ids(p, b.count, 1000));
        CHECK(partition_filter(p, &b, 0, &filter, &group, UINT32_MAX, 1000));
        check(&b, left, count);
    }
    partition_release(p);
}

int main(void) {
    test_root_make();
    id_source_seed_fixed(&ids, 3);
    CHECK_EQUAL(id_memory_open(&memory, 1u << 26), 0);
    RUN(test_batches_of_a_commit_lose_what_is_known);
    RUN(test_a_batch_in_steps_is_the_same);
    RUN(test_what_was_loaded_is_known);
    test_root_remove();
    return check_report();
}
