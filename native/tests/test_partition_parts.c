/* Large batches in parts: nothing of one is visible before its last part, whatever happens in between. */
#include "test_partition_support.h"

#include "log/expiry_clock.h"

#define LARGE_COUNT 8u
#define LARGE_BODY 700000u
#define LARGE_PARTS 6u
#define MANY_COUNT 70000u /* empty ones: parts by count, more than the index cache keeps */

static fault_disk faulty;
static uint8_t second[sizeof buffer];

static append_batch large_in(uint8_t *at, uint32_t count, uint32_t body) {
    return (append_batch){.messages = at, .count = count, .length = make_records(at, count, body, body)};
}

static void append_small(partition *p, model *m) {
    static uint8_t small[4096];
    append_batch b = large_in(small, 3, 100);
    partition_append(p, &b, 1, 9000);
    CHECK_EQUAL(b.status, 0);
    if (b.status == 0) model_append(m, &b);
}

static void finish(partition *p, model *m, append_batch *b) {
    partition_append(p, b, 1, 9999);
    CHECK_EQUAL(b->status, 0);
    CHECK_EQUAL(b->first_offset, m->count);
    if (b->status == 0) model_append(m, b);
}

static uint64_t log_file_bytes(uint64_t start) {
    char path[256];
    struct stat st = {0};
    snprintf(path, sizeof(path), "%s/%020" PRIu64 ".log", directory, start);
    CHECK_EQUAL(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

/* Everything else that a partition is asked meanwhile. */
static void disturb(partition *p, const model *m) {
    check_whole(m, p);
    CHECK_EQUAL(atomic_load(&stats.next_offset), m->count);
    CHECK_EQUAL(atomic_load(&stats.size_bytes), m->total_bytes);
    CHECK_EQUAL(partition_flush(p), 0);
    sync_all(p);
}

static void *take(void *context, size_t bytes) {
    (void)context;
    return malloc(bytes);
}

static void give(void *context, void *block) {
    (void)context;
    free(block);
}

static void test_nothing_is_visible_before_the_last_part(void) {
    static const partition_level levels[] = {LEVEL_WRITTEN, LEVEL_MEMORY};
    for (int many = 0; many < 4; many++) {
        static model m;
        partition_options o = options_of(64 << 20);
        static journal_memory journals = {.bytes_max = 1 << 20, .take = take, .give = give};
        o.level = levels[many / 2];
        o.journals = &journals;
        o.journal_messages_max = o.journal_bytes_max = 100000;
        partition *p = partition_open(&o, NULL, 0);
        model_init(&m, o.segment_size_bytes);
        append_small(p, &m);
        append_batch b = many % 2 ? large_in(buffer, MANY_COUNT, 0) : large_in(buffer, LARGE_COUNT, LARGE_BODY);
        unsigned parts = 1;
        for (; partition_append_part(p, &b, 7000); parts++) disturb(p, &m);
        CHECK_EQUAL(parts, (b.length + APPEND_PART_BYTES - 1) / APPEND_PART_BYTES);
        disturb(p, &m);
        CHECK_EQUAL(log_file_bytes(0), m.total_bytes + b.length);
        finish(p, &m, &b);
        disturb(p, &m);
        append_small(p, &m);
        disturb(p, &m);
        CHECK_EQUAL(log_file_bytes(0), m.total_bytes);
        partition_release(p); /* killed */
        p = reopen(&o);
        check_whole(&m, p);
        end(p, &m);
    }
}

/* The calls of the disk that one large batch makes are as many as its parts: it is not written twice. */
static void test_the_end_of_the_parts_writes_nothing_more(void) {
    static model m;
    partition_options o = options_of(64 << 20);
    fault_disk_init(&faulty);
    o.disk = &faulty.disk;
    partition *p = partition_open(&o, NULL, 0);
    model_init(&m, o.segment_size_bytes);
    append_small(p, &m);
    append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
    unsigned writes = faulty.calls[FAULT_WRITE], cuts = faulty.calls[FAULT_TRUNCATE];
    while (partition_append_part(p, &b, 7000)) continue;
    finish(p, &m, &b);
    CHECK_EQUAL(faulty.calls[FAULT_WRITE], writes + LARGE_PARTS);
    append_small(p, &m);
    CHECK_EQUAL(faulty.calls[FAULT_TRUNCATE], cuts);
    check_whole(&m, p);
    end(p, &m);
}

/* A write fails in each part, cleanly or in its middle; with and without a file that can be cut. */
static void try_failure(unsigned part, int error, size_t accepted, bool no_truncate) {
    static model m;
    partition_options o = options_of(64 << 20);
    fault_disk_init(&faulty);
    o.disk = &faulty.disk;
    partition *p = partition_open(&o, NULL, 0);
    model_init(&m, o.segment_size_bytes);
    append_small(p, &m);
    append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
    fault_disk_plan(&faulty, FAULT_WRITE, part, accepted > 0 ? 2 : 1, error, accepted);
    if (no_truncate) fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, UINT32_MAX / 2, EPERM, 0);
    unsigned done = 1;
    for (; partition_append_part(p, &b, 7000); done++) check_whole(&m, p);
    CHECK_EQUAL(done, part);
    partition_append(p, &b, 1, 8000);
    CHECK_EQUAL(b.status, 10006);
    CHECK_EQUAL(partition_state(p), error == EIO ? 10006 : 0);
    check_whole(&m, p);
    if (error != EIO) {
        append_small(p, &m);
        if (!no_truncate) CHECK_EQUAL(log_file_bytes(0), m.total_bytes);
    }
    fault_disk_heal(&faulty);
    partition_release(p); /* killed */
    o.disk = &disk_system;
    p = reopen(&o);
    check_whole(&m, p); /* nothing that was refused comes back */
    append_small(p, &m);
    check_whole(&m, p);
    end(p, &m);
}

static void test_a_part_that_fails_refuses_the_whole_batch(void) {
    static const int errors[] = {ENOSPC, EDQUOT, EIO};
    for (unsigned part = 1; part <= LARGE_PARTS; part++)
        for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
            try_failure(part, errors[i], 0, false);
            try_failure(part, errors[i], 200000, false);
            if (errors[i] != EIO) try_failure(part, errors[i], 200000, true);
        }
}

