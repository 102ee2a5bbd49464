/* The stored offsets of one partition: the file byte by byte, torn writes, damage, the bound, places that are used
 * again, disks that take nothing more. Power cuts: test_partition_power_offsets.c. */
#include "test_offsets_support.h"

/* Every length of the write of a second value: the first or the second, never anything else. */
static void test_a_write_that_is_torn_at_any_byte_leaves_the_value_before(void) {
    static model m;
    partition_options options;
    uint8_t before[512], after[512], torn[512];
    partition *p = open_with(&options, &m, 100);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 9, 50), 0);
    for (uint64_t value = 10; value < 13; value++) { /* in both halves */
        CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 7, value), 0);
        size_t length = read_table(before, sizeof(before));
        CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 7, value + 1), 0);
        size_t grown = read_table(after, sizeof(after));
        memset(before + length, 0, sizeof(before) - length);
        for (size_t at = 0; at <= grown; at++) {
            memcpy(torn, after, at);
            memcpy(torn + at, before + at, sizeof(torn) - at);
            write_table(torn, grown);
            partition *other = reopen(&options);
            uint64_t found = get(other, OFFSET_CONSUMER, 7);
            CHECK(found == value || found == value + 1);
            CHECK_EQUAL(get(other, OFFSET_GROUP, 9), 50);
            CHECK_EQUAL(partition_offset_store(other, OFFSET_CONSUMER, 7, 99), 0);
            other = kill_and_open(other, &options);
            CHECK_EQUAL(get(other, OFFSET_CONSUMER, 7), 99);
            partition_release(other);
        }
        write_table(before, grown);
        p = kill_and_open(p, &options);
    }
    end(p, &m);
}

static void test_a_flipped_bit_costs_one_value_at_most(void) {
    static model m;
    partition_options options;
    uint8_t whole[1024];
    partition *p = open_with(&options, &m, 100);
    for (uint32_t id = 0; id < 4; id++)
        for (uint64_t value = 10; value < 12; value++)
            CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id, value + id), 0);
    size_t length = read_table(whole, sizeof(whole));
    CHECK_EQUAL(length, 64 + 4 * 128);
    for (size_t bit = 0; bit < length * 8; bit++) {
        whole[bit / 8] ^= (uint8_t)(1 << bit % 8);
        write_table(whole, length);
        whole[bit / 8] ^= (uint8_t)(1 << bit % 8);
        p = kill_and_open(p, &options);
        unsigned earlier = 0;
        for (uint32_t id = 0; id < 4; id++) {
            uint64_t found = get(p, OFFSET_CONSUMER, id);
            earlier += found == 10 + id;
            CHECK(found == 11 + id || found == 10 + id);
        }
        CHECK(earlier <= 1 && (bit >= 512 || earlier == 0)); /* the head costs nothing */
    }
    end(p, &m);
}

static void test_a_lost_entry_is_left_alone_and_others_go_on(void) {
    static model m;
    partition_options options;
    uint8_t data[512];
    partition *p = open_with(&options, &m, 100);
    for (uint32_t id = 0; id < 3; id++) CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id, 10 + id), 0);
    size_t length = read_table(data, sizeof(data));
    data[64 + 128 + 8] ^= 1; /* the only value of consumer 1 */
    write_table(data, length);
    p = kill_and_open(p, &options);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 0), 10);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 1), MODEL_NONE);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 2), 12);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 33), 0);
    uint8_t now[512];
    CHECK_EQUAL(read_table(now, sizeof(now)), 64 + 3 * 128 + 64);
    CHECK(memcmp(now + 192, data + 192, 128) == 0);
    p = kill_and_open(p, &options);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 1), 33);
    end(p, &m);
}

