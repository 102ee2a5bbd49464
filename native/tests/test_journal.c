/* The journal of level `memory`, without a partition: what it takes, what it refuses, and whose memory it has. */
#include "check.h"
#include "partition_inside.h"

#include <string.h>

#define BYTES_MAX 10000u
#define RECORDS_MAX 8u

static uint64_t taken, given;

static void *take(void *context, size_t bytes) {
    (void)context;
    taken++;
    return malloc(bytes);
}

static void give(void *context, void *block) {
    (void)context;
    given++;
    free(block);
}

static journal_memory memory_of(uint64_t bytes_max) {
    taken = given = 0;
    return (journal_memory){.take = take, .give = give, .bytes_max = bytes_max};
}

static bool take_group(journal *j, uint8_t fill, size_t bytes, uint64_t records) {
    static uint8_t first[BYTES_MAX], second[BYTES_MAX];
    memset(first, fill, bytes / 2);
    memset(second, fill + 1, bytes - bytes / 2);
    const struct iovec batches[2] = {{first, bytes / 2}, {second, bytes - bytes / 2}};
    return journal_take(j, batches, 2, bytes, records);
}

static void test_groups_stand_behind_each_other(void) {
    journal_memory memory = memory_of(1 << 20);
    journal j;
    journal_open(&j, &memory, BYTES_MAX, RECORDS_MAX);
    CHECK(journal_is_empty(&j) && journal_records(&j) == 0);
    CHECK(take_group(&j, 'a', 3000, 2));
    CHECK(take_group(&j, 'c', 5000, 3)); /* a larger block: what was there moves along */
    CHECK_EQUAL(journal_bytes(&j), 8000);
    CHECK_EQUAL(journal_records(&j), 5);
    struct iovec part = journal_part(&j);
    const uint8_t *bytes = part.iov_base;
    CHECK_EQUAL(part.iov_len, 8000);
    CHECK(bytes[0] == 'a' && bytes[1500] == 'b' && bytes[3000] == 'c' && bytes[7999] == 'd');
    CHECK_EQUAL(memory.used_bytes, 8192);
    journal_free(&j);
    CHECK_EQUAL(memory.used_bytes, 0);
    CHECK_EQUAL(given, taken);
}

static void test_a_full_journal_takes_nothing(void) {
    journal j;
    journal_open(&j, NULL, BYTES_MAX, RECORDS_MAX);
    CHECK(!take_group(&j, 'a', BYTES_MAX, 1));
    CHECK(!take_group(&j, 'a', 100, RECORDS_MAX));
    CHECK(journal_is_empty(&j));
    CHECK(take_group(&j, 'a', BYTES_MAX - 1, RECORDS_MAX - 1));
    CHECK(!take_group(&j, 'b', 1, 0));
    CHECK_EQUAL(journal_records(&j), RECORDS_MAX - 1);
    journal_free(&j);
    journal_open(&j, NULL, 0, 0);
    CHECK(!take_group(&j, 'a', 1, 1));
    journal_free(&j);
}

static void test_without_memory_the_journal_stays_as_it_is(void) {
    journal_memory memory = memory_of(4096);
    journal j;
    journal_open(&j, &memory, BYTES_MAX, RECORDS_MAX);
    CHECK(take_group(&j, 'a', 3000, 2));
    CHECK(!take_group(&j, 'b', 3000, 2));
    CHECK_EQUAL(journal_bytes(&j), 3000);
    CHECK_EQUAL(journal_records(&j), 2);
    journal_free(&j);
    CHECK_EQUAL(given, 1);
}

static void test_a_written_journal_keeps_its_block(void) {
    journal_memory memory = memory_of(1 << 20);
    journal j;
    journal_open(&j, &memory, BYTES_MAX, RECORDS_MAX);
    CHECK(take_group(&j, 'a', 3000, 2));
    journal_written(&j);
    CHECK(journal_is_empty(&j) && journal_records(&j) == 0);
    CHECK(take_group(&j, 'c', 3000, 2));
    CHECK_EQUAL(taken, 1);
    journal_free(&j);
}

int main(void) {
    RUN(test_groups_stand_behind_each_other);
    RUN(test_a_full_journal_takes_nothing);
    RUN(test_without_memory_the_journal_stays_as_it_is);
    RUN(test_a_written_journal_keeps_its_block);
    return check_report();
}
