/* Limits of the partition: memory, system calls, index cache, open files, answer size, consumers. */
#include "test_partition_support.h"

#include <sys/resource.h>

static void test_idle_partition_is_small(void) {
    partition_options options = options_of(4096);
    static model m;
    model_init(&m, 4096);
    partition *p = partition_open(&options, NULL, 0);
    CHECK(sizeof(partition) + strlen(directory) < 1024);
    CHECK(inside_segments(p)->items == NULL && inside_index(p)->entries == NULL &&
          inside_offsets(p)->table.entries == NULL && inside_damage(p)->ranges == NULL);
    CHECK(!partition_is_dirty(p));
    poll_cursor cursor;
    for (uint8_t strategy = POLL_OFFSET; strategy <= POLL_NEXT; strategy++) {
        check_poll(&m, p, strategy, 0, 10, OFFSET_CONSUMER, 1, &cursor);
        partition_cursor_end(&cursor);
    }
    CHECK_EQUAL(partition_poll(p, 6, 0, 1, OFFSET_CONSUMER, 1, &cursor), 3);
    end(p, &m);
}

/* The steady state: one write for an append, one more for 256 index entries, nothing else. */
static void test_system_calls_of_an_append(void) {
    static fault_disk faulty;
    partition_options options = options_of(1 << 30);
    static model m;
    fault_disk_init(&faulty);
    options.disk = &faulty.disk;
    model_init(&m, 1 << 30);
    partition *p = partition_open(&options, NULL, 0);
    append(p, &m, 1, 36, 1000);
    memset(faulty.calls, 0, sizeof(faulty.calls));
    for (int i = 0; i < 2559; i++) append(p, &m, 1, 36, 1000);
    for (int operation = 0; operation < FAULT_OPERATIONS; operation++)
        CHECK_EQUAL(faulty.calls[operation], operation == FAULT_WRITE ? 2559 + 10 : 0);
    append_batch batches[1500];
    for (size_t i = 0; i < 1500; i++)
        batches[i] = (append_batch){
            .messages = buffer + i * 100, .count = 1, .length = make_records(buffer + i * 100, 1, 36, 36)};
    faulty.calls[FAULT_WRITE] = 0;
    partition_append(p, batches, 1500, 1000);
    CHECK_EQUAL(faulty.calls[FAULT_WRITE], 2 + 2); /* 1,024 parts at most, an index flush after each */
    for (size_t i = 0; i < 1500; i++) {
        CHECK_EQUAL(batches[i].status, 0);
        model_append(&m, &batches[i]);
    }
    check_whole(&m, p);
    end(p, &m);
}

static void test_index_cache_eviction(void) {
    partition_options options = options_of(1 << 30);
    static model m;
    model_init(&m, 1 << 30);
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 80; i++) append(p, &m, 1000, 3, 1000 + (uint64_t)i * 10);
    CHECK(inside_index(p)->first > 0 && inside_index(p)->capacity == INDEX_CACHE_MAX);
    append(p, &m, 70000, 1, 5000); /* one batch above the limit */
    CHECK(inside_index(p)->capacity == INDEX_CACHE_MAX && inside_index(p)->count <= INDEX_CACHE_MAX);
    append(p, &m, 100, 0, 6000); /* these wait for the file */
    CHECK_EQUAL(index_cache_waiting(inside_index(p)), 100);
    for (int i = 0; i < 300 && check_errors == 0; i++) {
        poll_cursor cursor;
        uint64_t value = i % 2 == 0 ? test_random(m.count) : 900 + test_random(5200);
        check_poll(&m, p, i % 2 == 0 ? POLL_OFFSET : POLL_TIMESTAMP, value, 1 + (uint32_t)test_random(9000), 1, 1,
                   &cursor);
        while (check_window(&m, &cursor, 1 + test_random(200000))) {
        }
        partition_cursor_end(&cursor);
    }
    end(p, &m);
}

static void test_index_cache_refuses_when_the_file_is_far_behind(void) {
    index_cache c = {0};
    for (int i = 0; i < 8; i++) {
        CHECK(index_cache_reserve(&c, 100, 512) != NULL);
        c.count += 100;
    }
    CHECK_EQUAL(index_cache_waiting(&c), 800); /* more than the limit waits: nothing may leave */
    CHECK(index_cache_reserve(&c, 1000, 512) == NULL);
    CHECK_EQUAL(errno, ENOBUFS);
    CHECK_EQUAL(c.first, 0);
    c.flushed = 750;
    CHECK(index_cache_reserve(&c, 300, 512) != NULL);
    CHECK(c.first > 0 && c.first <= 750);
    index_cache_free(&c);
}