/* Whoever asks for a stored offset is refused, and never told that there is none; messages are served. */
static void check_unread(partition *p, int error) {
    poll_cursor cursor;
    CHECK_EQUAL(partition_unread_offsets(p), error);
    CHECK_EQUAL(partition_offsets_known(p), STATUS_CANNOT_READ_FILE);
    CHECK_EQUAL(partition_offset_place(p, OFFSET_CONSUMER, 1, 0), STATUS_CANNOT_READ_FILE);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 3), STATUS_CANNOT_READ_FILE);
    CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, 1), STATUS_CANNOT_READ_FILE);
    CHECK_EQUAL(partition_poll(p, POLL_NEXT, 0, 1, OFFSET_CONSUMER, 1, &cursor), STATUS_CANNOT_READ_FILE);
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, 1, OFFSET_CONSUMER, 1, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, 1);
    partition_cursor_end(&cursor);
}

static void try_head(const uint8_t *head, size_t length, bool opens, uint64_t expected) {
    static model m;
    partition_options options;
    uint8_t data[128];
    partition *p = open_with(&options, &m, 100);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 42), 0);
    read_table(data, sizeof(data));
    memcpy(data, head, length);
    write_table(data, length < 64 ? length : 128);
    partition_release(p);
    p = reopen(&options);
    if (!opens) {
        check_unread(p, EPROTO);
        end(p, &m);
        return;
    }
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 1), expected);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 2, 43), 0);
    p = kill_and_open(p, &options);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 1), expected);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 2), 43);
    end(p, &m);
}

static void test_heads(void) {
    uint8_t head[64];
    offsets_encode_head(head, 1);
    try_head(head, 64, true, 42);
    head[24] ^= 1; /* damaged: each entry proves itself */
    try_head(head, 64, true, 42);
    offsets_encode_head(head, 2); /* of another incarnation: replaced by the next store */
    try_head(head, 64, true, MODEL_NONE);
    try_head(head, 17, true, MODEL_NONE); /* its birth was cut short */
    try_head(head, 0, true, MODEL_NONE);
    memset(head, 0, sizeof(head)); /* the sector was lost: what is whole counts */
    try_head(head, 64, true, 42);
    offsets_encode_head(head, 1);
    head[8] = 3; /* a later version: never judged */
    uint64_t checksum = XXH3_64bits(head, 56);
    memcpy(head + 56, &checksum, 8);
    try_head(head, 64, false, 0);
}

static void test_a_file_of_absurd_size_is_not_read_into_memory(void) {
    static model m;
    partition_options options;
    partition *p = open_with(&options, &m, 100);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 42), 0);
    partition_release(p);
    CHECK_EQUAL(truncate(table_path(), 64 + (off_t)OFFSETS_PLACES_MAX * 128 + 1), 0);
    p = reopen(&options);
    check_unread(p, EFBIG);
    end(p, &m);
}

static void test_the_file_does_not_grow_when_consumers_come_and_go(void) {
    static model m;
    partition_options options;
    partition *p = open_with(&options, &m, 100);
    struct stat st;
    for (uint32_t round = 0; round < 300; round++) {
        CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, round, round % 100), 0);
        CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, round, round % 100), 0);
        if (round % 7 == 0) p = kill_and_open(p, &options);
        CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, round), 0);
        if (round % 5 == 0) p = kill_and_open(p, &options);
        CHECK_EQUAL(get(p, OFFSET_CONSUMER, round), MODEL_NONE);
        CHECK_EQUAL(get(p, OFFSET_GROUP, round), round % 100);
        CHECK_EQUAL(partition_offset_delete(p, OFFSET_GROUP, round), 0);
    }
    CHECK_EQUAL(stat(table_path(), &st), 0);
    CHECK(st.st_size <= 64 + 2 * 128);
    end(p, &m);
}

static void test_a_full_table_refuses_new_consumers_and_serves_the_others(void) {
    static model m;
    partition_options options;
    partition *p = open_with(&options, &m, 100);
    options.offsets_max = 3;
    p = kill_and_open(p, &options);
    for (uint32_t id = 0; id < 3; id++) CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id, 10), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 1, 10), 3023);
    CHECK_EQUAL(get(p, OFFSET_GROUP, 1), MODEL_NONE);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 11), 0);
    CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, 2), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 1, 12), 0);
    options.offsets_max = 1; /* what is stored stays */
    p = kill_and_open(p, &options);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 1), 11);
    CHECK_EQUAL(get(p, OFFSET_GROUP, 1), 12);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 13), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 5, 13), 3023);
    end(p, &m);
}

