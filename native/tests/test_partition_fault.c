/* Every call of every disk operation fails once, with several errors and as a short write. What must hold: nothing is
 * acknowledged that is lost, nothing that was refused comes back, later appends work or the partition is poisoned. */
#include "test_partition_fixture.h"

#include "log/files.h"
#include "partition_inside.h"

static id_source ids;
static char directory[128];
static fault_disk faulty;

static partition *open_fresh(partition_options *options) {
    static unsigned number;
    snprintf(directory, sizeof(directory), "%s/t%u/p", test_root, number++);
    id_source_seed_fixed(&ids, 3);
    fault_disk_init(&faulty);
    *options = (partition_options){.ns = 1,
                                   .incarnation = 2,
                                   .directory = directory,
                                   .segment_size_bytes = 1500,
                                   .disk = &faulty.disk,
                                   .files = &open_files,
                                   .ids = &ids};
    return partition_open(options, NULL, 0);
}

/* Appends `count` batches in one call; the model takes the acknowledged ones. Returns how many were refused. */
static unsigned append(partition *p, model *m, size_t count) {
    static uint8_t buffer[1 << 16];
    static uint64_t now_us = 1000;
    append_batch batches[8];
    uint8_t *at = buffer;
    for (size_t i = 0; i < count; i++) {
        uint32_t records = 1 + (uint32_t)test_random(3);
        batches[i] = (append_batch){.messages = at, .count = records, .length = make_records(at, records, 100, 300)};
        at += batches[i].length;
    }
    partition_append(p, batches, count, now_us++);
    unsigned refused = 0;
    for (size_t i = 0; i < count; i++) {
        if (batches[i].status != 0) {
            CHECK(batches[i].status == 10006 || batches[i].status == partition_state(p));
            refused++;
            continue;
        }
        CHECK_EQUAL(refused, 0); /* in order: none behind a refused one */
        CHECK_EQUAL(batches[i].first_offset, m->count);
        model_append(m, &batches[i]);
    }
    CHECK_EQUAL(partition_next_offset(p), m->count);
    return refused;
}

static unsigned store(partition *p, model *m, uint8_t kind, uint32_t id) {
    if (m->count == 0) return 0;
    uint64_t value = test_random(m->count), now = MODEL_NONE;
    uint32_t status = partition_offset_store(p, kind, id, value);
    CHECK(status == 0 || status == 10006 || status == 3023);
    if (status == 0) m->offsets[kind][id] = value;
    bool stored = partition_offset_get(p, kind, id, &now);
    CHECK_EQUAL(stored ? now : MODEL_NONE, m->offsets[kind][id]);
    return status != 0;
}

static unsigned poll_all(const model *m, partition *p) {
    poll_cursor cursor;
    poll_window window;
    uint64_t start = m->count / 3, records = 0;
    uint32_t status = partition_poll(p, POLL_OFFSET, start, UINT32_MAX, OFFSET_CONSUMER, 1, &cursor);
    while (status == 0 && partition_cursor_next(&cursor, 500, &window, &status)) records += window.count;
    partition_cursor_end(&cursor);
    CHECK(status == 0 || status == 10002);
    if (status == 0) CHECK_EQUAL(records, m->count - start);
    return status != 0;
}

/* A fixed sequence that uses every operation. Returns how many requests were refused. */
static unsigned run(partition *p, model *m) {
    unsigned refused = 0;
    for (unsigned i = 0; i < 14; i++) {
        refused += append(p, m, i % 4 == 3 ? 4 : 1) > 0;
        if (i % 2 == 1)
            for (int twice = 0; twice < 2; twice++) /* birth, then in place */
                refused += store(p, m, (uint8_t)(1 + i / 2 % 2), i / 4 % 3);
        if (i % 3 == 2) refused += partition_flush(p) != 0;
        if (i % 4 == 0) refused += poll_all(m, p);
        if (i == 9 || i == 12) {
            uint32_t status = partition_offset_delete(p, OFFSET_CONSUMER, i / 4 % 3);
            CHECK(status == 0 || status == 3011 || status == 3021);
            if (status == 0) m->offsets[OFFSET_CONSUMER][i / 4 % 3] = MODEL_NONE;
            refused += status == 3011;
        }
    }
    return refused;
}