static void test_open_files_are_bounded(void) {
    enum { PARTITIONS = 3 };
    static model models[PARTITIONS];
    static char directories[PARTITIONS][128];
    partition *p[PARTITIONS];
    poll_cursor pinned, cursor;
    for (int i = 0; i < PARTITIONS; i++) {
        partition_options options = options_of(512);
        strcpy(directories[i], directory);
        model_init(&models[i], 512);
        p[i] = partition_open(&options, NULL, 0);
        for (int j = 0; j < 300; j++) append(p[i], &models[i], 1, 300, 1000 + (uint64_t)j);
        sync_all(p[i]);
        if (i == 0) {
            check_poll(&models[0], p[0], POLL_OFFSET, 0, 200, 1, 1, &pinned);
            CHECK(check_window(&models[0], &pinned, 700));
        }
        check_whole(&models[i], p[i]);
        CHECK(inside_segments(p[i])->count > 90);
        CHECK(inside_segments(p[i])->open <= SEGMENT_FILES_PER_PARTITION);
    }
    uint32_t usual = open_files.budget.segment_pairs;
    open_files.budget.segment_pairs = 10;
    for (int i = 0; i < PARTITIONS; i++) segment_set_trim(inside_segments(p[i]));
    for (int round = 0; round < 100; round++) {
        int i = (int)test_random(PARTITIONS);
        check_poll(&models[i], p[i], POLL_OFFSET, test_random(300), 5, 1, 1, &cursor);
        while (check_window(&models[i], &cursor, 1 + test_random(800))) {
        }
        partition_cursor_end(&cursor);
        CHECK(open_files.pairs.count <= 10);
    }
    int descriptor = segment_fd_if_open(&inside_segments(p[0])->items[0], SEGMENT_LOG);
    uint8_t byte;
    CHECK_EQUAL(pread(descriptor, &byte, 1, 0), 1); /* the file of its window stayed open all the time */
    while (check_window(&models[0], &pinned, 5000)) {
    }
    partition_cursor_end(&pinned);
    open_files.budget.segment_pairs = usual;
    for (int i = 0; i < PARTITIONS; i++) {
        partition_close(p[i]);
        partition_release(p[i]);
        model_free(&models[i]);
    }
    CHECK_EQUAL(open_files.pairs.count, 0);
}

static void test_no_descriptors_left(void) {
    static fault_disk faulty;
    partition_options options = options_of(512);
    static model m;
    fault_disk_init(&faulty);
    options.disk = &faulty.disk;
    model_init(&m, 512);
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 40; i++) append(p, &m, 1, 200, 1000);
    sync_all(p);
    check_whole(&m, p);
    uint32_t open_before = inside_segments(p)->open;
    fault_disk_plan(&faulty, FAULT_OPEN, 1, 1, EMFILE, 0); /* another pair is given up instead */
    append(p, &m, 30, 200, 1001);
    append(p, &m, 1, 200, 1002);
    CHECK_EQUAL(faulty.injected, 1);
    CHECK(inside_segments(p)->open <= open_before + 1);
    check_whole(&m, p);
    end(p, &m);
}

/* The process itself has none left: cold files are given up for the sync's descriptors and for new segments. */
static void test_the_limit_of_the_process_is_reached(void) {
    partition_options options = options_of(512);
    static model m;
    model_init(&m, 512);
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 40; i++) append(p, &m, 1, 200, 1000);
    sync_all(p);
    check_whole(&m, p);
    struct rlimit usual, low;
    getrlimit(RLIMIT_NOFILE, &usual);
    int next = dup(0);
    low = usual;
    low.rlim_cur = (rlim_t)next; /* whatever is open stays open, nothing more can be opened */
    close(next);
    for (int fd = 0; fd < next; fd++) /* and no gap below the limit is free */
        if (fcntl(fd, F_GETFD) < 0) CHECK_EQUAL(dup2(0, fd), fd);
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &low), 0);
    uint32_t before = open_files.pairs.count;
    for (int i = 0; i < 4; i++) append(p, &m, 1, 200, 1001);
    int fds[64];
    size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    CHECK(count > 0);
    for (size_t i = 0; i < count; i++) close(fds[i]);
    CHECK(partition_sync_done(p, 0));
    CHECK(open_files.pairs.count < before);
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &usual), 0);
    check_whole(&m, p);
    end(p, &m);
}

static void test_descriptors_are_planned_below_the_limit(void) {
    static const uint64_t limits[] = {0, 1024, 4096, 20000, 1 << 20}, connections[] = {1, 500, 5000, 100000};
    for (size_t l = 0; l < sizeof(limits) / sizeof(limits[0]); l++)
        for (size_t c = 0; c < sizeof(connections) / sizeof(connections[0]); c++) {
            descriptor_budget b = file_budget_plan(limits[l], connections[c], 1024);
            uint64_t files = 2 * b.segment_pairs + b.offset_files;
            uint64_t wanted = connections[c] + DESCRIPTORS_RESERVED + b.introductions + files;
            CHECK(b.introductions >= 16 && (b.introductions <= limits[l] / 16 || b.introductions == 16));
            CHECK(b.segment_pairs >= 16 && b.segment_pairs <= 8192);
            CHECK(b.offset_files >= 16 && b.offset_files <= OFFSET_FILES_MAX);
            CHECK(wanted <= limits[l] || (b.segment_pairs == 16 || b.offset_files == 16));
        }
    CHECK_EQUAL(file_budget_plan(1 << 20, 5000, 1024).segment_pairs, 8192);
    CHECK_EQUAL(file_budget_plan(1 << 20, 5000, 1024).offset_files, OFFSET_FILES_MAX);
    CHECK_EQUAL(file_budget_plan(1 << 20, 5000, 1024).introductions, 1024);
    CHECK_EQUAL(file_budget_plan(1 << 20, 5000, 0).introductions, 0);
}