/* The deletion was lost with the power, the store into another place was not. */
static void test_of_two_entries_of_a_consumer_the_newer_one_counts(void) {
    static model m;
    partition_options options;
    uint8_t data[64 + 3 * 128] = {0};
    partition *p = open_with(&options, &m, 100);
    for (int order = 0; order < 2; order++) {
        offsets_encode_head(data, 1);
        put_half(data + 64, 5, order == 0 ? 10 : 20, order == 0 ? 3 : 7);
        put_half(data + 192, 6, 60, 4);
        put_half(data + 320, 5, order == 0 ? 20 : 10, order == 0 ? 7 : 3);
        write_table(data, sizeof(data));
        p = kill_and_open(p, &options);
        CHECK_EQUAL(get(p, OFFSET_CONSUMER, 5), 20);
        CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, 5), 0);
        p = kill_and_open(p, &options);
        CHECK_EQUAL(get(p, OFFSET_CONSUMER, 5), MODEL_NONE); /* the older one does not come back */
        CHECK_EQUAL(get(p, OFFSET_CONSUMER, 6), 60);
    }
    end(p, &m);
}

static void test_a_table_that_somebody_removed_is_made_again_with_the_next_store(void) {
    static model m;
    partition_options options;
    partition *p = open_with(&options, &m, 100);
    for (uint32_t id = 0; id < 50; id++) CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id, id), 0);
    while (file_cache_release_one(&open_files)) {
    }
    CHECK_EQUAL(unlink(table_path()), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 3, 77), 0);
    p = kill_and_open(p, &options);
    for (uint32_t id = 0; id < 50; id++) CHECK_EQUAL(get(p, OFFSET_CONSUMER, id), id == 3 ? 77 : id);
    end(p, &m);
}

/* One write of 64 bytes for a store, one descriptor for a sync, whatever the number of consumers. */
static void test_system_calls_of_many_stores(void) {
    static fault_disk faulty;
    static model m;
    partition_options options;
    fault_disk_init(&faulty);
    partition *p = open_with(&options, &m, 100);
    options.disk = &faulty.disk;
    p = kill_and_open(p, &options);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 0, 1), 0);
    sync_all(p);
    fault_disk_heal(&faulty);
    memset(faulty.calls, 0, sizeof(faulty.calls));
    for (uint32_t i = 0; i < 5000; i++) CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, i % 2500, 2), 0);
    CHECK_EQUAL(faulty.calls[FAULT_WRITE], 5000);
    CHECK_EQUAL(faulty.calls[FAULT_OPEN], 0);
    int fds[64];
    CHECK_EQUAL(partition_sync_begin(p, SYNC_ACKNOWLEDGEMENTS, fds, 64), 1);
    close(fds[0]);
    CHECK(partition_sync_done(p, 0));
    CHECK(!partition_is_dirty(p));
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

#define LOWERED 1500u /* some pieces of the file */

/* A table as it was before the log lost its end: `LOWERED` consumers, some of them below that end, two doubles. */
static size_t make_high_table(uint8_t *out) {
    memset(out, 0, 64 + (LOWERED + 1) * 128);
    offsets_encode_head(out, 1);
    for (uint32_t id = 0; id < LOWERED; id++)
        put_half(out + 64 + (size_t)id * 128 + id % 2 * 64, id, id % 3 == 0 ? id % 100 : 101 + id % 40, 10 + id);
    put_half(out + 64 + LOWERED * 128, 1, 130, 5); /* older: a deletion was lost */
    return 64 + (LOWERED + 1) * 128;
}

static void check_lowered(const partition *p) {
    for (uint32_t id = 0; id < LOWERED; id++) CHECK_EQUAL(get(p, OFFSET_CONSUMER, id), id % 3 == 0 ? id % 100 : 99);
}

