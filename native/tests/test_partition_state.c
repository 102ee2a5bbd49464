/* States of a partition: closed under a cursor, with garbage in an index, syncing, read only. */
#include "test_partition_support.h"

static void test_cursor_outlives_close(void) {
    partition_options options = options_of(512);
    static model m;
    model_init(&m, 512);
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 20; i++) append(p, &m, 1, 300, 1000);
    poll_cursor cursor;
    poll_window window;
    uint32_t status;
    check_poll(&m, p, POLL_FIRST, 0, 20, 1, 1, &cursor);
    REQUIRE(partition_cursor_next(&cursor, 10000, &window, &status));
    partition_close(p);
    partition_release(p); /* the cursor keeps the memory and the file it was given */
    uint8_t bytes[4096];
    CHECK_EQUAL(pread(window.records->fd, bytes, window.length, (off_t)window.records->position), window.length);
    CHECK(memcmp(bytes, m.records[0].bytes, m.records[0].size) == 0);
    poll_window next;
    CHECK(!partition_cursor_next(&cursor, 10000, &next, &status));
    CHECK_EQUAL(status, 3007);
    append_batch b = {.messages = buffer, .count = 1, .length = make_records(buffer, 1, 5, 5)};
    partition_append(cursor.owner, &b, 1, 1);
    CHECK_EQUAL(b.status, 3007);
    poll_cursor refused;
    CHECK_EQUAL(partition_poll(cursor.owner, POLL_FIRST, 0, 1, 1, 1, &refused), 3007);
    partition_cursor_end(&refused);
    CHECK_EQUAL(partition_flush(cursor.owner), 3007);
    partition_cursor_end(&cursor);
    partition_cursor_end(&cursor); /* ending twice is harmless */
    CHECK_EQUAL(pread(window.records->fd, bytes, 1, 0), -1);
    CHECK_EQUAL(open_files.pairs.count, 0);
    model_free(&m);
}

/* Whatever stands in an index file: 10002, or windows inside the log with room for their records. */
static void test_garbage_in_the_index(void) {
    static model m;
    partition_options options = options_of(1 << 30);
    model_init(&m, 1 << 30);
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 100; i++) append(p, &m, 20, 40, 1000 + (uint64_t)i);
    partition_close(p);
    partition_release(p);
    p = reopen(&options); /* no entry in memory now */
    char path[256];
    snprintf(path, sizeof(path), "%s/%020u.index", directory, 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned errors = 0, answers = 0;
    for (int round = 0; round < 3000; round++) {
        uint64_t k = test_random(m.count);
        index_entry entry, garbage;
        CHECK_EQUAL(pread(fd, &entry, 16, (off_t)(k * 16)), 16);
        garbage = entry;
        if (test_random(4) == 0) garbage.relative_offset ^= 1u << test_random(32);
        else if (test_random(2) == 0) garbage.end_position = (uint32_t)test_random(m.total_bytes + 1000);
        else garbage.end_position = (uint32_t)test_random(UINT32_MAX);
        CHECK_EQUAL(pwrite(fd, &garbage, 16, (off_t)(k * 16)), 16);
        poll_cursor cursor;
        poll_window w;
        uint64_t start = k - (k < 5 ? k : test_random(5)), sent = 0;
        uint32_t status = partition_poll(p, POLL_OFFSET, start, 1 + (uint32_t)test_random(30), 1, 1, &cursor);
        while (status == 0 && partition_cursor_next(&cursor, 1 + test_random(1500), &w, &status)) {
            CHECK(w.records->position + w.length <= m.total_bytes);
            CHECK(w.length >= w.count * RECORD_HEADER_SIZE);
            sent += w.length;
        }
        CHECK(status == 0 || status == 10002);
        CHECK(status != 0 || sent == cursor.total_bytes);
        *(status == 0 ? &answers : &errors) += 1;
        partition_cursor_end(&cursor);
        CHECK_EQUAL(pwrite(fd, &entry, 16, (off_t)(k * 16)), 16);
    }
    CHECK(errors > 300 && answers > 300);
    CHECK_EQUAL(ftruncate(fd, 100), 0);
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_OFFSET, 1000, 5, 1, 1, &cursor), 10002);
    close(fd);
    end(p, &m);
}

