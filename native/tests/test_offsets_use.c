/* Stored offsets: who stored them and when they were used; files of version 1. */
#include "base/clock.h"
#include "test_offsets_support.h"

/* A file of version 1, as programs before wrote it: entries of two halves of 32 bytes. */
static size_t make_first_table(uint8_t *out, uint32_t count) {
    memset(out, 0, 64 + (size_t)count * 64);
    offsets_encode_head(out, 1);
    out[8] = 1;
    out[12] = 64;
    uint64_t checksum = XXH3_64bits(out, 56);
    memcpy(out + 56, &checksum, 8);
    for (uint32_t id = 0; id < count; id++) {
        uint8_t *half = out + 64 + (size_t)id * 64 + id % 2 * 32;
        uint64_t words[3] = {id, 10 + id, (10 + id) | (uint64_t)OFFSET_CONSUMER << 56};
        memcpy(half, words, sizeof(words));
        checksum = XXH3_64bits(half, sizeof(words));
        memcpy(half + 24, &checksum, 8);
    }
    return 64 + (size_t)count * 64;
}

static void test_a_table_of_version_1_opens_and_becomes_version_2_with_the_first_store(void) {
    static model m;
    partition_options options;
    uint8_t first[64 + 20 * 64], now[4096];
    for (int head_is_whole = 0; head_is_whole < 2; head_is_whole++) {
        partition *p = open_with(&options, &m, 100);
        partition_release(p);
        size_t length = make_first_table(first, 20);
        if (!head_is_whole) memset(first, 0, 64); /* lost: the entries tell their version */
        write_table(first, length);
        p = reopen(&options);
        sync_all(p);
        for (uint32_t id = 0; id < 20; id++) CHECK_EQUAL(get(p, OFFSET_CONSUMER, id), 10 + id);
        CHECK_EQUAL(read_table(now, sizeof(now)), length); /* nothing is written before somebody stores */
        CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 3, 77), 0);
        CHECK_EQUAL(read_table(now, sizeof(now)), 64 + 20 * 128);
        CHECK_EQUAL(now[8], 2);
        p = kill_and_open(p, &options);
        for (uint32_t id = 0; id < 20; id++) CHECK_EQUAL(get(p, OFFSET_CONSUMER, id), id == 3 ? 77 : 10 + id);
        end(p, &m);
    }
}

/* The old file holds what was promised: as long as there is no room for the new one it is the one that counts. */
static void test_a_table_of_version_1_stays_while_the_disk_is_full(void) {
    static fault_disk faulty;
    static model m;
    partition_options options;
    uint8_t first[64 + 20 * 64], now[4096];
    fault_disk_init(&faulty);
    partition *p = open_with(&options, &m, 100);
    partition_release(p);
    size_t length = make_first_table(first, 20);
    write_table(first, length);
    options.disk = &faulty.disk;
    fault_disk_heal(&faulty);
    memset(faulty.calls, 0, sizeof(faulty.calls));
    faulty.plan[FAULT_WRITE].at = 1;
    faulty.plan[FAULT_WRITE].times = 1000;
    faulty.plan[FAULT_WRITE].error = ENOSPC;
    p = reopen(&options);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 3, 77), 10006);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 3), 13);
    CHECK_EQUAL(read_table(now, sizeof(now)), length);
    CHECK(memcmp(now, first, length) == 0);
    fault_disk_heal(&faulty);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 3, 77), 0);
    p = kill_and_open(p, &options);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 3), 77);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 4), 14);
    end(p, &m);
}

static uint64_t wall_now_us;
static uint64_t wall_of_test(void *context) {
    (void)context;
    return wall_now_us;
}
static int64_t monotonic_of_test(void *context) {
    (void)context;
    return (int64_t)wall_now_us;
}

static uint64_t word_of(const uint8_t *half, size_t at) {
    uint64_t word;
    memcpy(&word, half + at, 8);
    return word;
}

