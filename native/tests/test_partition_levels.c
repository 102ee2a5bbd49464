/* Every errno at every call site of the disk seam, at every level. A model holds what was written; what was
 * acknowledged must be readable at once and after a kill (`written`, `durable`) or an orderly end (`memory`), nothing
 * else may stand between, and what failed is never acknowledged. */
#include "partition_inside.h"
#include "test_partition_fixture.h"

#define JOURNAL_MESSAGES_MAX 6u
#define JOURNAL_BYTES_MAX 1400u

static id_source ids;
static char directory[128];
static fault_disk faulty;
static partition_level level;
static uint64_t acknowledged; /* messages */
static bool poisoned_once;

static partition_options options_of_level(const disk *d) {
    return (partition_options){.ns = 1,
                               .incarnation = 2,
                               .directory = directory,
                               .segment_size_bytes = 1500,
                               .disk = d,
                               .files = &open_files,
                               .ids = &ids,
                               .level = level,
                               .journal_messages_max = JOURNAL_MESSAGES_MAX,
                               .journal_bytes_max = JOURNAL_BYTES_MAX};
}

static partition *open_fresh(void) {
    static unsigned number;
    snprintf(directory, sizeof(directory), "%s/t%u/p", test_root, number++);
    id_source_seed_fixed(&ids, 3);
    fault_disk_init(&faulty);
    faulty.disk.fdatasync = fault_quick_sync;
    acknowledged = 0;
    partition_options options = options_of_level(&faulty.disk);
    return partition_open(&options, NULL, 0);
}

/* The group commit of the engine, with the descriptors that can be had. True: what was written is acknowledged. */
static bool reach_level(partition *p, const model *m) {
    if (level == LEVEL_DURABLE) partition_sync_now(p);
    bool reached = level != LEVEL_DURABLE || (!inside_sync(p)->failed && inside_sync(p)->covers);
    if (reached && level == LEVEL_DURABLE) CHECK_EQUAL(partition_visible_end(p), m->count);
    return reached;
}

static bool append(partition *p, model *m, uint32_t records) {
    static uint8_t buffer[1 << 14];
    static uint64_t now_us = 1000;
    append_batch b = {.messages = buffer, .count = records, .length = make_records(buffer, records, 100, 300)};
    partition_append(p, &b, 1, now_us++);
    if (b.status != 0) {
        CHECK(b.status == 10006 || b.status == partition_state(p));
        return false;
    }
    CHECK_EQUAL(b.first_offset, m->count);
    model_append(m, &b);
    CHECK_EQUAL(partition_next_offset(p), m->count);
    if (!reach_level(p, m)) return false;
    acknowledged = m->count;
    return true;
}

static void store(partition *p, model *m, uint32_t id) {
    uint64_t value = acknowledged > 0 ? test_random(acknowledged) : 0, now;
    uint32_t status = partition_offset_store(p, OFFSET_CONSUMER, id, value);
    CHECK(status == 0 || status == 10006 || status == 3023 || (status == 4100 && acknowledged == 0));
    if (status == 0) m->offsets[OFFSET_CONSUMER][id] = value;
    CHECK_EQUAL(partition_offset_get(p, OFFSET_CONSUMER, id, &now) ? now : MODEL_NONE, m->offsets[OFFSET_CONSUMER][id]);
    reach_level(p, m);
}

static void run(partition *p, model *m) {
    poll_cursor cursor;
    for (unsigned i = 0; i < 12; i++) {
        append(p, m, 1 + (uint32_t)test_random(3));
        if (i % 3 == 1) store(p, m, i / 4);
        if (i % 4 == 2) partition_flush(p);
        if (i % 5 == 3) { /* at `memory` it saves first */
            uint32_t status = partition_poll(p, POLL_LAST, 0, 3, OFFSET_CONSUMER, 1, &cursor);
            CHECK(status == 0 || status == 10002);
            CHECK(cursor.total_count <= 3);
            partition_cursor_end(&cursor);
        }
        if (i == 9) partition_offset_delete(p, OFFSET_CONSUMER, 1), m->offsets[OFFSET_CONSUMER][1] = MODEL_NONE;
    }
}

/* After the fault: the model holds now, and after an end without (kill) or with (close) order. */
static void finish(partition *p, model *m, bool kill) {
    fault_disk_heal(&faulty);
    bool poisoned = partition_state(p) != 0;
    poisoned_once |= poisoned;
    CHECK_EQUAL(append(p, m, 2), !poisoned);
    uint64_t readable = check_readable(m, p);
    if (level != LEVEL_MEMORY || !poisoned) CHECK(readable >= acknowledged);
    if (level == LEVEL_DURABLE) CHECK_EQUAL(readable, partition_visible_end(p));
    if (!kill) partition_close(p);
    partition_release(p);
    partition_options options = options_of_level(&disk_system);
    p = reopen(&options);
    uint64_t found = check_readable(m, p);
    if (level != LEVEL_MEMORY || (!kill && !poisoned)) CHECK(found >= acknowledged);
    CHECK_EQUAL(found, partition_next_offset(p));
    partition_close(p);
    partition_release(p);
}

