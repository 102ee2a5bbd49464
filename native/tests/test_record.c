/* Record scans: faults, windows, long records, the search for a later record, index writing. */
#include "log/record.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log/batch.h"
#include "check.h"

typedef struct log {
    uint8_t *data;
    size_t length, capacity;
    uint64_t next_offset;
} log;

/* Appends one record as stored; the payload bytes count up from the offset. */
static void add(log *to, uint64_t timestamp, uint32_t payload, uint32_t headers) {
    size_t size = RECORD_HEADER_SIZE + payload + headers;
    if (to->length + size > to->capacity) {
        to->capacity = 2 * (to->length + size);
        to->data = realloc(to->data, to->capacity);
    }
    uint8_t *record = to->data + to->length;
    memset(record, 0, RECORD_HEADER_SIZE);
    for (size_t i = RECORD_HEADER_SIZE; i < size; i++) record[i] = (uint8_t)(to->next_offset + i);
    memcpy(record + 48, &headers, 4);
    memcpy(record + 52, &payload, 4);
    id_source ids;
    id_source_seed_fixed(&ids, to->next_offset);
    index_entry entry;
    batch_assign(record, size, 1, to->next_offset, timestamp, 0, 0, &ids, &entry);
    to->length += size;
    to->next_offset++;
}

static void fix_checksum(uint8_t *record) {
    uint64_t checksum = record_checksum(record, record_size(record));
    memcpy(record, &checksum, 8);
}

static int file_of(const log *from) {
    int fd = memfd_create("test-log", MFD_CLOEXEC);
    size_t done = 0;
    while (done < from->length) {
        ssize_t n = write(fd, from->data + done, from->length - done);
        if (n <= 0) abort();
        done += (size_t)n;
    }
    return fd;
}

static record_fault scan(const log *from, size_t length, record_scan *out) {
    return record_scan_buffer(from->data, length, 10, 100, 10, 0, NULL, 0, out);
}

static void test_scan_every_length(void) {
    log l = {.next_offset = 10};
    add(&l, 100, 5, 0);
    add(&l, 100, 0, 3);
    add(&l, 101, 30, 7);
    static const size_t borders[] = {0, 69, 136, 237};
    CHECK_EQUAL(l.length, 237);
    for (size_t length = 0; length <= l.length; length++) {
        uint8_t *exact = malloc(length + 1); /* so that ASan sees every byte read too much */
        memcpy(exact, l.data, length);
        record_scan out;
        record_fault fault = record_scan_buffer(exact, length, 10, 100, 10, 0, NULL, 0, &out);
        size_t whole = 0;
        while (whole < 3 && borders[whole + 1] <= length) whole++;
        CHECK_EQUAL(out.count, whole);
        CHECK_EQUAL(out.valid_bytes, borders[whole]);
        CHECK_EQUAL(out.next_offset, 10 + whole);
        CHECK_EQUAL(fault, borders[whole] == length ? RECORD_OK : RECORD_TRUNCATED);
        record_good good;
        CHECK_EQUAL(record_verify(exact, length, 10, 13, 3, &good), whole);
        CHECK_EQUAL(good.bytes, borders[whole]);
        CHECK_EQUAL(good.next_offset, 10 + whole);
        free(exact);
    }
    free(l.data);
}

static void test_scan_faults(void) {
    log l = {.next_offset = 10};
    add(&l, 100, 5, 0);
    add(&l, 99, 5, 0);
    record_scan out;
    CHECK_EQUAL(scan(&l, l.length, &out), RECORD_BAD_TIMESTAMP);
    CHECK_EQUAL(out.count, 1);
    uint8_t *second = l.data + 69;
    uint64_t value = 100;
    memcpy(second + 32, &value, 8);
    CHECK_EQUAL(scan(&l, l.length, &out), RECORD_BAD_CHECKSUM);
    fix_checksum(second);
    CHECK_EQUAL(scan(&l, l.length, &out), RECORD_OK);
    value = 12;
    memcpy(second + 24, &value, 8);
    fix_checksum(second);
    CHECK_EQUAL(scan(&l, l.length, &out), RECORD_BAD_OFFSET);
    uint32_t length = PAYLOAD_SIZE_MAX + 1;
    memcpy(second + 52, &length, 4);
    CHECK_EQUAL(scan(&l, l.length, &out), RECORD_BAD_LENGTH);
    memset(second, 0, 69);
    CHECK_EQUAL(scan(&l, l.length, &out), RECORD_BAD_OFFSET);
    CHECK_EQUAL(record_scan_buffer(second, 69, 0, 0, 0, 0, NULL, 0, &out), RECORD_BAD_CHECKSUM); /* zeros: never */
    free(l.data);
}