static void test_offsets_behind_the_log_are_lowered_in_few_writes_and_in_the_file(void) {
    static fault_disk faulty;
    static model m;
    static uint8_t data[64 + (LOWERED + 1) * 128], before[sizeof(data)], torn[sizeof(data)];
    partition_options options;
    fault_disk_init(&faulty);
    partition *p = open_with(&options, &m, 100);
    partition_release(p);
    size_t length = make_high_table(before);
    write_table(before, length);
    options.disk = &faulty.disk;
    fault_disk_heal(&faulty);
    memset(faulty.calls, 0, sizeof(faulty.calls));
    p = reopen(&options);
    CHECK(faulty.calls[FAULT_WRITE] <= 1 + LOWERED / 250 + 1);
    check_lowered(p);
    CHECK_EQUAL(read_table(data, sizeof(data)), length);
    for (size_t at = 0; at < length; at += 397) { /* torn there: the lowered value, or the old one, lowered again */
        memcpy(torn, data, at);
        memcpy(torn + at, before + at, length - at);
        write_table(torn, length);
        partition *other = reopen(&options);
        check_lowered(other);
        partition_release(other);
    }
    write_table(data, length);
    append(p, &m, 50, 5, 1000); /* the old values do not come back now that they would be in the log */
    p = kill_and_open(p, &options);
    check_lowered(p);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 7, 120), 0);
    p = kill_and_open(p, &options);
    CHECK_EQUAL(get(p, OFFSET_CONSUMER, 7), 120);
    end(p, &m);
}

/* A disk that takes no write, or a part of it: nothing is above the log, and a later store is the one that counts. */
static void test_offsets_that_cannot_be_lowered_in_the_file_are_lowered_in_memory(void) {
    static fault_disk faulty;
    static model m;
    static uint8_t data[64 + (LOWERED + 1) * 128];
    partition_options options;
    fault_disk_init(&faulty);
    partition *p = open_with(&options, &m, 100);
    partition_release(p);
    options.disk = &faulty.disk;
    for (unsigned attempt = 0; attempt < 12; attempt++) { /* each piece of the file, at different bytes */
        write_table(data, make_high_table(data));
        fault_disk_heal(&faulty);
        memset(faulty.calls, 0, sizeof(faulty.calls));
        faulty.plan[FAULT_WRITE].at = 1 + attempt % 3;
        faulty.plan[FAULT_WRITE].times = 1000;
        faulty.plan[FAULT_WRITE].error = ENOSPC;
        faulty.plan[FAULT_WRITE].accepted = attempt / 3 * 7001;
        p = reopen(&options);
        CHECK(faulty.injected > 0);
        check_lowered(p);
        fault_disk_heal(&faulty);
        for (uint32_t id = 0; id < LOWERED; id += 3)
            CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id + 1, 50), 0);
        p = kill_and_open(p, &options);
        for (uint32_t id = 0; id < LOWERED; id += 3) CHECK_EQUAL(get(p, OFFSET_CONSUMER, id + 1), 50);
        partition_release(p);
    }
    p = reopen(&options);
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_a_write_that_is_torn_at_any_byte_leaves_the_value_before);
    RUN(test_a_flipped_bit_costs_one_value_at_most);
    RUN(test_a_lost_entry_is_left_alone_and_others_go_on);
    RUN(test_heads);
    RUN(test_a_file_of_absurd_size_is_not_read_into_memory);
    RUN(test_the_file_does_not_grow_when_consumers_come_and_go);
    RUN(test_a_full_table_refuses_new_consumers_and_serves_the_others);
    RUN(test_of_two_entries_of_a_consumer_the_newer_one_counts);
    RUN(test_a_table_that_somebody_removed_is_made_again_with_the_next_store);
    RUN(test_system_calls_of_many_stores);
    RUN(test_offsets_behind_the_log_are_lowered_in_few_writes_and_in_the_file);
    RUN(test_offsets_that_cannot_be_lowered_in_the_file_are_lowered_in_memory);
    test_root_remove();
    return check_report();
}
