/* Damaged ranges: what polls of every strategy do with them, and indexes that lie about timestamps. */
#include "test_partition_support.h"

/* A poll of all readable windows: offsets [*first, ...) in order; their number. */
static uint64_t read_offsets(partition *p, uint8_t strategy, uint64_t value, uint32_t count, uint64_t *out,
                             uint32_t max, uint64_t window_bytes) {
    poll_cursor cursor;
    poll_window w;
    uint64_t found = 0, bytes = 0;
    uint32_t status = partition_poll(p, strategy, value, count, 1, 1, &cursor);
    CHECK_EQUAL(status, 0);
    uint64_t total = cursor.total_count, total_bytes = cursor.total_bytes, last = cursor.last_offset;
    while (partition_cursor_next(&cursor, window_bytes, &w, &status)) {
        CHECK(w.length <= sizeof(buffer));
        CHECK_EQUAL(pread(w.records->fd, buffer, w.length, (off_t)w.records->position), (ssize_t)w.length);
        record_good good;
        CHECK_EQUAL(record_verify(buffer, w.length, w.first_offset, w.end_offset, w.count, &good), w.count);
        for (uint64_t at = 0; at < w.length && found < max; at += record_size(buffer + at))
            memcpy(&out[found++], buffer + at + 24, 8);
        bytes += w.length;
    }
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(found, total);
    CHECK_EQUAL(bytes, total_bytes);
    CHECK(total == 0 || out[total - 1] == last);
    partition_cursor_end(&cursor);
    return found;
}

static uint32_t poll_status(partition *p, uint8_t strategy, uint64_t value, uint32_t count) {
    poll_cursor cursor;
    uint32_t status = partition_poll(p, strategy, value, count, 1, 1, &cursor);
    if (status == 0) partition_cursor_end(&cursor);
    return status;
}

static void test_damaged_ranges_end_an_answer(void) {
    partition_options options = options_of(1 << 20);
    static model m;
    model_init(&m, 1 << 20);
    partition *p = partition_open(&options, NULL, 0);
    for (unsigned i = 0; i < 100; i++) append(p, &m, 1, 10, 1000 + i);
    CHECK(partition_withhold(p, 50, 52, false) && partition_withhold(p, 20, 21, false));
    CHECK(partition_withhold(p, 20, 21, true)); /* known already: stays as it is */
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, 100, 1, 1, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, 20);
    CHECK_EQUAL(cursor.total_bytes, 20 * 74);
    CHECK_EQUAL(cursor.last_offset, 19); /* what an auto-commit stores */
    partition_cursor_end(&cursor);
    CHECK_EQUAL(poll_status(p, POLL_OFFSET, 20, 100), 4027);
    CHECK_EQUAL(poll_status(p, POLL_OFFSET, 51, 1), 4027);
    CHECK_EQUAL(poll_status(p, POLL_OFFSET, 20, 0), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 19), 0);
    CHECK_EQUAL(poll_status(p, POLL_NEXT, 0, 5), 4027);
    CHECK_EQUAL(poll_status(p, POLL_LAST, 0, 50), 4027);
    uint64_t offsets[100];
    CHECK_EQUAL(read_offsets(p, POLL_LAST, 0, 48, offsets, 100, 300), 48);
    CHECK_EQUAL(read_offsets(p, POLL_OFFSET, 21, 100, offsets, 100, 300), 29);
    CHECK_EQUAL(poll_status(p, POLL_TIMESTAMP, 1020, 1), 4027);
    CHECK_EQUAL(poll_status(p, POLL_TIMESTAMP, 1021, 1), 4027); /* the damaged one may carry it */
    CHECK_EQUAL(read_offsets(p, POLL_TIMESTAMP, 1022, 1, offsets, 100, 300), 1);
    CHECK_EQUAL(offsets[0], 22);
    CHECK_EQUAL(read_offsets(p, POLL_TIMESTAMP, 1019, 5, offsets, 100, 300), 1);
    append(p, &m, 1, 10, 2000); /* sends go on */
    damage_forget(inside_damage(p), 51);
    CHECK_EQUAL(inside_damage(p)->count, 1);
    end(p, &m);
}

