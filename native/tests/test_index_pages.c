/* Entries of indexes that were read and stay in memory: polls answer the same in every mode, the bound holds, and a
 * segment whose index is doubted is read again. */
#include "test_partition_support.h"

static void set_mode(index_mode mode, uint64_t bytes_max) {
    index_pages_close(&open_files.indexes);
    open_files.indexes = (index_pages){.mode = mode, .bytes_max = bytes_max};
}

static void poll_somewhere(const model *m, partition *p) {
    poll_cursor cursor;
    bool by_offset = test_random(2) == 0;
    uint64_t value = by_offset ? test_random(m->count + 2)
                               : m->records[test_random(m->count)].timestamp - test_random(3);
    check_poll(m, p, by_offset ? POLL_OFFSET : POLL_TIMESTAMP, value, 1 + (uint32_t)test_random(600), 1, 1, &cursor);
    while (check_window(m, &cursor, 1 + test_random(200000))) {
    }
    partition_cursor_end(&cursor);
}

/* Any sends, rolls, syncs and polls; every poll is what the model says. Returns the reads of .index files. */
static uint64_t live(index_mode mode, uint64_t bytes_max, uint64_t *hits) {
    uint64_t size = 80000;
    partition_options options = options_of(size);
    static model m;
    model_init(&m, size);
    set_mode(mode, bytes_max);
    test_random_state = 4;
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 3000 && check_errors == 0; i++) {
        if (i < 200 || test_random(20) == 0) append(p, &m, 1 + (uint32_t)test_random(100), 3, 1000 + (uint64_t)i * 10);
        else poll_somewhere(&m, p);
        if (test_random(50) == 0) sync_all(p);
        CHECK(open_files.indexes.bytes <= bytes_max);
    }
    CHECK(m.segments > 10);
    uint64_t reads = open_files.indexes.reads;
    *hits = open_files.indexes.hits;
    end(p, &m);
    return reads;
}

static void test_polls_are_the_same_in_every_mode_and_within_every_bound(void) {
    uint64_t hits, none = live(INDEX_MODE_NONE, 1 << 20, &hits);
    CHECK_EQUAL(hits, 0);
    uint64_t open = live(INDEX_MODE_OPEN_SEGMENT, 1 << 20, &hits);
    CHECK_EQUAL(open, none); /* so short a segment has all of its newest entries in memory anyway */
    uint64_t all = live(INDEX_MODE_ALL, 16 << 20, &hits);
    CHECK(hits > 1000 && all < none / 5);
    uint64_t small = live(INDEX_MODE_ALL, 9000, &hits); /* two pages */
    CHECK(hits > 0 && small > all);
    live(INDEX_MODE_ALL, 100, &hits); /* none fits */
    CHECK_EQUAL(hits, 0);
}

/* Polls one message again and again, far behind what is in memory of the active segment. Returns the reads. */
static uint64_t reads_of_the_open_segment(index_mode mode) {
    partition_options options = options_of(1 << 30);
    static model m;
    model_init(&m, 1 << 30);
    set_mode(mode, 1 << 20);
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 80; i++) append(p, &m, 1000, 3, 1000 + (uint64_t)i * 10);
    CHECK(inside_index(p)->first > 3000);
    for (int i = 0; i < 100 && check_errors == 0; i++) {
        poll_cursor cursor;
        check_poll(&m, p, i % 2 == 0 ? POLL_OFFSET : POLL_TIMESTAMP, i % 2 == 0 ? 2000 : 1020, 50, 1, 1, &cursor);
        while (check_window(&m, &cursor, 100000)) {
        }
        partition_cursor_end(&cursor);
    }
    uint64_t reads = open_files.indexes.reads;
    end(p, &m);
    return reads;
}

static void test_the_open_segment_is_read_once(void) {
    uint64_t none = reads_of_the_open_segment(INDEX_MODE_NONE);
    uint64_t open = reads_of_the_open_segment(INDEX_MODE_OPEN_SEGMENT);
    CHECK(none > 200 && open < 20);
}

static void test_an_index_that_is_doubted_is_read_again(void) {
    partition_options options = options_of(20000);
    static model m;
    model_init(&m, 20000);
    set_mode(INDEX_MODE_ALL, 1 << 20);
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 30; i++) append(p, &m, 100, 3, 1000 + (uint64_t)i * 10);
    sync_all(p);
    char path[300];
    segment_path(inside_segments(p), &inside_segments(p)->items[0], SEGMENT_INDEX, path, sizeof path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    index_entry right[10], wrong[10];
    CHECK_EQUAL(pread(fd, right, sizeof right, 0), sizeof right);
    memset(wrong, 0xff, sizeof wrong);
    CHECK_EQUAL(pwrite(fd, wrong, sizeof wrong, 0), sizeof wrong);
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_OFFSET, 5, 3, 1, 1, &cursor), 10002);
    CHECK_EQUAL(partition_suspect(p), 0);
    CHECK_EQUAL(pwrite(fd, right, sizeof right, 0), sizeof right); /* as a survey does */
    for (int i = 0; i < 2; i++) {
        check_poll(&m, p, POLL_OFFSET, 5, 3, 1, 1, &cursor);
        while (check_window(&m, &cursor, 100000)) {
        }
        partition_cursor_end(&cursor);
    }
    CHECK(open_files.indexes.hits > 0);
    close(fd);
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_polls_are_the_same_in_every_mode_and_within_every_bound);
    RUN(test_the_open_segment_is_read_once);
    RUN(test_an_index_that_is_doubted_is_read_again);
    index_pages_close(&open_files.indexes);
    test_root_remove();
    return check_report();
}
