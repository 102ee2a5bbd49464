/* Space of a log behind its records, without a partition: what is cut, what becomes zeros, when it is asked for. */
#include "check.h"
#include "fault_disk.h"
#include "partition_inside.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEGMENT_BYTES (64u << 20)
#define RECORDS 5000u

static fault_disk faulty;
static int fd;

/* A log with so many bytes of records and `behind` others. */
static space begin(uint32_t behind) {
    uint8_t bytes[4096];
    memset(bytes, 'x', sizeof bytes);
    fault_disk_init(&faulty);
    fd = memfd_create("log", 0);
    for (uint32_t at = 0; at < RECORDS + behind; at += 1000) CHECK_EQUAL(pwrite(fd, bytes, 1000, at), 1000);
    space sp = {0};
    space_begins(&sp, false, true);
    if (behind > 0) space_left_behind(&sp, RECORDS + behind);
    return sp;
}

static uint64_t length(void) {
    struct stat s;
    CHECK_EQUAL(fstat(fd, &s), 0);
    return (uint64_t)s.st_size;
}

static void test_what_a_failed_write_left_is_cut(void) {
    space sp = begin(2000);
    CHECK(space_has_refused(&sp) && space_must_cut(&sp, RECORDS, false) && space_must_cut(&sp, RECORDS, true));
    CHECK_EQUAL(space_cut_back(&sp, &faulty.disk, fd, RECORDS), 0);
    CHECK_EQUAL(length(), RECORDS);
    CHECK(!space_has_stale(&sp) && !space_must_cut(&sp, RECORDS, false));
    CHECK_EQUAL(space_cuts(&sp), 1);
    close(fd);
}

static void test_what_cannot_be_cut_becomes_zeros(void) {
    space sp = begin(2000);
    uint8_t byte = 0;
    fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, 2, EPERM, 0);
    CHECK_EQUAL(space_cut(&sp, &faulty.disk, fd, RECORDS), EPERM);
    CHECK(space_has_refused(&sp));
    CHECK_EQUAL(space_cut_back(&sp, &faulty.disk, fd, RECORDS), 0);
    CHECK_EQUAL(length(), RECORDS + 2000);
    CHECK(pread(fd, &byte, 1, RECORDS - 1) == 1 && byte == 'x');
    CHECK(pread(fd, &byte, 1, RECORDS) == 1 && byte == 0);
    CHECK(pread(fd, &byte, 1, RECORDS + 1999) == 1 && byte == 0);
    CHECK(!space_has_refused(&sp) && space_must_cut(&sp, RECORDS, false) && !space_must_cut(&sp, RECORDS, true));
    close(fd);
}

static void test_what_can_be_neither_cut_nor_zeroed_is_an_error(void) {
    space sp = begin(2000);
    fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, 1, EPERM, 0);
    fault_disk_plan(&faulty, FAULT_WRITE, 1, 1, EIO, 0);
    CHECK_EQUAL(space_cut_back(&sp, &faulty.disk, fd, RECORDS), EIO);
    CHECK(space_has_refused(&sp));
    space_overwritten(&sp, RECORDS + 1000);
    CHECK(space_has_refused(&sp));
    space_overwritten(&sp, RECORDS + 2000);
    CHECK(!space_has_stale(&sp));
    close(fd);
}

static void test_a_durable_log_grows_ahead_until_it_is_refused(void) {
    space sp = begin(0);
    space_begins(&sp, true, true);
    CHECK(space_is_wanted(&sp, 1));
    space_make(&sp, &faulty.disk, fd, RECORDS, 100, SEGMENT_BYTES);
    CHECK_EQUAL(length(), RECORDS + 100 + ALLOCATE_AHEAD_BYTES);
    CHECK(space_has_stale(&sp) && !space_has_refused(&sp) && !space_must_cut(&sp, RECORDS, true));
    CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 1);
    space_make(&sp, &faulty.disk, fd, RECORDS + 100, 100, SEGMENT_BYTES); /* there is enough */
    CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 1);
    fault_disk_plan(&faulty, FAULT_ALLOCATE, 1, 1, EOPNOTSUPP, 0);
    space_make(&sp, &faulty.disk, fd, RECORDS, ALLOCATE_AHEAD_BYTES + 1000, SEGMENT_BYTES);
    CHECK(!space_allocates_ahead(&sp) && !space_is_wanted(&sp, 1));
    close(fd);
}

static void test_blocks_are_reserved_for_large_batches_behind_a_large_log(void) {
    space sp = begin(0);
    CHECK(!space_is_wanted(&sp, RESERVE_BATCH_BYTES - 1) && space_is_wanted(&sp, RESERVE_BATCH_BYTES));
    space_make(&sp, &faulty.disk, fd, RECORDS, RESERVE_BATCH_BYTES, SEGMENT_BYTES);
    CHECK(!space_has_reserved(&sp)); /* of a small log */
    space_make(&sp, &faulty.disk, fd, RESERVE_BYTES_MIN, RESERVE_BATCH_BYTES, SEGMENT_BYTES);
    CHECK(space_has_reserved(&sp));
    CHECK_EQUAL(length(), RECORDS);
    space_is_unreserved(&sp);
    space_give_back(&sp, &faulty.disk, fd, RECORDS);
    CHECK(!space_has_reserved(&sp));
    CHECK_EQUAL(length(), RECORDS);
    close(fd);
}

int main(void) {
    RUN(test_what_a_failed_write_left_is_cut);
    RUN(test_what_cannot_be_cut_becomes_zeros);
    RUN(test_what_can_be_neither_cut_nor_zeroed_is_an_error);
    RUN(test_a_durable_log_grows_ahead_until_it_is_refused);
    RUN(test_blocks_are_reserved_for_large_batches_behind_a_large_log);
    return check_report();
}