static void test_sync_moves_the_durable_end(void) {
    partition_options options = options_of(1024);
    static model m;
    model_init(&m, 1024);
    partition *p = partition_open(&options, NULL, 0);
    int fds[64], few[2];
    append(p, &m, 10, 100, 1000);
    CHECK(partition_is_dirty(p));
    CHECK_EQUAL(atomic_load(&stats.durable_offset), 0);
    size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    CHECK(count >= 4); /* directories, log, index */
    for (size_t i = 0; i < count; i++) CHECK_EQUAL(fdatasync(fds[i]) | close(fds[i]), 0);
    append(p, &m, 5, 100, 1001); /* after the sync has begun */
    CHECK_EQUAL(partition_sync_begin(p, SYNC_EVERYTHING, few, 2), 0);
    partition_sync_done(p, 0);
    CHECK_EQUAL(atomic_load(&stats.durable_offset), 10);
    CHECK(partition_is_dirty(p));
    for (int i = 0; i < 5; i++) append(p, &m, 4, 400, 1002);
    CHECK_EQUAL(partition_sync_begin(p, SYNC_EVERYTHING, few, 2), 2); /* not all of it: the durable end stays */
    close(few[0]), close(few[1]);
    partition_sync_done(p, 0);
    CHECK_EQUAL(atomic_load(&stats.durable_offset), 10);
    sync_all(p);
    CHECK_EQUAL(atomic_load(&stats.durable_offset), m.count);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 3, 1), 0);
    CHECK(partition_is_dirty(p));
    sync_all(p);
    append(p, &m, 1, 100, 1003);
    count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    for (size_t i = 0; i < count; i++) close(fds[i]);
    partition_sync_done(p, EIO);
    CHECK_EQUAL(partition_state(p), 10009);
    CHECK_EQUAL(atomic_load(&stats.state), 10009);
    CHECK_EQUAL(atomic_load(&stats.durable_offset), m.count - 1);
    CHECK(!partition_is_dirty(p));
    CHECK_EQUAL(partition_sync_begin(p, SYNC_EVERYTHING, fds, 64), 0); /* never tried again */
    append_batch b = {.messages = buffer, .count = 1, .length = make_records(buffer, 1, 5, 5)};
    partition_append(p, &b, 1, 2000);
    CHECK_EQUAL(b.status, 10009);
    check_poll(&m, p, POLL_FIRST, 0, 1000, 1, 1, &(poll_cursor){0});
    partition_release(p); /* the reference of that cursor */
    end(p, &m);
}

/* Another sync, of names or of a sealed segment, fails while this one runs. */
static void test_sync_that_succeeds_counts_although_another_one_was_lost(void) {
    partition_options options = options_of(1024);
    static model m;
    model_init(&m, 1024);
    partition *p = partition_open(&options, NULL, 0);
    int fds[64];
    append(p, &m, 10, 100, 1000);
    size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    partition_sync_lost(p);
    for (size_t i = 0; i < count; i++) CHECK_EQUAL(fdatasync(fds[i]) | close(fds[i]), 0);
    CHECK(partition_sync_done(p, 0));
    CHECK_EQUAL(atomic_load(&stats.durable_offset), 10);
    CHECK_EQUAL(partition_state(p), 10009);
    CHECK_EQUAL(partition_sync_begin(p, SYNC_EVERYTHING, fds, 64), 0); /* nothing is tried again */
    end(p, &m);
}