/* One run with the plan. Returns false when the plan was never reached. */
static bool try_plan(fault_operation operation, unsigned at, unsigned times, int error, size_t accepted) {
    static model m;
    test_random_state = 42;
    partition *p = open_fresh();
    model_init(&m, 1500);
    fault_disk_plan(&faulty, operation, at, times, error, accepted);
    unsigned before = check_errors;
    run(p, &m);
    bool reached = faulty.injected > 0;
    CHECK(partition_state(p) == 0 || error == EIO || (operation == FAULT_SYNC && error != EINTR));
    if (reached && operation == FAULT_SYNC && error != EINTR) CHECK_EQUAL(partition_state(p), 10009);
    finish(p, &m, at % 2 == 0);
    if (check_errors != before)
        fprintf(stderr, "  in the plan: level %d, operation %d, call %u, times %u, error %d, accepted %zu\n", level,
                operation, at, times, error, accepted);
    model_free(&m);
    return reached;
}

static void sweep(fault_operation operation, unsigned times, int error, size_t accepted) {
    unsigned at = 1;
    while (at < 1000 && check_errors < 20 && try_plan(operation, at, times, error, accepted)) at++;
    CHECK(at < 1000);
    bool used = operation != FAULT_SYNC || level == LEVEL_DURABLE; /* elsewhere the engine syncs */
    if (operation != FAULT_TRUNCATE && operation != FAULT_DUPLICATE && operation != FAULT_ALLOCATE) /* at some */
        CHECK(!used || at > 1);
}

static void sweep_all(void) {
    static const int errors[] = {EIO, ENOSPC, EDQUOT, EINTR, EMFILE, ENOMEM};
    static const fault_operation operations[] = {FAULT_OPEN,     FAULT_DUPLICATE, FAULT_WRITE,  FAULT_TRUNCATE,
                                                 FAULT_ALLOCATE, FAULT_SYNC,      FAULT_RENAME, FAULT_MKDIR};
    poisoned_once = false;
    for (size_t o = 0; o < sizeof(operations) / sizeof(operations[0]); o++)
        for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) sweep(operations[o], 1, errors[e], 0);
    sweep(FAULT_WRITE, 1, ENOSPC, 4); /* short, then continued */
    sweep(FAULT_WRITE, 2, ENOSPC, 4); /* short, then refused */
    sweep(FAULT_WRITE, 2, ENOSPC, 500);
    sweep(FAULT_WRITE, 2, EIO, 500);
    sweep(FAULT_WRITE, 6, EDQUOT, 0); /* refused for a while */
    CHECK(poisoned_once);             /* the checks of a poisoned partition have run */
}

static void test_faults_at_written(void) {
    level = LEVEL_WRITTEN;
    sweep_all();
}

static void test_faults_at_memory(void) {
    level = LEVEL_MEMORY;
    sweep_all();
}

static void test_faults_at_durable(void) {
    level = LEVEL_DURABLE;
    sweep_all();
}

/* A full disk: what the journal has stays and is served later, what does not fit is refused, nothing is lost. */
static void test_a_journal_on_a_full_disk_is_kept_and_tried_again(void) {
    static model m;
    level = LEVEL_MEMORY;
    partition *p = open_fresh();
    model_init(&m, 1500);
    CHECK(append(p, &m, 3));
    CHECK_EQUAL(partition_unsaved_bytes(p), inside_journal(p)->length);
    CHECK(partition_unsaved_bytes(p) > 0);
    fault_disk_plan(&faulty, FAULT_WRITE, 1, UINT32_MAX / 2, ENOSPC, 0);
    CHECK_EQUAL(partition_flush(p), 10006);
    int fds[16];
    size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 16);
    for (size_t i = 0; i < count; i++) close(fds[i]);
    CHECK(!partition_sync_done(p, 0)); /* nobody may be told that all is on the device */
    CHECK_EQUAL(inside_sync(p)->durable_end, 0);
    CHECK(append(p, &m, 1)); /* fits */
    CHECK(!append(p, &m, 3));
    CHECK(!append(p, &m, 3));
    CHECK_EQUAL(check_readable(&m, p), 0); /* not in the file: not shown */
    CHECK_EQUAL(partition_state(p), 0);
    fault_disk_heal(&faulty);
    CHECK_EQUAL(check_readable(&m, p), 4);
    CHECK(append(p, &m, 3));
    finish(p, &m, false);
    model_free(&m);
}