static void test_isolated_ranges_are_passed_over(void) {
    partition_options options = options_of(2000); /* several segments */
    static model m;
    model_init(&m, 2000);
    partition *p = partition_open(&options, NULL, 0);
    for (unsigned i = 0; i < 100; i++) append(p, &m, 1, 10, 1000 + i);
    CHECK(inside_segments(p)->count > 2);
    CHECK(partition_withhold(p, 0, 2, true) && partition_withhold(p, 30, 40, true));
    CHECK(partition_withhold(p, 95, 100, true));
    for (uint64_t window_bytes = 1; window_bytes < 4000; window_bytes += 370) {
        uint64_t offsets[100];
        CHECK_EQUAL(read_offsets(p, POLL_FIRST, 0, 1000, offsets, 100, window_bytes), 83);
        CHECK(offsets[0] == 2 && offsets[27] == 29 && offsets[28] == 40 && offsets[82] == 94);
        CHECK_EQUAL(read_offsets(p, POLL_OFFSET, 28, 4, offsets, 100, window_bytes), 4);
        CHECK(offsets[1] == 29 && offsets[2] == 40 && offsets[3] == 41);
        CHECK_EQUAL(read_offsets(p, POLL_OFFSET, 33, 2, offsets, 100, window_bytes), 2);
        CHECK_EQUAL(offsets[0], 40);
        CHECK_EQUAL(read_offsets(p, POLL_LAST, 0, 57, offsets, 100, window_bytes), 57);
        CHECK_EQUAL(offsets[0], 28);
        CHECK_EQUAL(read_offsets(p, POLL_LAST, 0, 1, offsets, 100, window_bytes), 1);
        CHECK_EQUAL(offsets[0], 94);
        CHECK_EQUAL(read_offsets(p, POLL_TIMESTAMP, 1035, 1, offsets, 100, window_bytes), 1);
        CHECK_EQUAL(offsets[0], 40);
        CHECK_EQUAL(read_offsets(p, POLL_OFFSET, 96, 10, offsets, 100, window_bytes), 0);
    }
    CHECK(partition_withhold(p, 40, 41, false)); /* right behind an isolated range */
    CHECK_EQUAL(poll_status(p, POLL_OFFSET, 33, 1), 4027);
    CHECK_EQUAL(poll_status(p, POLL_TIMESTAMP, 1041, 1), 4027);
    end(p, &m);
}

/* Whatever is withheld in whatever order: ascending, apart, nothing lost, nothing beyond; the table has its limit. */
static void test_ranges_against_a_model(void) {
    partition_options options = options_of(1 << 20);
    static model m;
    model_init(&m, 1 << 20);
    partition *p = partition_open(&options, NULL, 0);
    for (int round = 0; round < 200; round++) {
        uint8_t kinds[300] = {0};
        for (int i = 0; i < 40; i++) {
            uint64_t start = test_random(290), stop = start + test_random(11);
            bool isolated = test_random(2) == 0;
            CHECK(partition_withhold(p, start, stop, isolated));
            for (uint64_t at = start; at < stop; at++) kinds[at] = kinds[at] != 0 ? kinds[at] : isolated ? 2 : 1;
        }
        for (uint64_t at = 0; at < 300; at++) {
            const damaged_range *r = partition_damage_from(p, at);
            bool inside = r != NULL && r->start <= at;
            CHECK_EQUAL(inside ? (r->isolated ? 2 : 1) : 0, kinds[at]);
            uint64_t behind = at;
            while (behind < 300 && kinds[behind] == 2) behind++;
            CHECK_EQUAL(damage_skip_isolated(inside_damage(p), at), behind);
        }
        for (uint32_t i = 1; i < inside_damage(p)->count; i++)
            CHECK(inside_damage(p)->ranges[i - 1].end +
                      (inside_damage(p)->ranges[i - 1].isolated == inside_damage(p)->ranges[i].isolated) <=
                  inside_damage(p)->ranges[i].start);
        damage_forget(inside_damage(p), UINT64_MAX);
        CHECK_EQUAL(inside_damage(p)->count, 0);
    }
    for (uint64_t i = 0; i < DAMAGED_MAX; i++) CHECK(partition_withhold(p, 2 * i, 2 * i + 1, false));
    CHECK(!partition_withhold(p, 5000, 5001, false));
    CHECK(partition_withhold(p, 2048, 2049, false) == false && partition_withhold(p, 7, 8, false)); /* joins two */
    CHECK_EQUAL(inside_damage(p)->count, DAMAGED_MAX - 1);
    end(p, &m);
}

static void overwrite(const char *suffix, uint64_t position, const void *bytes, size_t size) {
    char path[256];
    snprintf(path, sizeof(path), "%s/%020u.%s", directory, 0, suffix);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK_EQUAL(pwrite(fd, bytes, size, (off_t)position), (ssize_t)size);
    close(fd);
}

/* A poll by timestamp asks the records that the index led to. */
static void test_a_wrong_timestamp_in_the_index_is_no_answer(void) {
    static model m;
    partition_options options = options_of(1 << 20);
    model_init(&m, 1 << 20);
    partition *p = partition_open(&options, NULL, 0);
    for (unsigned i = 0; i < 100; i++) append(p, &m, 1, 10, 1000 + i);
    partition_close(p);
    partition_release(p);
    p = reopen(&options); /* no entry in memory now */
    for (uint64_t k = 1; k < 99; k++)
        for (int up = 0; up < 2; up++) {
            uint64_t wrong = up ? 1000000 : 5, right = 1000 + k, offset = 0;
            overwrite("index", k * 16 + 8, &wrong, 8);
            for (uint64_t t = 1000; t < 1100; t++) {
                poll_cursor cursor;
                uint32_t status = partition_poll(p, POLL_TIMESTAMP, t, 1, 1, 1, &cursor);
                CHECK(status == 10002 || (status == 0 && cursor.next_offset == t - 1000));
                CHECK(status == 0 || partition_suspect(p) == 0);
                offset += status != 0;
                partition_cursor_end(&cursor);
            }
            CHECK(offset > 0);
            overwrite("index", k * 16 + 8, &right, 8);
        }
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_damaged_ranges_end_an_answer);
    RUN(test_isolated_ranges_are_passed_over);
    RUN(test_ranges_against_a_model);
    RUN(test_a_wrong_timestamp_in_the_index_is_no_answer);
    test_root_remove();
    return check_report();
}