/* Opened after a kill: nothing counts as durable before a sync has covered all segments. */
static void test_nothing_is_durable_after_a_kill(void) {
    partition_options options = options_of(512);
    static model m;
    model_init(&m, 512);
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 100; i++) append(p, &m, 1, 300, 1000);
    partition_release(p);
    p = reopen(&options);
    CHECK_EQUAL(atomic_load(&stats.next_offset), 100);
    CHECK_EQUAL(atomic_load(&stats.durable_offset), 0);
    CHECK(partition_is_dirty(p));
    sync_all(p);
    CHECK_EQUAL(atomic_load(&stats.durable_offset), 100);
    end(p, &m);
}

/* Deleted while its shard was starting: its slot has another owner when it is closed at last. */
static void test_a_slot_that_was_given_to_another_partition_is_left_alone(void) {
    partition_options options = options_of(4096);
    static model m;
    model_init(&m, 4096);
    partition *p = partition_open(&options, NULL, 0);
    append(p, &m, 3, 50, 1000);
    atomic_store(&stats.incarnation, options.incarnation + 1);
    atomic_store(&stats.next_offset, 77);
    end(p, &m);
    CHECK_EQUAL(atomic_load(&stats.incarnation), options.incarnation + 1);
    CHECK_EQUAL(atomic_load(&stats.next_offset), 77);
    p = partition_open(&options, NULL, 0);
    CHECK_EQUAL(atomic_load(&stats.incarnation), options.incarnation);
    partition_close(p);
    CHECK_EQUAL(atomic_load(&stats.incarnation), 0);
    partition_release(p);
}

static void test_damaged_partition_is_read_only(void) {
    partition_options options = options_of(4096);
    static model m;
    model_init(&m, 4096);
    partition *p = partition_open(&options, NULL, 0);
    append(p, &m, 10, 50, 1000);
    partition_close(p);
    partition_release(p);
    segment_info segments[2] = {{0, 5 * 114, 5, 1000, 1000, 0, NULL, 0},
                                {8, 0, 0, 0, 0, 0, NULL, 0}}; /* offsets 5..7 are gone */
    options.state = 10002;
    p = partition_open(&options, segments, 2);
    append_batch b = {.messages = buffer, .count = 1, .length = make_records(buffer, 1, 5, 5)};
    partition_append(p, &b, 1, 2000);
    CHECK_EQUAL(b.status, 10002);
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, 100, 1, 1, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, 5);
    CHECK_EQUAL(cursor.current_offset, 7);
    m.count = 5;
    while (check_window(&m, &cursor, 300)) {
    }
    m.count = 10;
    partition_cursor_end(&cursor);
    CHECK_EQUAL(partition_poll(p, POLL_OFFSET, 6, 1, 1, 1, &cursor), 4027);
    end(p, &m);
}

/* What could not be read at the start is not "empty": a consumer would believe it had everything. */
static void test_an_unreadable_partition_says_so(void) {
    partition_options options = options_of(4096);
    poll_cursor cursor;
    options.state = 10006;
    partition *p = partition_open(&options, NULL, 0);
    for (uint8_t strategy = POLL_OFFSET; strategy <= POLL_NEXT; strategy++)
        CHECK_EQUAL(partition_poll(p, strategy, 0, 10, OFFSET_CONSUMER, 1, &cursor), 10002);
    append_batch b = {.messages = buffer, .count = 1, .length = make_records(buffer, 1, 5, 5)};
    partition_append(p, &b, 1, 1000);
    CHECK_EQUAL(b.status, 10006);
    partition_close(p);
    partition_release(p);
}

int main(void) {
    test_root_make();
    RUN(test_an_unreadable_partition_says_so);
    RUN(test_cursor_outlives_close);
    RUN(test_garbage_in_the_index);
    RUN(test_sync_moves_the_durable_end);
    RUN(test_sync_that_succeeds_counts_although_another_one_was_lost);
    RUN(test_nothing_is_durable_after_a_kill);
    RUN(test_a_slot_that_was_given_to_another_partition_is_left_alone);
    RUN(test_damaged_partition_is_read_only);
    test_root_remove();
    return check_report();
}