/* After the fault: the model holds, appends work (or the partition is poisoned), and so after a kill. */
static void finish(partition *p, partition_options *options, model *m, int error) {
    fault_disk_heal(&faulty);
    CHECK(partition_state(p) == 0 || error == EIO);
    CHECK_EQUAL(append(p, m, 2), partition_state(p) != 0 ? 2 : 0);
    check_whole(m, p);
    partition_release(p); /* killed: no close, no flush */
    options->disk = &disk_system;
    p = reopen(options);
    CHECK(p != NULL);
    check_whole(m, p);
    CHECK_EQUAL(append(p, m, 2), 0);
    check_whole(m, p);
    partition_close(p);
    partition_release(p);
}

/* One run with the plan. Returns false when the plan was never reached. */
static bool try_plan(fault_operation operation, unsigned at, unsigned times, int error, size_t accepted,
                     bool no_truncate) {
    static model m;
    partition_options options;
    test_random_state = 42;
    partition *p = open_fresh(&options);
    model_init(&m, options.segment_size_bytes);
    fault_disk_plan(&faulty, operation, at, times, error, accepted);
    if (no_truncate) fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, UINT32_MAX / 2, EPERM, 0);
    unsigned before = check_errors, refused = run(p, &m);
    bool reached = faulty.injected > 0;
    if (error == EINTR || (accepted > 0 && times == 1)) CHECK_EQUAL(refused, 0);
    else if (reached && operation == FAULT_WRITE && accepted == 0)
        CHECK(refused > 0 || partition_state(p) != 0 || error != EIO);
    finish(p, &options, &m, error);
    if (check_errors != before)
        fprintf(stderr, "  in the plan: operation %d, call %u, times %u, error %d, accepted %zu\n", operation, at,
                times, error, accepted);
    model_free(&m);
    return reached;
}

/* Fails each call in turn until the sequence has no more of them. */
static void sweep(fault_operation operation, unsigned times, int error, size_t accepted, bool no_truncate) {
    unsigned at = 1;
    while (at < 1000 && check_errors < 20 && try_plan(operation, at, times, error, accepted, no_truncate)) at++;
    CHECK(at > 1 && at < 1000);
}

static void test_write_errors(void) {
    static const int errors[] = {ENOSPC, EDQUOT, ENOMEM, EFBIG, EIO, EINTR};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) sweep(FAULT_WRITE, 1, errors[i], 0, false);
    sweep(FAULT_WRITE, 5, ENOSPC, 0, false);
}

static void test_short_writes(void) {
    sweep(FAULT_WRITE, 1, ENOSPC, 4, false); /* continued */
    sweep(FAULT_WRITE, 1, ENOSPC, 170, false);
    sweep(FAULT_WRITE, 2, ENOSPC, 4, false); /* then the disk is full */
    sweep(FAULT_WRITE, 2, ENOSPC, 700, false);
    sweep(FAULT_WRITE, 2, EIO, 700, false);
    sweep(FAULT_WRITE, 2, EINTR, 700, false);
}

static void test_writes_that_cannot_be_cut(void) {
    sweep(FAULT_WRITE, 2, ENOSPC, 700, true); /* zeros instead */
    sweep(FAULT_WRITE, 3, ENOSPC, 700, true); /* not at once either: at the next append */
    sweep(FAULT_WRITE, 2, EDQUOT, 0, true);
}

/* `count` records of 100 bytes in one batch. Returns the status. */
static uint32_t append_hundreds(partition *p, model *m, uint32_t count) {
    static uint8_t buffer[4096];
    append_batch b = {.messages = buffer, .count = count, .length = make_records(buffer, count, 36, 36)};
    partition_append(p, &b, 1, 5000);
    if (b.status == 0) model_append(m, &b);
    return b.status;
}