static void test_index_and_limits(void) {
    log l = {.next_offset = 10};
    for (uint64_t i = 0; i < 4; i++) add(&l, 100 + i, 5, 0);
    index_entry entries[4];
    record_scan out;
    CHECK_EQUAL(record_scan_buffer(l.data, l.length, 10, 0, 3, 1000, entries, 3, &out), RECORD_OK);
    CHECK_EQUAL(out.count, 3); /* entries full */
    CHECK_EQUAL(out.valid_bytes, 3 * 69);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQUAL(entries[i].relative_offset, 7 + i);
        CHECK_EQUAL(entries[i].end_position, 1000 + 69 * (i + 1));
        CHECK_EQUAL(entries[i].timestamp, 100 + i);
    }
    /* a position or relative offset that an index entry cannot hold */
    CHECK_EQUAL(record_scan_buffer(l.data, l.length, 10, 0, 10, UINT32_MAX - 68, NULL, 0, &out), RECORD_BAD_LENGTH);
    CHECK_EQUAL(record_scan_buffer(l.data, l.length, 10, 0, 10, UINT32_MAX - 69, NULL, 0, &out), RECORD_BAD_LENGTH);
    CHECK_EQUAL(out.count, 1);
    record_good good;
    CHECK_EQUAL(record_verify(l.data, l.length, 10, 13, 3, &good), 2); /* bytes behind the window's last record */
    CHECK_EQUAL(record_verify(l.data, l.length, 11, 15, 4, &good), 0);
    free(l.data);
}

/* Several windows and records longer than one: the index on the file equals the one over memory. */
static void test_scan_file_windows(void) {
    log l = {.next_offset = 10};
    for (uint32_t i = 0; i < 40000; i++) add(&l, 100 + i / 3, i % 50, i % 7);
    add(&l, 90000, 5000000, 100000);
    for (uint32_t i = 0; i < 100; i++) add(&l, 90000, 30000, 0);
    size_t count = (size_t)(l.next_offset - 10);
    index_entry *expected = malloc(count * sizeof *expected), *actual = malloc(count * sizeof *actual);
    record_scan memory, file;
    CHECK_EQUAL(record_scan_buffer(l.data, l.length, 10, 0, 10, 0, expected, count, &memory), RECORD_OK);
    CHECK_EQUAL(memory.count, count);
    int fd = file_of(&l), index = memfd_create("test-index", MFD_CLOEXEC);
    CHECK_EQUAL(record_scan_file(fd, 0, 10, 10, 0, index, &file), 0);
    CHECK_EQUAL(file.fault, RECORD_OK);
    CHECK_EQUAL(file.count, count);
    CHECK_EQUAL(file.valid_bytes, l.length);
    CHECK_EQUAL(file.first_timestamp, 100);
    CHECK_EQUAL(file.last_timestamp, 90000);
    CHECK_EQUAL(lseek(index, 0, SEEK_END), count * 16);
    CHECK(pread(index, actual, count * 16, 0) == (ssize_t)(count * 16) && memcmp(actual, expected, count * 16) == 0);
    /* from a border in the middle: the same entries at the same places */
    CHECK_EQUAL(ftruncate(index, 0), 0);
    CHECK_EQUAL(record_scan_file(fd, expected[20000].end_position, 10, 20011, 0, index, &file), 0);
    CHECK_EQUAL(file.count, count - 20001);
    CHECK(pread(index, actual, count * 16, 0) == (ssize_t)(count * 16));
    CHECK(memcmp(actual + 20001, expected + 20001, (count - 20001) * 16) == 0);
    /* cut inside the long record */
    CHECK_EQUAL(ftruncate(fd, expected[40000].end_position - 1), 0);
    CHECK_EQUAL(record_scan_file(fd, 0, 10, 10, 0, -1, &file), 0);
    CHECK_EQUAL(file.fault, RECORD_TRUNCATED);
    CHECK_EQUAL(file.count, 40000);
    CHECK(record_scan_file(-1, 0, 10, 10, 0, -1, &file) == -1);
    free(expected);
    free(actual);
    close(fd);
    close(index);
    free(l.data);
}