/* As after a write that a kill interrupted: what was acknowledged is there, of the rest whole records at most. */
static void test_a_kill_between_the_parts_keeps_what_was_acknowledged(void) {
    for (unsigned parts = 1; parts <= LARGE_PARTS; parts++) {
        static model m;
        partition_options o = options_of(64 << 20);
        partition *p = partition_open(&o, NULL, 0);
        model_init(&m, o.segment_size_bytes);
        append_small(p, &m);
        append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
        for (unsigned i = 0; i < parts; i++) CHECK_EQUAL(partition_append_part(p, &b, 7000), i + 1 < LARGE_PARTS);
        partition_release(p); /* killed */
        p = reopen(&o);
        CHECK(partition_next_offset(p) >= m.count && partition_next_offset(p) <= m.count + b.count);
        CHECK_EQUAL(partition_next_offset(p) == m.count + b.count, parts == LARGE_PARTS);
        uint32_t kept = (uint32_t)(partition_next_offset(p) - m.count);
        if (kept > 0) model_append(&m, &(append_batch){.messages = b.messages, .count = kept});
        check_whole(&m, p);
        append_small(p, &m);
        check_whole(&m, p);
        end(p, &m);
    }
}

static void test_a_close_between_the_parts_leaves_nothing_of_them(void) {
    static model m;
    partition_options o = options_of(64 << 20);
    partition *p = partition_open(&o, NULL, 0);
    model_init(&m, o.segment_size_bytes);
    append_small(p, &m);
    append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
    CHECK(partition_append_part(p, &b, 7000));
    partition_close(p);
    CHECK(!partition_append_part(p, &b, 7000));
    partition_append(p, &b, 1, 8000);
    CHECK_EQUAL(b.status, 3007);
    partition_release(p);
    CHECK_EQUAL(log_file_bytes(0), m.total_bytes);
    p = reopen(&o);
    check_whole(&m, p);
    end(p, &m);
}