/* A refused batch leaves whole, valid records behind that cannot be cut: the next ones would line up with them. */
static void test_refused_records_do_not_come_back(void) {
    static model m;
    partition_options options;
    for (uint32_t later = 0; later < 6; later++) {
        partition *p = open_fresh(&options);
        model_init(&m, options.segment_size_bytes);
        CHECK_EQUAL(append_hundreds(p, &m, 3), 0);
        fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, UINT32_MAX / 2, EPERM, 0);
        fault_disk_plan(&faulty, FAULT_WRITE, 1, 2, ENOSPC, 550);
        CHECK_EQUAL(append_hundreds(p, &m, 8), 10006);
        for (uint32_t i = 0; i < later; i++) CHECK_EQUAL(append_hundreds(p, &m, 1), 0);
        partition_release(p); /* killed */
        options.disk = &disk_system;
        p = reopen(&options);
        check_whole(&m, p);
        partition_close(p);
        partition_release(p);
        model_free(&m);
    }
}

/* The device fails three times: whole records of a refused batch are in the log, and can neither be cut off nor
 * overwritten. No append will come, so it is tried again with the next sync, or when the partition is closed. */
static void test_refused_records_that_could_not_be_cut_go_with_the_next_sync(void) {
    static const int errors[] = {EIO, ENOSPC};
    static model m;
    partition_options options;
    for (unsigned i = 0; i < 4; i++) {
        int error = errors[i % 2];
        bool closes = i / 2 == 1;
        partition *p = open_fresh(&options);
        model_init(&m, options.segment_size_bytes);
        CHECK_EQUAL(append_hundreds(p, &m, 3), 0);
        fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, 1, EIO, 0);
        fault_disk_plan(&faulty, FAULT_WRITE, 1, 3, error, 550);
        CHECK_EQUAL(append_hundreds(p, &m, 8), 10006);
        CHECK_EQUAL(partition_state(p), error == EIO ? 10006 : 0);
        CHECK_EQUAL(m.count, 3);
        CHECK(partition_is_dirty(p));
        if (closes) partition_close(p);
        else partition_sync_now(p);
        CHECK(!partition_has_refused(p));
        partition_release(p); /* killed */
        options.disk = &disk_system;
        p = reopen(&options);
        check_whole(&m, p);
        partition_close(p);
        partition_release(p);
        model_free(&m);
    }
}

/* A segment whose tail cannot be cut is not left behind: the roll waits. */
static void test_roll_waits_for_an_exact_log(void) {
    static model m;
    partition_options options;
    partition *p = open_fresh(&options);
    model_init(&m, options.segment_size_bytes);
    CHECK_EQUAL(append_hundreds(p, &m, 15), 0); /* full */
    fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, UINT32_MAX / 2, EPERM, 0);
    fault_disk_plan(&faulty, FAULT_WRITE, 1, 2, ENOSPC, 700);
    CHECK_EQUAL(append_hundreds(p, &m, 8), 10006);
    CHECK_EQUAL(append_hundreds(p, &m, 1), 0); /* seals it */
    CHECK_EQUAL(partition_segments(p), 1);
    CHECK_EQUAL(append_hundreds(p, &m, 1), 10006);
    fault_disk_heal(&faulty);
    CHECK_EQUAL(append_hundreds(p, &m, 1), 0);
    CHECK_EQUAL(partition_segments(p), 2);
    char path[256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/00000000000000000000.log", directory);
    CHECK(stat(path, &st) == 0 && st.st_size == 1600);
    check_whole(&m, p);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

static void test_name_errors(void) {
    static const int errors[] = {ENOSPC, EIO, EMFILE, EINTR};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        sweep(FAULT_OPEN, 1, errors[i], 0, false);
        sweep(FAULT_RENAME, 1, errors[i], 0, false);
        sweep(FAULT_MKDIR, 1, errors[i], 0, false);
    }
}

