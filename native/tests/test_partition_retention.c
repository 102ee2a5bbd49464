/* Deleting the oldest segments: which may go, what a reader keeps, disks that refuse, what a restart finds. */
#include "test_partition_support.h"

static char trash[160];

/* 60 messages one by one, so that segments of 512 bytes hold three; the model knows all of them. */
static partition *filled(model *m, const partition_options *options) {
    model_init(m, 512);
    snprintf(trash, sizeof(trash), "%s/trash-%s", test_root, strrchr(options->directory, '/') + 1);
    partition *p = partition_open(options, NULL, 0);
    for (uint64_t i = 0; i < 60; i++) append(p, m, 1, 200, 1000 + i);
    return p;
}

static uint32_t delete(partition *p, uint32_t count, uint32_t *deleted, bool *busy) {
    uint32_t before = inside_segments(p)->count;
    uint32_t status = partition_delete_segments(p, count, trash, deleted, busy);
    CHECK_EQUAL(inside_segments(p)->count, before - *deleted);
    return status;
}

/* Everything that is left can be read, and the figures are those of what is left. */
static void check_rest(const model *m, partition *p) {
    uint64_t first = partition_first_offset(p), bytes = 0;
    for (uint64_t i = first; i < m->count; i++) bytes += m->records[i].size;
    CHECK_EQUAL(partition_messages(p), m->count - first);
    CHECK_EQUAL(partition_size_bytes(p), bytes);
    CHECK_EQUAL(partition_next_offset(p), m->count);
    CHECK_EQUAL(stats.first_offset, first);
    CHECK_EQUAL(stats.size_bytes, bytes);
    CHECK_EQUAL(stats.messages_count, m->count - first);
    CHECK_EQUAL(stats.segments_count, inside_segments(p)->count);
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, UINT32_MAX, OFFSET_CONSUMER, 1, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, m->count - first);
    CHECK(cursor.total_count == 0 || cursor.next_offset == first);
    while (check_window(m, &cursor, 700)) {
    }
    partition_cursor_end(&cursor);
}

static void test_oldest_sealed_segments_go(void) {
    partition_options options = options_of(512);
    static model m;
    partition *p = filled(&m, &options);
    uint32_t segments = inside_segments(p)->count, deleted;
    bool busy;
    CHECK(segments > 10);
    CHECK_EQUAL(delete(p, 0, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 0);
    CHECK_EQUAL(delete(p, 2, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 2);
    CHECK_EQUAL(partition_first_offset(p), m.segment_starts[2]);
    check_rest(&m, p);
    sync_all(p);
    append(p, &m, 1, 200, 2000);
    CHECK_EQUAL(delete(p, UINT32_MAX, &deleted, &busy), 0); /* all but the active one */
    CHECK_EQUAL(inside_segments(p)->count, 1);
    check_rest(&m, p);
    append(p, &m, 1, 200, 2000);
    check_rest(&m, p);
    sync_all(p);
    partition_close(p);
    CHECK_EQUAL(delete(p, 1, &deleted, &busy), 3007);
    partition_release(p);
    p = reopen(&options);
    check_rest(&m, p);
    end(p, &m);
}

static void test_stored_offsets_are_a_barrier(void) {
    partition_options options = options_of(512);
    static model m;
    partition *p = filled(&m, &options);
    uint64_t second = m.segment_starts[1], third = m.segment_starts[2];
    uint32_t deleted;
    bool busy;
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 59), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 1, second - 2), 0); /* its last message is still to come */
    CHECK_EQUAL(delete(p, 9, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 1, second - 1), 0);
    CHECK_EQUAL(delete(p, 9, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 1);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 1, third), 0);
    CHECK_EQUAL(delete(p, 9, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 1);
    CHECK_EQUAL(partition_offset_delete(p, OFFSET_GROUP, 1), 0);
    CHECK_EQUAL(delete(p, 3, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 3);
    CHECK(!busy);
    check_rest(&m, p);
    end(p, &m);
}

static void test_readers_keep_what_they_read(void) {
    partition_options options = options_of(512);
    static model m;
    partition *p = filled(&m, &options);
    poll_cursor cursor, other;
    uint32_t deleted;
    bool busy;
    check_poll(&m, p, POLL_OFFSET, m.segment_starts[2], 10, OFFSET_CONSUMER, 1, &cursor);
    check_poll(&m, p, POLL_LAST, 0, 1, OFFSET_CONSUMER, 1, &other);
    CHECK_EQUAL(delete(p, 9, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 2);
    CHECK(busy);
    CHECK(check_window(&m, &cursor, 300));
    CHECK_EQUAL(delete(p, 9, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 0); /* the window is being sent */
    while (cursor.next_offset <= m.segment_starts[3]) CHECK(check_window(&m, &cursor, 300));
    CHECK_EQUAL(delete(p, 9, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 1);
    while (check_window(&m, &cursor, 300)) {
    }
    partition_cursor_end(&cursor);
    CHECK_EQUAL(delete(p, 4, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 4);
    CHECK(!busy);
    partition_cursor_end(&other);
    CHECK(inside_cursors(p) == NULL);
    check_rest(&m, p);
    end(p, &m);
}

static void test_disk_refuses(void) {
    static fault_disk faulty;
    partition_options options = options_of(512);
    static model m;
    fault_disk_init(&faulty);
    options.disk = &faulty.disk;
    partition *p = filled(&m, &options);
    uint32_t deleted;
    bool busy;
    fault_disk_plan(&faulty, FAULT_RENAME, 8, 1, EACCES, 0); /* the log of the second segment */
    CHECK_EQUAL(delete(p, 5, &deleted, &busy), 10008);
    CHECK_EQUAL(deleted, 1);
    check_rest(&m, p);
    fault_disk_plan(&faulty, FAULT_RENAME, 2, 1, EACCES, 0); /* what a change of its layout left: before its log */
    CHECK_EQUAL(delete(p, 1, &deleted, &busy), 10008);
    CHECK_EQUAL(deleted, 0);
    check_rest(&m, p);
    fault_disk_plan(&faulty, FAULT_RENAME, 4, 2, EACCES, 0); /* index and manifest: left behind, harmless */
    CHECK_EQUAL(delete(p, 1, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 1);
    fault_disk_plan(&faulty, FAULT_RENAME, 1, 1, EINTR, 0);
    CHECK_EQUAL(delete(p, 1, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 1);
    check_rest(&m, p);
    partition_poison(p, 10006);
    CHECK_EQUAL(delete(p, 1, &deleted, &busy), 10006);
    CHECK_EQUAL(deleted, 0);
    check_rest(&m, p);
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_oldest_sealed_segments_go);
    RUN(test_stored_offsets_are_a_barrier);
    RUN(test_readers_keep_what_they_read);
    RUN(test_disk_refuses);
    test_root_remove();
    return check_report();
}