/* Somebody else appends: the parts are cut, and the batch is written at once behind it. */
static void test_an_append_between_the_parts_goes_first(void) {
    for (unsigned parts = 1; parts <= LARGE_PARTS; parts++) {
        static model m;
        partition_options o = options_of(64 << 20);
        partition *p = partition_open(&o, NULL, 0);
        model_init(&m, o.segment_size_bytes);
        append_small(p, &m);
        append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
        for (unsigned i = 0; i < parts; i++) partition_append_part(p, &b, 7000);
        append_small(p, &m);
        CHECK_EQUAL(log_file_bytes(0), m.total_bytes);
        CHECK_EQUAL(partition_append_part(p, &b, 7500), true); /* begins anew */
        finish(p, &m, &b);
        check_whole(&m, p);
        end(p, &m);
    }
}

static void test_a_change_of_the_level_between_the_parts_loses_nothing(void) {
    static const partition_level to[] = {LEVEL_DURABLE, LEVEL_WRITTEN};
    for (int i = 0; i < 2; i++) {
        static model m;
        partition_options o = options_of(64 << 20);
        o.level = to[1 - i];
        partition *p = partition_open(&o, NULL, 0);
        model_init(&m, o.segment_size_bytes);
        append_batch first = large_in(second, LARGE_COUNT, LARGE_BODY); /* from now on blocks are reserved */
        while (partition_append_part(p, &first, 7000)) continue;
        finish(p, &m, &first);
        append_small(p, &m);
        sync_all(p);
        append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
        CHECK(partition_append_part(p, &b, 7000));
        CHECK_EQUAL(partition_set_level(p, to[i]), 0);
        while (partition_append_part(p, &b, 7000)) continue;
        finish(p, &m, &b);
        append_small(p, &m);
        sync_all(p);
        check_whole(&m, p);
        partition_release(p); /* killed */
        p = reopen(&o);
        check_whole(&m, p);
        end(p, &m);
    }
}

/* A segment that was full before takes the batch and is sealed; batches of one turn each begin where another ended. */
static void test_large_batches_roll_as_others_do(void) {
    static model m;
    partition_options o = options_of(4 << 20);
    partition *p = partition_open(&o, NULL, 0);
    model_init(&m, o.segment_size_bytes);
    for (int i = 0; i < 5; i++) {
        append_batch b = large_in(i % 2 ? buffer : second, LARGE_COUNT, LARGE_BODY);
        while (partition_append_part(p, &b, 7000)) continue;
        finish(p, &m, &b);
        append_small(p, &m);
        CHECK_EQUAL(partition_segments(p), m.segments);
    }
    CHECK(m.segments > 2);
    check_whole(&m, p);
    partition_release(p); /* killed */
    p = reopen(&o);
    check_whole(&m, p);
    end(p, &m);
}

/* A step of the retention, a second and more after the one before. */
static void clean(partition *p) {
    static int64_t now_us;
    partition_cleaned cleaned;
    for (int i = 0; i < 3; i++) CHECK_EQUAL(partition_clean(p, now_us += 1500000, test_root, &cleaned), 0);
}