/* The header of a record of 1 MiB, which is all that is there of it. */
static void write_header(uint64_t start, uint64_t k) {
    char path[256];
    uint8_t header[RECORD_HEADER_SIZE] = {0};
    uint64_t offset = start + k;
    uint32_t payload = (1 << 20) - RECORD_HEADER_SIZE;
    memcpy(header + 24, &offset, sizeof(offset));
    memcpy(header + 52, &payload, sizeof(payload));
    snprintf(path, sizeof(path), "%s/%020u.log", directory, (unsigned)start);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    CHECK_EQUAL(pwrite(fd, header, sizeof(header), (off_t)(k << 20)), sizeof(header));
    close(fd);
}

/* Segments of 1 GiB with 1024 records each, known from their indexes alone: an answer stops below 4 GiB. */
static void test_answer_size_limit(void) {
    partition_options options = options_of(1 << 30);
    segment_info segments[6];
    index_entry entries[1024];
    snprintf((char *)buffer, 256, "mkdir -p %s", directory);
    CHECK_EQUAL(system((char *)buffer), 0);
    for (uint64_t i = 0; i < 6; i++) {
        char path[256];
        segments[i] = (segment_info){i * 1024, 1 << 30, 1024, 10 + i, 10 + i, 0, NULL, 0};
        for (uint32_t k = 0; k < 1024; k++) entries[k] = (index_entry){k, (k + 1) << 20, 10 + i};
        snprintf(path, sizeof(path), "%s/%020u.index", directory, (unsigned)(i * 1024));
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        CHECK_EQUAL(write(fd, entries, sizeof(entries)), sizeof(entries));
        close(fd);
    }
    write_header(0, 999); /* before the first record of an answer */
    write_header(2048, 2999 - 2048);
    partition *p = partition_open(&options, segments, 6);
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, UINT32_MAX, 1, 1, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, 4095);
    CHECK_EQUAL(cursor.total_bytes, UINT64_C(4095) << 20);
    partition_cursor_end(&cursor);
    CHECK_EQUAL(partition_poll(p, POLL_OFFSET, 1000, UINT32_MAX, 1, 1, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, 4095);
    CHECK_EQUAL(cursor.last_offset, 5094);
    partition_cursor_end(&cursor);
    CHECK_EQUAL(partition_poll(p, POLL_OFFSET, 3000, UINT32_MAX, 1, 1, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, 3144);
    partition_cursor_end(&cursor);
    partition_close(p);
    partition_release(p);
}

static void test_many_consumers(void) {
    partition_options options = options_of(1 << 20);
    static model m;
    enum { CONSUMERS = 3000 };
    model_init(&m, 1 << 20);
    partition *p = partition_open(&options, NULL, 0);
    append(p, &m, 100, 5, 1000);
    for (uint32_t i = 0; i < CONSUMERS; i++)
        CHECK_EQUAL(partition_offset_store(p, (uint8_t)(1 + i % 2), i * 2654435761u, i % 100), 0);
    CHECK_EQUAL(open_files.offset_files.count, 1);
    for (uint32_t i = 0; i < CONSUMERS; i += 3)
        CHECK_EQUAL(partition_offset_delete(p, (uint8_t)(1 + i % 2), i * 2654435761u), 0);
    for (uint32_t i = 1; i < CONSUMERS; i += 3)
        CHECK_EQUAL(partition_offset_store(p, (uint8_t)(1 + i % 2), i * 2654435761u, 99), 0);
    for (int way = 0; way < 2; way++) {
        for (uint32_t i = 0; i < CONSUMERS; i++) {
            uint64_t value = MODEL_NONE;
            bool stored = partition_offset_get(p, (uint8_t)(1 + i % 2), i * 2654435761u, &value);
            CHECK_EQUAL(stored, i % 3 != 0);
            CHECK_EQUAL(value, i % 3 == 0 ? MODEL_NONE : i % 3 == 1 ? 99 : i % 100);
            CHECK(!partition_offset_get(p, (uint8_t)(2 - i % 2), i * 2654435761u, &value));
        }
        if (way == 0) {
            partition_release(p);
            p = reopen(&options);
        }
    }
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_idle_partition_is_small);
    RUN(test_system_calls_of_an_append);
    RUN(test_index_cache_eviction);
    RUN(test_index_cache_refuses_when_the_file_is_far_behind);
    RUN(test_open_files_are_bounded);
    RUN(test_no_descriptors_left);
    RUN(test_the_limit_of_the_process_is_reached);
    RUN(test_descriptors_are_planned_below_the_limit);
    RUN(test_answer_size_limit);
    RUN(test_many_consumers);
    test_root_remove();
    return check_report();
}
