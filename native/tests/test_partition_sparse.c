/* Segments that have no record for some of their offsets: polls of every strategy against a list of what is there. */
#include "test_partition_support.h"

#define RECORDS 400u
#define FIRST_TIMESTAMP 1000u

static model m;
static segment_info infos[RECORDS];
static uint32_t infos_count;
static bool present[RECORDS], isolated[RECORDS];

static void write_file(uint64_t start, const char *suffix, const void *bytes, size_t size) {
    char path[256];
    snprintf(path, sizeof(path), "%s/%020" PRIu64 ".%s", directory, start, suffix);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    CHECK_EQUAL(write(fd, bytes, size), (ssize_t)size);
    close(fd);
}

/* Writes a segment anew with the records that are present. */
static void rewrite(uint64_t start, uint64_t stop) {
    static index_entry entries[RECORDS];
    segment_info info = {.start_offset = start};
    for (uint64_t i = start; i < stop; i++) {
        if (!present[i]) continue;
        memcpy(buffer + info.log_bytes, m.records[i].bytes, m.records[i].size);
        info.log_bytes += m.records[i].size;
        entries[info.count++] = (index_entry){(uint32_t)(i - start), (uint32_t)info.log_bytes, m.records[i].timestamp};
        info.last_timestamp = m.records[i].timestamp;
        info.first_timestamp = info.count == 1 ? info.last_timestamp : info.first_timestamp;
    }
    info.absent = stop - start - info.count;
    write_file(start, "log", buffer, info.log_bytes);
    write_file(start, "index", entries, info.count * sizeof(entries[0]));
    infos[infos_count++] = info;
}

/* A partition with sealed segments of which `kept` in 100 records are left, one at least. */
static partition *open_sparse(uint32_t kept) {
    static partition_options options;
    options = options_of(2000);
    model_init(&m, 2000);
    partition *p = partition_open(&options, NULL, 0);
    for (unsigned i = 0; i < RECORDS; i++) append(p, &m, 1, 10, FIRST_TIMESTAMP + i);
    partition_close(p);
    partition_release(p);
    infos_count = 0;
    for (uint64_t s = 0; s < m.segments; s++) {
        bool active = s + 1 == m.segments;
        uint64_t start = m.segment_starts[s], stop = active ? m.count : m.segment_starts[s + 1];
        for (uint64_t i = start; i < stop; i++) present[i] = active || test_random(100) < kept;
        present[start + test_random(stop - start)] = true;
        rewrite(start, stop);
    }
    memset(isolated, 0, sizeof(isolated));
    p = partition_open(&options, infos, infos_count);
    CHECK(p != NULL);
    return p;
}

static bool readable(uint64_t i) { return present[i] && !isolated[i]; }

static uint64_t expected_start(uint8_t strategy, uint64_t value, uint32_t count) {
    uint64_t at = RECORDS;
    switch (strategy) {
    case POLL_TIMESTAMP: return value > FIRST_TIMESTAMP ? value - FIRST_TIMESTAMP : 0;
    case POLL_LAST:
        for (uint32_t found = 0; at > 0 && found < count; at--) found += readable(at - 1);
        return at;
    case POLL_FIRST: return 0;
    default: return value;
    }
}

static void check(partition *p, uint8_t strategy, uint64_t value, uint32_t count, uint64_t window_bytes) {
    poll_cursor cursor;
    poll_window w;
    uint32_t status = partition_poll(p, strategy, value, count, 1, 1, &cursor), left = count;
    CHECK_EQUAL(status, 0);
    if (status != 0) return;
    uint64_t at = expected_start(strategy, value, count), bytes = 0;
    while (partition_cursor_next(&cursor, window_bytes, &w, &status)) {
        record_good good;
        CHECK_EQUAL(pread(w.records->fd, buffer, w.length, (off_t)w.records->position), (ssize_t)w.length);
        CHECK_EQUAL(record_verify(buffer, w.length, w.first_offset, w.end_offset, w.count, &good), w.count);
        for (uint64_t byte = 0; byte < w.length; byte += record_size(buffer + byte), at++, left--) {
            while (at < RECORDS && !readable(at)) at++;
            uint64_t offset;
            memcpy(&offset, buffer + byte + 24, 8);
            CHECK(left > 0);
            CHECK_EQUAL(offset, at);
        }
        bytes += w.length;
    }
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(cursor.total_count, count - left);
    CHECK_EQUAL(cursor.total_bytes, bytes);
    CHECK(left == count || cursor.last_offset == at - 1);
    while (at < RECORDS && !readable(at)) at++;
    CHECK(left == 0 || at >= RECORDS); /* a gap is never the end */
    partition_cursor_end(&cursor);
}

