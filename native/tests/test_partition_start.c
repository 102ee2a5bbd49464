/* The log start: by age, by limits, by size; what stored offsets hold back; what a restart knows of it; clocks that
 * jump. */
#include "stepped_clock.h"
#include "test_partition_support.h"

#include "log/expiry_clock.h"
#include "log/recover.h"

#include <inttypes.h>

#define SECOND UINT64_C(1000000)

static expiry_clock fresh_clock(uint64_t jump_max_us) {
    return (expiry_clock){.wall_us = wall, .monotonic_us = monotonic, .own = {.jump_max_us = jump_max_us}};
}

static char trash[160];
static expiry_clock test_clock;

static partition *opened(partition_options *options, partition_limits *limits) {
    test_clock = fresh_clock(0);
    wall_now = 1000 * SECOND;
    monotonic_now = 5000000;
    options->clock = &test_clock;
    options->limits = limits;
    snprintf(trash, sizeof(trash), "%s/trash-%s", test_root, strrchr(options->directory, '/') + 1);
    return partition_open(options, NULL, 0);
}

/* First offset and number of messages as every kind of poll, the figures and the shared statistics have them. */
static void check_start(partition *p, const model *m, uint64_t first) {
    poll_cursor cursor;
    const uint8_t kinds[] = {POLL_OFFSET, POLL_FIRST, POLL_TIMESTAMP, POLL_NEXT, POLL_LAST};
    for (size_t i = 0; i < sizeof(kinds); i++) {
        CHECK_EQUAL(partition_poll(p, kinds[i], 0, UINT32_MAX, OFFSET_CONSUMER, 77, &cursor), 0);
        CHECK_EQUAL(cursor.total_count, m->count - first);
        CHECK(cursor.total_count == 0 || cursor.next_offset == first);
        while (check_window(m, &cursor, 700)) {
        }
        partition_cursor_end(&cursor);
    }
    uint64_t bytes = 0;
    for (uint64_t i = first; i < m->count; i++) bytes += m->records[i].size;
    CHECK_EQUAL(partition_first_offset(p), first);
    CHECK_EQUAL(partition_messages(p), m->count - first);
    CHECK_EQUAL(partition_size_bytes(p), bytes);
    CHECK_EQUAL(stats.first_offset, first);
    CHECK_EQUAL(stats.size_bytes, bytes);
    CHECK_EQUAL(stats.messages_count, m->count - first);
}

/* Steps of the retention and syncs until nothing is left to do. */
static void clean(partition *p) {
    partition_cleaned done = {.pending = true};
    for (int i = 0; i < 50 && (done.pending || i < 3); i++) {
        CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
        sync_all(p);
        monotonic_now += 1500000;
        wall_now += 1; /* nearly nothing expires meanwhile */
    }
}

static void test_a_message_is_served_until_its_last_microsecond(void) {
    partition_options options = options_of(1 << 20);
    partition_limits limits = {.expiry_us = 10 * SECOND};
    static model m;
    model_init(&m, 1 << 20);
    partition *p = opened(&options, &limits);
    for (int i = 0; i < 20; i++) {
        append(p, &m, 1, 100, wall_now);
        pass(SECOND);
    }
    /* message i is from second 1000 + i; now is 1020: those of 1000 to 1010 have expired */
    check_start(p, &m, 11);
    wall_now -= 1;
    pass(SECOND); /* one microsecond before that of 1011 goes */
    check_start(p, &m, 11);
    pass(1);
    check_start(p, &m, 12);
    pass(100 * SECOND);
    check_start(p, &m, 20);
    append(p, &m, 1, 100, wall_now);
    check_start(p, &m, 20);
    pass(10 * SECOND);
    check_start(p, &m, 21);
    end(p, &m);
}

static void test_quiet_partitions_end_with_one_empty_segment(void) {
    partition_options options = options_of(512);
    partition_limits limits = {.expiry_us = 10 * SECOND};
    static model m;
    model_init(&m, 512);
    partition *p = opened(&options, &limits);
    for (int i = 0; i < 20; i++) append(p, &m, 1, 200, wall_now);
    pass(SECOND);
    clean(p);
    CHECK(inside_segments(p)->count > 5);
    pass(20 * SECOND);
    clean(p);
    CHECK_EQUAL(inside_segments(p)->count, 1);
    CHECK_EQUAL(inside_segments(p)->items[0].count, 0);
    CHECK_EQUAL(inside_segments(p)->items[0].start_offset, 20);
    CHECK_EQUAL(stats.segments_count, 1);
    partition_close(p);
    recovered_partition found;
    CHECK(recover_partition(options.directory, 1, no_boot, &found));
    CHECK_EQUAL(found.segments_count, 1);
    CHECK_EQUAL(found.log_start, 20);
    recover_free(&found);
    partition_release(p);
    model_free(&m);
}