static int find_later(int fd, uint64_t from, uint64_t at_least, uint64_t minimum_timestamp, record_found *found) {
    return record_find_later(fd, &(record_wanted){from, UINT64_MAX, at_least, UINT64_MAX, minimum_timestamp}, found);
}

static void test_find_later(void) {
    log l = {.next_offset = 10};
    for (uint32_t i = 0; i < 3000; i++) add(&l, 100 + i, 700, 0);
    add(&l, 5000, 3000000, 0); /* leaves the search window */
    size_t size = RECORD_HEADER_SIZE + 700;
    int fd = file_of(&l);
    record_found found;
    CHECK_EQUAL(find_later(fd, 1, 11, 100, &found), 0);
    CHECK(found.found);
    CHECK_EQUAL(found.position, size);
    CHECK_EQUAL(found.offset, 11);
    CHECK_EQUAL(record_find_later(fd, &(record_wanted){0, UINT64_MAX, 500, 500, 0}, &found), 0);
    CHECK(found.found && found.offset == 500 && found.position == 490 * size);
    CHECK_EQUAL(record_find_later(fd, &(record_wanted){0, 490 * size + 1, 500, 501, 0}, &found), 0);
    CHECK(found.found && found.offset == 500);
    CHECK_EQUAL(record_find_later(fd, &(record_wanted){0, 490 * size, 500, 501, 0}, &found), 0);
    CHECK(!found.found);
    CHECK_EQUAL(record_find_later(fd, &(record_wanted){0, UINT64_MAX, 500, 499, 0}, &found), 0);
    CHECK(!found.found);
    CHECK_EQUAL(find_later(fd, 2999 * size + 1, 3010, 0, &found), 0); /* only the long one is left */
    CHECK(found.found);
    CHECK_EQUAL(found.position, 3000 * size);
    CHECK_EQUAL(find_later(fd, 2999 * size + 1, 3011, 0, &found), 0); /* its offset is too low */
    CHECK(!found.found);
    CHECK_EQUAL(find_later(fd, 2999 * size + 1, 3010, 5001, &found), 0); /* its timestamp is */
    CHECK(!found.found);
    CHECK_EQUAL(find_later(fd, l.length - 3000000, 10, 0, &found), 0);
    CHECK(!found.found);
    CHECK_EQUAL(ftruncate(fd, (off_t)l.length - 1), 0);
    CHECK_EQUAL(find_later(fd, 2999 * size + 1, 10, 0, &found), 0); /* cut: not valid any more */
    CHECK(!found.found);
    CHECK_EQUAL(ftruncate(fd, 0) | ftruncate(fd, 5 << 20), 0);
    CHECK_EQUAL(find_later(fd, 0, 0, 0, &found), 0); /* zeros */
    CHECK(!found.found);
    CHECK_EQUAL(find_later(fd, 10 << 20, 0, 0, &found), 0); /* behind the end */
    CHECK(!found.found);
    CHECK(find_later(-1, 0, 0, 0, &found) == -1);
    close(fd);
    free(l.data);
}

int main(void) {
    RUN(test_scan_every_length);
    RUN(test_scan_faults);
    RUN(test_index_and_limits);
    RUN(test_scan_file_windows);
    RUN(test_find_later);
    return check_report();
}