static unsigned takes;

static void *take(void *context, size_t bytes) {
    (void)context;
    takes++;
    return malloc(bytes);
}

static void give(void *context, void *block) {
    (void)context;
    free(block);
}

/* Journals have one cap over all partitions; beyond it a batch is written at once. */
static void test_journals_have_one_cap(void) {
    static model m[2];
    journal_memory memory = {.bytes_max = 4096, .take = take, .give = give};
    partition *p[2];
    level = LEVEL_MEMORY;
    for (int i = 0; i < 2; i++) {
        snprintf(directory, sizeof(directory), "%s/cap%d/p", test_root, i);
        partition_options options = options_of_level(&disk_system);
        options.journals = &memory;
        p[i] = partition_open(&options, NULL, 0);
        model_init(&m[i], 1500);
        CHECK(append(p[i], &m[i], 2));
    }
    CHECK_EQUAL(takes, 1);
    CHECK(partition_unsaved_bytes(p[0]) > 0);
    CHECK_EQUAL(partition_unsaved_bytes(p[1]), 0);
    CHECK_EQUAL(memory.used_bytes, 4096);
    CHECK_EQUAL(partition_flush(p[0]), 0);
    CHECK_EQUAL(memory.used_bytes, 0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(check_readable(&m[i], p[i]), 2);
        partition_close(p[i]);
        partition_release(p[i]);
        model_free(&m[i]);
    }
}

/* What a killed process left in the page cache is synced before a durable partition shows it; if that fails it is read
 * only and still readable. */
static void test_a_durable_partition_is_synced_when_it_opens(void) {
    static model m;
    level = LEVEL_WRITTEN;
    partition *p = open_fresh();
    model_init(&m, 1500);
    for (int i = 0; i < 8; i++) CHECK(append(p, &m, 2));
    partition_release(p);
    level = LEVEL_DURABLE;
    partition_options options = options_of_level(&faulty.disk);
    unsigned before = faulty.calls[FAULT_SYNC];
    p = reopen(&options);
    CHECK(faulty.calls[FAULT_SYNC] >= before + partition_segments(p));
    CHECK_EQUAL(inside_sync(p)->durable_end, m.count);
    partition_release(p);
    fault_disk_plan(&faulty, FAULT_SYNC, 1, 1, EIO, 0);
    p = reopen(&options);
    CHECK_EQUAL(partition_state(p), 10009);
    CHECK_EQUAL(check_readable(&m, p), m.count);
    partition_release(p);
    model_free(&m);
}

static off_t log_size(void) {
    char path[256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/00000000000000000000.log", directory);
    return stat(path, &st) == 0 ? st.st_size : -1;
}

/* At `durable` the log has zeros ahead of its records; they are no records, and an orderly end cuts them. */
static void test_space_ahead_is_zero_and_cut_in_the_end(void) {
    static model m;
    for (int kill = 0; kill < 2; kill++)
        for (int refused = 0; refused < 2; refused++) {
            level = LEVEL_DURABLE;
            partition *p = open_fresh();
            model_init(&m, 1500);
            fault_disk_plan(&faulty, FAULT_ALLOCATE, refused, 1, EOPNOTSUPP, 0);
            CHECK(append(p, &m, 1));
            CHECK(append(p, &m, 1));
            CHECK_EQUAL(log_size(), refused ? (off_t)m.total_bytes : 1500); /* the segment's size at most */
            CHECK_EQUAL(faulty.calls[FAULT_ALLOCATE], 1);
            if (!kill) partition_close(p);
            partition_release(p);
            CHECK_EQUAL(log_size(), kill && !refused ? 1500 : (off_t)m.total_bytes);
            partition_options options = options_of_level(&disk_system);
            p = reopen(&options);
            CHECK_EQUAL(check_readable(&m, p), 2);
            for (int i = 0; i < 10; i++) CHECK(append(p, &m, 2));
            CHECK(partition_segments(p) > 1);
            CHECK_EQUAL(log_size(), (off_t)inside_segments(p)->items[0].log_bytes); /* sealed: exact */
            CHECK_EQUAL(check_readable(&m, p), m.count);
            partition_close(p);
            partition_release(p);
            model_free(&m);
        }
}

int main(void) {
    test_root_make();
    RUN(test_faults_at_written);
    RUN(test_faults_at_memory);
    RUN(test_faults_at_durable);
    RUN(test_a_journal_on_a_full_disk_is_kept_and_tried_again);
    RUN(test_journals_have_one_cap);
    RUN(test_space_ahead_is_zero_and_cut_in_the_end);
    RUN(test_a_durable_partition_is_synced_when_it_opens);
    test_root_remove();
    return check_report();
}