static void check_all(partition *p) {
    for (int i = 0; i < 700; i++) {
        uint64_t window_bytes = 1 + test_random(i % 2 ? 300 : 3000);
        uint32_t count = 1 + (uint32_t)test_random(i % 3 ? 20 : 2 * RECORDS);
        check(p, POLL_OFFSET, test_random(RECORDS), count, window_bytes);
        check(p, POLL_TIMESTAMP, FIRST_TIMESTAMP - 5 + test_random(RECORDS + 10), count, window_bytes);
        check(p, POLL_FIRST, 0, count, window_bytes);
        check(p, POLL_LAST, 0, count, window_bytes);
    }
    for (uint64_t stored = 0; stored < RECORDS; stored += 7) {
        CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, stored), 0);
        poll_cursor cursor;
        CHECK_EQUAL(partition_poll(p, POLL_NEXT, 0, 1, OFFSET_CONSUMER, 1, &cursor), 0);
        uint64_t next = stored + 1;
        while (next < RECORDS && !readable(next)) next++;
        CHECK_EQUAL(cursor.total_count, next < RECORDS);
        CHECK(next == RECORDS || cursor.next_offset == next);
        partition_cursor_end(&cursor);
    }
}

static void test_polls_pass_over_offsets_without_a_record(void) {
    static const uint32_t kept[] = {1, 5, 50, 97};
    for (unsigned i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        partition *p = open_sparse(kept[i]);
        uint64_t there = 0;
        for (uint64_t at = 0; at < RECORDS; at++) there += present[at];
        CHECK_EQUAL(partition_messages(p), there);
        CHECK_EQUAL(partition_next_offset(p), RECORDS);
        check_all(p);
        end(p, &m);
    }
}

static void test_isolated_ranges_beside_offsets_without_a_record(void) {
    for (int round = 0; round < 6; round++) {
        partition *p = open_sparse(round % 2 ? 10 : 60);
        for (int i = 0; i < 12; i++) {
            uint64_t start = test_random(RECORDS - 30), stop = start + 1 + test_random(30);
            CHECK(partition_withhold(p, start, stop, true));
            for (uint64_t at = start; at < stop; at++) isolated[at] = true;
        }
        check_all(p);
        end(p, &m);
    }
}

/* Damage is not passed over: which of its offsets have a record is not known. */
static void test_damage_in_a_gap_is_no_gap(void) {
    partition *p = open_sparse(10);
    uint64_t gap = 0;
    while (present[gap] || present[gap + 1] || present[gap + 2]) gap++;
    CHECK(partition_withhold(p, gap + 1, gap + 2, false));
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_OFFSET, gap, 5, 1, 1, &cursor), 4027);
    CHECK_EQUAL(partition_poll(p, POLL_OFFSET, gap + 1, 5, 1, 1, &cursor), 4027);
    check(p, POLL_OFFSET, gap + 2, 5, 1000);
    end(p, &m);
}

/* Entries that do not ascend, or lie behind the end of the segment, are doubted and lead nowhere. */
static void test_a_wrong_index_of_a_sparse_segment_is_doubted(void) {
    static const uint32_t wrong[] = {0, 100000, UINT32_MAX};
    partition *p = open_sparse(50);
    REQUIRE(infos[1].count > 4);
    char path[256];
    snprintf(path, sizeof(path), "%s/%020" PRIu64 ".index", directory, infos[1].start_offset);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    for (unsigned i = 0; i < 3; i++)
        for (uint64_t k = 1; k + 1 < infos[1].count; k++) {
            uint32_t right;
            CHECK_EQUAL(pread(fd, &right, 4, (off_t)(k * INDEX_ENTRY_SIZE)), 4);
            CHECK_EQUAL(pwrite(fd, &wrong[i], 4, (off_t)(k * INDEX_ENTRY_SIZE)), 4);
            poll_cursor cursor;
            CHECK_EQUAL(partition_poll(p, POLL_OFFSET, infos[1].start_offset, 1000, 1, 1, &cursor), 10002);
            CHECK_EQUAL(partition_suspect(p), infos[1].start_offset);
            CHECK_EQUAL(pwrite(fd, &right, 4, (off_t)(k * INDEX_ENTRY_SIZE)), 4);
        }
    close(fd);
    check(p, POLL_FIRST, 0, 1000, 500);
    end(p, &m);
}

static void test_the_newest_segment_is_never_sparse(void) {
    partition_options options = options_of(2000);
    segment_info info = {.start_offset = 0, .log_bytes = 74, .count = 1, .absent = 3};
    CHECK(partition_open(&options, &info, 1) == NULL);
    CHECK_EQUAL(errno, EINVAL);
}

int main(void) {
    test_root_make();
    RUN(test_polls_pass_over_offsets_without_a_record);
    RUN(test_isolated_ranges_beside_offsets_without_a_record);
    RUN(test_damage_in_a_gap_is_no_gap);
    RUN(test_a_wrong_index_of_a_sparse_segment_is_doubted);
    RUN(test_the_newest_segment_is_never_sparse);
    test_root_remove();
    return check_report();
}