static void test_an_entry_tells_who_stored_it_and_when_it_was_used(void) {
    static model m;
    partition_options options;
    uint8_t data[512];
    const uint8_t *half = data + 64, *other = data + 128;
    const uint64_t day_us = UINT64_C(86400000000);
    expiry_clock clock = {.wall_us = wall_of_test, .monotonic_us = monotonic_of_test};
    uint64_t value;
    wall_now_us = 1000 * day_us;
    partition *p = open_with(&options, &m, 100);
    options.clock = &clock;
    p = kill_and_open(p, &options);
    offset_user by = {.owner = 17, .name = 0xabcdef};
    CHECK_EQUAL(partition_offset_store_by(p, OFFSET_CONSUMER, 7, 5, &by), 0);
    read_table(data, sizeof(data));
    CHECK_EQUAL(word_of(half, 24), 1000 * day_us);
    CHECK_EQUAL(word_of(half, 32), 17);
    CHECK_EQUAL(word_of(half, 40), 0xabcdef);
    wall_now_us += day_us - 1;
    CHECK(partition_offset_read(p, OFFSET_CONSUMER, 7, &value) && value == 5);
    CHECK_EQUAL(read_table(data, sizeof(data)), 64 + 64); /* used within a day: nothing is written */
    wall_now_us += 1;
    CHECK(partition_offset_read(p, OFFSET_CONSUMER, 7, &value) && value == 5);
    CHECK_EQUAL(read_table(data, sizeof(data)), 64 + 128);
    CHECK_EQUAL(word_of(other, 8), 5);
    CHECK_EQUAL(word_of(other, 24), 1001 * day_us);
    CHECK_EQUAL(word_of(other, 32), 17); /* who reads owns nothing */
    p = kill_and_open(p, &options);
    by.owner = 18;
    CHECK_EQUAL(partition_offset_store_by(p, OFFSET_CONSUMER, 7, 6, &by), 0); /* it passes on with a store */
    read_table(data, sizeof(data));
    CHECK_EQUAL(word_of(half, 32), 18);
    end(p, &m);
}

typedef struct told {
    uint32_t count;
    uint64_t ids; /* a bit for each */
} told;

static void tell(void *context, const offsets_half *entry) {
    told *t = context;
    t->count++;
    t->ids |= UINT64_C(1) << entry->id;
}

static void test_what_was_not_used_for_an_age_is_told_in_pages(void) {
    static model m;
    partition_options options;
    const uint64_t day_us = UINT64_C(86400000000);
    expiry_clock clock = {.wall_us = wall_of_test, .monotonic_us = monotonic_of_test};
    uint32_t next = 9;
    uint64_t value;
    wall_now_us = 1000 * day_us;
    partition *p = open_with(&options, &m, 100);
    options.clock = &clock;
    p = kill_and_open(p, &options);
    for (uint32_t id = 0; id < 20; id++) CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id, 5), 0);
    wall_now_us += 10 * day_us;
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 3, 6), 0);
    CHECK(partition_offset_read(p, OFFSET_CONSUMER, 4, &value));
    told first = {0}, second = {0}, all = {0}, none = {0};
    CHECK_EQUAL(partition_offsets_unused(p, 0, 12, 10 * day_us - 1, &next, tell, &first), 0);
    CHECK_EQUAL(next, 12);
    CHECK_EQUAL(first.count, 10); /* without those in use */
    CHECK_EQUAL(partition_offsets_unused(p, next, 12, 10 * day_us - 1, &next, tell, &second), 0);
    CHECK_EQUAL(next, 0);
    CHECK_EQUAL(first.ids | second.ids, 0xfffff ^ 0x18);
    CHECK_EQUAL(first.ids & second.ids, 0);
    CHECK_EQUAL(partition_offsets_unused(p, 0, 100, 0, &next, tell, &all), 0);
    CHECK_EQUAL(all.count, 20); /* no age: in use, too */
    CHECK_EQUAL(partition_offsets_unused(p, 0, 100, 10 * day_us + 1, &next, tell, &none), 0);
    CHECK_EQUAL(partition_offsets_unused(p, 0, 100, UINT64_MAX, &next, tell, &none), 0);
    CHECK_EQUAL(none.count, 0);
    end(p, &m);
}

#define MANY 20000u

typedef struct seen {
    uint8_t times[MANY]; /* that consumer was told of */
    uint32_t count;
} seen;

static void see(void *context, const offsets_half *entry) {
    seen *s = context;
    s->times[entry->id]++;
    s->count++;
}

/* Of all pages; their number. */
static uint32_t see_pages(partition *p, uint32_t page, seen *out) {
    uint32_t next = 0, pages = 0;
    memset(out, 0, sizeof(*out));
    do {
        CHECK_EQUAL(partition_offsets_unused(p, next, page, 0, &next, see, out), 0);
        pages++;
    } while (next != 0);
    return pages;
}