static void test_nothing_goes_within_a_second_of_its_acknowledgement_or_before_a_sync(void) {
    partition_options options = options_of(512);
    partition_limits limits = {.expiry_us = 1000};
    static model m;
    model_init(&m, 512);
    partition *p = opened(&options, &limits);
    partition_cleaned done;
    CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
    for (int i = 0; i < 20; i++) append(p, &m, 1, 200, wall_now);
    wall_now += 1000; /* expired, yet acknowledged just now */
    uint32_t before = inside_segments(p)->count;
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
        sync_all(p);
        CHECK_EQUAL(done.removed, 0);
        CHECK(done.pending);
    }
    check_start(p, &m, 20);
    CHECK(inside_segments(p)->count >= before);
    pass(SECOND - 1);
    partition_clean(p, monotonic_now, trash, &done);
    CHECK_EQUAL(done.removed, 0); /* the second begins with the look that saw them */
    pass(1);
    append(p, &m, 1, 200, wall_now); /* not on the device: what a manifest says must not be ahead of it */
    partition_clean(p, monotonic_now, trash, &done);
    CHECK(done.removed > 0);
    CHECK(inside_start(p)->synced <= inside_sync(p)->durable_end);
    end(p, &m);
}

static void test_stored_offsets_hold_messages_for_a_while(void) {
    partition_options options = options_of(512);
    partition_limits limits = {.expiry_us = 10 * SECOND, .held_us = 5 * SECOND};
    static model m;
    model_init(&m, 512);
    partition *p = opened(&options, &limits);
    for (int i = 0; i < 10; i++) append(p, &m, 1, 200, wall_now);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 3), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 2, 8), 0);
    pass(12 * SECOND);
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, 100, OFFSET_CONSUMER, 9, &cursor), 0);
    CHECK_EQUAL(cursor.next_offset, 4); /* whoever asks: what it holds is readable to all */
    CHECK_EQUAL(cursor.total_count, 6);
    partition_cursor_end(&cursor);
    partition_cleaned done;
    partition_clean(p, monotonic_now, trash, &done);
    CHECK(done.held);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 5), 0);
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, 100, OFFSET_CONSUMER, 9, &cursor), 0);
    CHECK_EQUAL(cursor.next_offset, 6); /* it has passed them */
    partition_cursor_end(&cursor);
    pass(3 * SECOND - 3);
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, 100, OFFSET_CONSUMER, 9, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, 4);
    partition_cursor_end(&cursor);
    pass(3);
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, 100, OFFSET_CONSUMER, 9, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, 0); /* no longer than that */
    partition_cursor_end(&cursor);
    end(p, &m);
}

