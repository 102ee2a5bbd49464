/* Blocks that are reserved for large batches: never seen, never more than there is already, and given back. */
#include "test_partition_support.h"

#include "fault_disk.h"
#include "log/room.h"

#include <errno.h>
#include <sys/stat.h>

#define BODY 50000u
#define SLACK_BYTES (256u << 10) /* what the file system itself takes ahead of its writing, or for its own lists */

static fault_disk faulty;

static struct stat log_file(uint64_t start) {
    char path[256];
    struct stat st = {0};
    snprintf(path, sizeof(path), "%s/%020" PRIu64 ".log", directory, start);
    CHECK_EQUAL(stat(path, &st), 0);
    return st;
}

static uint64_t blocks(uint64_t start) { return (uint64_t)log_file(start).st_blocks * 512; }

static partition *open_with(partition_options *o, partition_level level, uint64_t segment_size_bytes, model *m) {
    *o = options_of(segment_size_bytes);
    fault_disk_init(&faulty);
    o->disk = &faulty.disk;
    o->level = level;
    partition *p = partition_open(o, NULL, 0);
    model_init(m, segment_size_bytes);
    return p;
}

static void test_large_batches_reserve_what_nobody_sees(void) {
    static model m;
    partition_options o;
    partition *p = open_with(&o, LEVEL_WRITTEN, 64 << 20, &m);
    for (int i = 0; i < 60; i++) {
        append(p, &m, 1, BODY, 1000);
        CHECK_EQUAL(log_file(0).st_size, (off_t)m.total_bytes);
        CHECK(blocks(0) <= 2 * m.total_bytes + SLACK_BYTES);
    }
    CHECK(faulty.calls[FAULT_ALLOCATE] > 0 && faulty.calls[FAULT_ALLOCATE] < 5);
    check_whole(&m, p);
    CHECK(blocks(0) > m.total_bytes + SLACK_BYTES);
    partition_release(p); /* killed */
    p = reopen(&o);
    check_whole(&m, p);
    append(p, &m, 1, BODY, 1000);
    partition_close(p);
    CHECK(blocks(0) <= m.total_bytes + SLACK_BYTES);
    partition_release(p);
    model_free(&m);
}

static void test_a_sealed_segment_has_nothing_reserved(void) {
    static model m;
    partition_options o;
    partition *p = open_with(&o, LEVEL_WRITTEN, 3 << 20, &m);
    while (partition_segments(p) < 2) append(p, &m, 1, BODY, 1000);
    CHECK(blocks(0) <= (uint64_t)log_file(0).st_size + SLACK_BYTES);
    end(p, &m);
}

static void test_small_logs_small_batches_and_durable_ones_reserve_nothing(void) {
    static model m;
    partition_options o;
    partition *p = open_with(&o, LEVEL_WRITTEN, 64 << 20, &m);
    for (int i = 0; i < 19; i++) append(p, &m, 1, BODY, 1000); /* below RESERVE_BYTES_MIN */
    CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 0);
    for (int i = 0; i < 100; i++) append(p, &m, 1, RESERVE_BATCH_BYTES / 2, 1000);
    CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 0);
    end(p, &m);
}

static void test_a_file_system_that_refuses_is_asked_once_for_each_segment(void) {
    static model m;
    partition_options o;
    partition *p = open_with(&o, LEVEL_WRITTEN, 3 << 20, &m);
    fault_disk_plan(&faulty, FAULT_ALLOCATE, 1, 1000, EOPNOTSUPP, 0);
    while (partition_segments(p) < 3) append(p, &m, 1, BODY, 1000);
    CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 2);
    check_whole(&m, p);
    end(p, &m);
}

static void test_a_change_of_the_level_gives_back_what_is_ahead(void) {
    static model m;
    partition_options o;
    partition *p = open_with(&o, LEVEL_WRITTEN, 64 << 20, &m);
    for (int i = 0; i < 60; i++) append(p, &m, 1, BODY, 1000);
    CHECK_EQUAL(partition_set_level(p, LEVEL_DURABLE), 0);
    for (int i = 0; i < 30; i++) append(p, &m, 1, BODY, 1000);
    CHECK_EQUAL(partition_set_level(p, LEVEL_WRITTEN), 0);
    CHECK_EQUAL(log_file(0).st_size, (off_t)m.total_bytes);
    for (int i = 0; i < 30; i++) append(p, &m, 1, BODY, 1000);
    check_whole(&m, p);
    partition_close(p);
    CHECK(blocks(0) <= m.total_bytes + SLACK_BYTES);
    partition_release(p);
    model_free(&m);
}

/* Also when nothing comes any more that would be written into it. */
static void test_what_was_reserved_at_another_level_is_given_back(void) {
    static const partition_level levels[] = {LEVEL_MEMORY, LEVEL_DURABLE};
    for (unsigned i = 0; i < 2; i++) {
        static model m;
        partition_options o;
        partition *p = open_with(&o, LEVEL_WRITTEN, 64 << 20, &m);
        for (int n = 0; n < 60; n++) append(p, &m, 1, BODY, 1000);
        CHECK(blocks(0) > m.total_bytes + SLACK_BYTES);
        CHECK_EQUAL(partition_set_level(p, levels[i]), 0);
        partition_close(p);
        CHECK(blocks(0) <= m.total_bytes + SLACK_BYTES);
        partition_release(p);
        model_free(&m);
    }
}

/* The sends of a moment may take no more of the disk than their budget, however many partitions they go to. */
static void test_what_is_reserved_leaves_room_for_what_is_written(void) {
    static model m;
    partition_options o;
    room r;
    REQUIRE(room_open(&r, "/", 4096, 1) == 0 && !r.refused);
    partition *p = open_with(&o, LEVEL_WRITTEN, 64 << 20, &m);
    partition_close(p);
    partition_release(p);
    o.room = &r;
    p = reopen(&o);
    r.budget = 1 << 20;
    for (int i = 0; i < 60; i++) append(p, &m, 1, BODY, 1000);
    CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 0);
    CHECK_EQUAL(r.budget, 1 << 20);
    r.budget = 64 << 20;
    append(p, &m, 1, BODY, 1000);
    CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 1);
    CHECK(r.budget > (56u << 20) && r.budget < (62u << 20)); /* as much as the log has */
    r.refused = true;
    for (int i = 0; i < 120; i++) append(p, &m, 1, BODY, 1000);
    CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 1);
    check_whole(&m, p);
    end(p, &m);
    room_close(&r);
}

int main(void) {
    test_root_make();
    RUN(test_large_batches_reserve_what_nobody_sees);
    RUN(test_a_sealed_segment_has_nothing_reserved);
    RUN(test_small_logs_small_batches_and_durable_ones_reserve_nothing);
    RUN(test_a_file_system_that_refuses_is_asked_once_for_each_segment);
    RUN(test_a_change_of_the_level_gives_back_what_is_ahead);
    RUN(test_what_was_reserved_at_another_level_is_given_back);
    RUN(test_what_is_reserved_leaves_room_for_what_is_written);
    test_root_remove();
    return check_report();
}