static partition *open_with_many(partition_options *options, model *m, uint32_t count) {
    partition *p = open_with(options, m, 100);
    for (uint32_t id = 0; id < count; id++) CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id, 5), 0);
    return p;
}

/* Also by deletions between two pages, which move entries in memory, and by what is made anew. */
static void test_pages_tell_each_entry_once_whatever_is_deleted_between_them(void) {
    static model m;
    static seen s;
    static bool there[MANY];
    partition_options options;
    uint32_t left = 3000;
    partition *p = open_with_many(&options, &m, left);
    for (uint32_t id = 0; id < left; id++) there[id] = true;
    for (uint32_t round = 0; round < 20; round++) {
        uint32_t next = 0;
        memset(&s, 0, sizeof(s));
        do {
            CHECK_EQUAL(partition_offsets_unused(p, next, 64, 0, &next, see, &s), 0);
            for (uint32_t id = round; id < 3000; id += 97) { /* some of those that were told */
                if (!there[id] || s.times[id] == 0) continue;
                CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, id), 0);
                there[id] = false;
            }
        } while (next != 0);
        for (uint32_t id = 0; id < 3000; id++) CHECK(!there[id] || s.times[id] == 1);
        see_pages(p, 64, &s);
        for (uint32_t id = 0; id < 3000; id++) CHECK_EQUAL(s.times[id], there[id]);
        for (uint32_t id = round; id < 3000; id += 5) { /* into free places, and some new ones */
            CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id, 6), 0);
            there[id] = true;
        }
        if (round % 4 == 0) p = kill_and_open(p, &options);
        see_pages(p, 200, &s);
        for (uint32_t id = 0; id < 3000; id++) CHECK_EQUAL(s.times[id], there[id]);
    }
    end(p, &m);
}

/* A page costs what it has, not what the table has. */
static void test_all_pages_together_cost_about_one_walk(void) {
    static model m;
    static seen s;
    partition_options options;
    partition *p = open_with_many(&options, &m, MANY);
    int64_t begin_us = clock_thread_cpu_us();
    for (uint32_t i = 0; i < 10; i++) CHECK_EQUAL(see_pages(p, MANY, &s), 1);
    int64_t walks_us = clock_thread_cpu_us() - begin_us;
    begin_us = clock_thread_cpu_us();
    for (uint32_t i = 0; i < 10; i++) CHECK_EQUAL(see_pages(p, 50, &s), MANY / 50);
    int64_t pages_us = clock_thread_cpu_us() - begin_us;
    CHECK_EQUAL(s.count, MANY);
    CHECK(pages_us < 40 * walks_us); /* 400 pages: as many walks, if each looked at all of the table */
    end(p, &m);
}

/* Within a day the file learns nothing of it, and where nothing is written it never does. */
static void test_each_read_is_a_use_whatever_the_file_learns(void) {
    static model m;
    partition_options options;
    const uint64_t hour_us = UINT64_C(3600000000);
    expiry_clock clock = {.wall_us = wall_of_test, .monotonic_us = monotonic_of_test};
    uint32_t next;
    uint64_t value;
    wall_now_us = 24000 * hour_us;
    partition *p = open_with(&options, &m, 100);
    options.clock = &clock;
    p = kill_and_open(p, &options);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 5), 0);
    for (unsigned refuses = 0; refuses < 2; refuses++) {
        if (refuses) inside_set_state(p, STATUS_CANNOT_WRITE_TO_FILE);
        for (unsigned hour = 0; hour < 71; hour++) {
            wall_now_us += hour_us;
            CHECK(partition_offset_read(p, OFFSET_CONSUMER, 1, &value));
            told found = {0};
            CHECK_EQUAL(partition_offsets_unused(p, 0, 12, hour_us, &next, tell, &found), 0);
            CHECK_EQUAL(found.count, 0);
        }
    }
    inside_set_state(p, 0);
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_a_table_of_version_1_opens_and_becomes_version_2_with_the_first_store);
    RUN(test_a_table_of_version_1_stays_while_the_disk_is_full);
    RUN(test_an_entry_tells_who_stored_it_and_when_it_was_used);
    RUN(test_what_was_not_used_for_an_age_is_told_in_pages);
    RUN(test_pages_tell_each_entry_once_whatever_is_deleted_between_them);
    RUN(test_all_pages_together_cost_about_one_walk);
    RUN(test_each_read_is_a_use_whatever_the_file_learns);
    test_root_remove();
    return check_report();
}