static void test_read_errors(void) {
    sweep(FAULT_READ, 1, ENOMEM, 0, false);
    sweep(FAULT_READ, 1, EINTR, 0, false);
    sweep(FAULT_READ, 1, ENOMEM, 5, false); /* short read: continued */
}

static void test_eio_is_final(void) {
    static model m;
    partition_options options;
    partition *p = open_fresh(&options);
    model_init(&m, options.segment_size_bytes);
    CHECK_EQUAL(append(p, &m, 2), 0);
    fault_disk_plan(&faulty, FAULT_WRITE, 1, 1, EIO, 0);
    CHECK_EQUAL(append(p, &m, 3), 3);
    CHECK_EQUAL(partition_state(p), 10006);
    unsigned writes = faulty.calls[FAULT_WRITE];
    CHECK_EQUAL(append(p, &m, 1), 1);
    CHECK_EQUAL(faulty.calls[FAULT_WRITE], writes); /* not even tried */
    check_whole(&m, p);                             /* what was acknowledged is served */
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

/* A directory that already has a log with bytes under the name of the first segment: somebody's data, left alone. */
static void test_foreign_log_is_kept(void) {
    static model m;
    partition_options options;
    partition *p = open_fresh(&options);
    model_init(&m, options.segment_size_bytes);
    char path[256], content[4] = "";
    snprintf(path, sizeof(path), "%.*s", (int)(strlen(directory) - 2), directory);
    CHECK_EQUAL(mkdir(path, 0755), 0);
    CHECK_EQUAL(mkdir(directory, 0755), 0);
    snprintf(path, sizeof(path), "%s/00000000000000000000.log", directory);
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    CHECK_EQUAL(write(fd, "old", 3), 3);
    CHECK_EQUAL(append(p, &m, 1), 1);
    CHECK_EQUAL(partition_state(p), 0);
    CHECK_EQUAL(pread(fd, content, 4, 0), 3);
    CHECK(memcmp(content, "old", 3) == 0);
    CHECK_EQUAL(ftruncate(fd, 0), 0);
    close(fd);
    CHECK_EQUAL(append(p, &m, 1), 0); /* an empty one is taken over */
    check_whole(&m, p);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

/* Another shard removes the empty directories of a deleted topic while they are being made for the next one. */
static void test_directories_that_vanish_while_they_are_made_are_made_again(void) {
    for (unsigned at = 1; at <= 12; at++) {
        char path[256];
        unsigned made;
        struct stat st;
        snprintf(path, sizeof(path), "%s/vanishing%u/a/b/c", test_root, at);
        fault_disk_init(&faulty);
        fault_disk_plan(&faulty, FAULT_MKDIR, at, 1, ENOENT, 0);
        CHECK_EQUAL(file_make_directories(&faulty.disk, path, &made), 0);
        CHECK(stat(path, &st) == 0 && S_ISDIR(st.st_mode));
        CHECK(made >= 4);
    }
    unsigned made;
    fault_disk_plan(&faulty, FAULT_MKDIR, 1, 1000, ENOENT, 0);
    CHECK_EQUAL(file_make_directories(&faulty.disk, "/never", &made), -1); /* not for ever */
}

int main(void) {
    test_root_make();
    RUN(test_write_errors);
    RUN(test_short_writes);
    RUN(test_writes_that_cannot_be_cut);
    RUN(test_refused_records_do_not_come_back);
    RUN(test_refused_records_that_could_not_be_cut_go_with_the_next_sync);
    RUN(test_roll_waits_for_an_exact_log);
    RUN(test_name_errors);
    RUN(test_read_errors);
    RUN(test_eio_is_final);
    RUN(test_foreign_log_is_kept);
    RUN(test_directories_that_vanish_while_they_are_made_are_made_again);
    test_root_remove();
    return check_report();
}