/* The retention seals the segment: nothing of the parts stays there, and the batch goes into the next one. */
static void test_a_roll_between_the_parts_begins_them_anew(void) {
    for (unsigned parts = 1; parts <= LARGE_PARTS; parts++) {
        static model m;
        partition_options o = options_of(64 << 20);
        partition *p = partition_open(&o, NULL, 0);
        model_init(&m, o.segment_size_bytes);
        append_small(p, &m);
        clean(p);
        append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
        for (unsigned i = 0; i < parts; i++) partition_append_part(p, &b, 7000);
        CHECK_EQUAL(partition_roll_early(p), 0);
        CHECK_EQUAL(partition_segments(p), 2);
        CHECK_EQUAL(log_file_bytes(0), m.total_bytes);
        disturb(p, &m);
        uint64_t before = m.total_bytes;
        unsigned again = 1;
        for (; partition_append_part(p, &b, 7500); again++) disturb(p, &m);
        CHECK_EQUAL(again, LARGE_PARTS);
        finish(p, &m, &b);
        CHECK_EQUAL(log_file_bytes(0), before);
        append_small(p, &m);
        check_whole(&m, p);
        partition_release(p); /* killed */
        p = reopen(&o);
        check_whole(&m, p);
        end(p, &m);
    }
}

/* Whoever cuts them again and again does not keep the batch from its end. */
static void test_parts_are_begun_anew_once(void) {
    static model m;
    partition_options o = options_of(64 << 20);
    o.level = LEVEL_DURABLE;
    partition *p = partition_open(&o, NULL, 0);
    model_init(&m, o.segment_size_bytes);
    append_small(p, &m);
    sync_all(p);
    append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(partition_append_part(p, &b, 7000), i < 2);
        partition_set_level(p, LEVEL_WRITTEN);
        partition_set_level(p, LEVEL_DURABLE);
    }
    finish(p, &m, &b);
    sync_all(p);
    check_whole(&m, p);
    end(p, &m);
}

static uint64_t wall(void *context) {
    (void)context;
    return 10000;
}

static int64_t monotonic(void *context) {
    (void)context;
    return 1;
}

static void test_the_log_start_moves_between_the_parts(void) {
    static model m;
    expiry_clock clock = {.wall_us = wall, .monotonic_us = monotonic};
    partition_options o = options_of(64 << 20);
    o.clock = &clock;
    partition_limits limits = {.messages_max = 2};
    partition *p = partition_open(&o, NULL, 0);
    model_init(&m, o.segment_size_bytes);
    append_small(p, &m);
    append_batch b = large_in(buffer, LARGE_COUNT, LARGE_BODY);
    CHECK(partition_append_part(p, &b, 7000));
    partition_set_limits(p, &limits);
    clean(p);
    CHECK_EQUAL(partition_first_offset(p), 1);
    while (partition_append_part(p, &b, 7000)) CHECK_EQUAL(partition_messages(p), 2);
    CHECK_EQUAL(log_file_bytes(0), m.total_bytes + b.length); /* they were not begun anew */
    finish(p, &m, &b);
    CHECK_EQUAL(partition_messages(p), 2 + LARGE_COUNT);
    clean(p);
    CHECK_EQUAL(partition_first_offset(p), m.count - 2);
    CHECK_EQUAL(partition_messages(p), 2);
    poll_cursor cursor;
    check_poll(&m, p, POLL_OFFSET, m.count - 2, 10, OFFSET_CONSUMER, 1, &cursor);
    while (check_window(&m, &cursor, 1 << 20)) continue;
    partition_cursor_end(&cursor);
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_nothing_is_visible_before_the_last_part);
    RUN(test_the_end_of_the_parts_writes_nothing_more);
    RUN(test_a_part_that_fails_refuses_the_whole_batch);
    RUN(test_a_kill_between_the_parts_keeps_what_was_acknowledged);
    RUN(test_a_close_between_the_parts_leaves_nothing_of_them);
    RUN(test_an_append_between_the_parts_goes_first);
    RUN(test_a_change_of_the_level_between_the_parts_loses_nothing);
    RUN(test_large_batches_roll_as_others_do);
    RUN(test_a_roll_between_the_parts_begins_them_anew);
    RUN(test_parts_are_begun_anew_once);
    RUN(test_the_log_start_moves_between_the_parts);
    test_root_remove();
    return check_report();
}