static void test_a_limit_of_messages_and_an_early_roll(void) {
    partition_options options = options_of(1 << 20);
    partition_limits limits = {.messages_max = 7};
    static model m;
    model_init(&m, 1 << 20);
    partition *p = opened(&options, &limits);
    for (int i = 0; i < 20; i++) append(p, &m, 1, 200, wall_now);
    clean(p);
    check_start(p, &m, 13);
    partition_oldest oldest;
    CHECK(!partition_oldest_segment(p, &oldest));
    CHECK(oldest.only_active);
    CHECK_EQUAL(partition_drop_oldest(p), 0);
    CHECK_EQUAL(partition_roll_early(p), 0);
    CHECK(partition_oldest_segment(p, &oldest));
    CHECK_EQUAL(oldest.bytes, partition_size_bytes(p));
    CHECK_EQUAL(partition_drop_oldest(p), oldest.bytes);
    CHECK_EQUAL(partition_messages(p), 0);
    CHECK_EQUAL(stats.first_offset, 20);
    append(p, &m, 1, 200, wall_now);
    CHECK(!partition_oldest_segment(p, &oldest));
    CHECK(oldest.waits);
    CHECK_EQUAL(partition_roll_early(p), 0); /* acknowledged just now */
    CHECK_EQUAL(inside_segments(p)->items[inside_segments(p)->count - 1].count, 1);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

/* A power loss leaves bytes behind the acknowledged messages that cannot be read, and as many offsets as fit there. */
static void test_offsets_that_nobody_can_read_push_no_message_out(void) {
    partition_options options = options_of(1 << 20);
    partition_limits limits = {.messages_max = 7};
    static model m;
    model_init(&m, 1 << 20);
    partition *p = opened(&options, &limits);
    for (int i = 0; i < 30; i++) append(p, &m, 1, 200, wall_now);
    CHECK(partition_withhold(p, 10, 17, false) && partition_withhold(p, 17, 28, true));
    clean(p);
    CHECK_EQUAL(partition_first_offset(p), 5); /* and 28, 29 */
    for (int i = 0; i < 4; i++) append(p, &m, 1, 200, wall_now);
    clean(p);
    CHECK_EQUAL(partition_first_offset(p), 9);
    append(p, &m, 1, 200, wall_now);
    clean(p);
    CHECK_EQUAL(partition_first_offset(p), 28);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

/* A damaged or unreadable index hides nothing that stands before its segment from the clock. */
static void test_segments_before_an_index_that_cannot_be_read_expire(void) {
    partition_options options = options_of(2600);
    partition_limits limits = {.expiry_us = 10 * SECOND};
    static model m;
    model_init(&m, 2600);
    partition *p = opened(&options, &limits);
    for (uint64_t i = 0; i < 30; i++) append(p, &m, 1, 200, wall_now + i * SECOND);
    sync_all(p);
    partition_release(p); /* a kill */
    recovered_partition found;
    CHECK(recover_partition(options.directory, 1, no_boot, &found));
    p = partition_open(&options, found.segments, found.segments_count);
    recover_free(&found);
    CHECK(inside_segments(p)->count > 2 && inside_segments(p)->items[1].count > 3);
    uint64_t second = inside_segments(p)->items[1].start_offset;
    char index[256];
    snprintf(index, sizeof(index), "%s/%020" PRIu64 ".index", options.directory, second);
    CHECK_EQUAL(truncate(index, 0), 0);
    wall_now += (second + 2 + 10) * SECOND; /* the first segment, and three messages of the next */
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_LAST, 0, 1, OFFSET_CONSUMER, 77, &cursor), 0);
    partition_cursor_end(&cursor);
    CHECK_EQUAL(partition_first_offset(p), second);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

static void test_a_restart_knows_the_log_start(void) {
    partition_options options = options_of(1 << 20);
    partition_limits limits = {.expiry_us = 10 * SECOND};
    static model m;
    model_init(&m, 1 << 20);
    partition *p = opened(&options, &limits);
    for (int i = 0; i < 20; i++) append(p, &m, 1, 200, wall_now += SECOND);
    sync_all(p);
    monotonic_now += 20 * (int64_t)SECOND;
    wall_now = 1015 * SECOND;
    partition_cleaned done;
    partition_clean(p, monotonic_now, trash, &done);
    CHECK_EQUAL(partition_first_offset(p), 5);
    partition_release(p); /* without closing it: a kill */
    recovered_partition found;
    CHECK(recover_partition(options.directory, 1, no_boot, &found));
    CHECK_EQUAL(found.log_start, 5);
    options.limits = NULL;
    options.log_start = found.log_start;
    p = partition_open(&options, found.segments, found.segments_count);
    recover_free(&found);
    wall_now = 1000 * SECOND; /* an earlier clock and no limit bring nothing back */
    check_start(p, &m, 5);
    append(p, &m, 1, 200, wall_now);
    check_start(p, &m, 5);
    end(p, &m);
}

static bool has_log(const partition *p, uint64_t start) {
    char path[512];
    snprintf(path, sizeof path, "%s/%020" PRIu64 ".log", inside_files(p)->directory, start);
    return access(path, F_OK) == 0;
}

/* Messages are not served a moment longer; the files from the segment of the offset on stay until the lease ends. */
static void test_a_lease_keeps_files_and_serves_nothing(void) {
    partition_options options = options_of(1000);
    partition_limits limits = {.expiry_us = 10 * SECOND};
    static model m;
    model_init(&m, 1000);
    partition *p = opened(&options, &limits);
    for (int i = 0; i < 12; i++) append(p, &m, 1, 300, wall_now += SECOND);
    uint64_t second = inside_segments(p)->items[1].start_offset;
    partition_lease(p, second);
    wall_now += 60 * SECOND;
    for (int i = 0; i < 8; i++) clean(p);
    partition_cleaned done;
    CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
    CHECK(done.pending && done.leased_bytes > 0);
    CHECK_EQUAL(partition_messages(p), 0);
    CHECK(!has_log(p, 0) && has_log(p, second));
    partition_lease(p, UINT64_MAX);
    clean(p);
    CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
    CHECK(!done.pending && done.leased_bytes == 0 && !has_log(p, second));
    CHECK_EQUAL(inside_segments(p)->count, 1);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

int main(void) {
    test_root_make();
    RUN(test_a_message_is_served_until_its_last_microsecond);
    RUN(test_quiet_partitions_end_with_one_empty_segment);
    RUN(test_nothing_goes_within_a_second_of_its_acknowledgement_or_before_a_sync);
    RUN(test_stored_offsets_hold_messages_for_a_while);
    RUN(test_a_limit_of_messages_and_an_early_roll);
    RUN(test_offsets_that_nobody_can_read_push_no_message_out);
    RUN(test_segments_before_an_index_that_cannot_be_read_expire);
    RUN(test_a_restart_knows_the_log_start);
    RUN(test_a_lease_keeps_files_and_serves_nothing);
    test_root_remove();
    return check_report();
}
