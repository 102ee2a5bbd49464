/* The six changes between the levels, with every errno at every call site of the disk seam: what was acknowledged
 * before a change or after it is readable at once, after a kill (but for what `memory` alone has) and after an orderly
 * end; polls never see less after a change than before it. */
#include "partition_inside.h"
#include "test_partition_fixture.h"

static const partition_level changes[] = {LEVEL_WRITTEN, LEVEL_MEMORY, LEVEL_DURABLE, LEVEL_WRITTEN,
                                          LEVEL_DURABLE, LEVEL_MEMORY, LEVEL_WRITTEN};
#define CHANGES (sizeof(changes) / sizeof(changes[0]))

static id_source ids;
static char directory[128];
static fault_disk faulty;
static uint64_t acknowledged; /* messages: they are there until a kill */
static uint64_t kill_proof;   /* messages: they are there after a kill, too */
static bool saw_unsaved_change, saw_poison;

static partition_options options_on(const disk *d, partition_level level) {
    return (partition_options){.ns = 1,
                               .incarnation = 2,
                               .directory = directory,
                               .segment_size_bytes = 1500,
                               .disk = d,
                               .files = &open_files,
                               .ids = &ids,
                               .level = level,
                               .journal_messages_max = 6,
                               .journal_bytes_max = 1400};
}

static partition *open_fresh(model *m) {
    static unsigned number;
    snprintf(directory, sizeof(directory), "%s/c%u/p", test_root, number++);
    id_source_seed_fixed(&ids, 3);
    fault_disk_init(&faulty);
    faulty.disk.fdatasync = fault_quick_sync;
    acknowledged = kill_proof = 0;
    test_random_state = 42;
    model_init(m, 1500);
    partition_options options = options_on(&faulty.disk, changes[0]);
    return partition_open(&options, NULL, 0);
}

/* Whether what was written counts at the level that the partition has now. */
static bool reach_level(partition *p) {
    if (partition_level_of(p) != LEVEL_DURABLE) return true;
    partition_sync_now(p);
    return !inside_sync(p)->failed && inside_sync(p)->covers;
}

static bool append(partition *p, model *m, uint32_t records) {
    static uint8_t buffer[1 << 14];
    append_batch b = {.messages = buffer, .count = records, .length = make_records(buffer, records, 100, 300)};
    partition_append(p, &b, 1, 1000);
    if (b.status != 0) {
        CHECK(b.status == 10006 || b.status == partition_state(p));
        return false;
    }
    CHECK_EQUAL(b.first_offset, m->count);
    model_append(m, &b);
    if (!reach_level(p)) return false;
    acknowledged = m->count;
    if (partition_level_of(p) != LEVEL_MEMORY || inside_journal(p)->records == 0) kill_proof = m->count;
    return true;
}

static void change(partition *p, partition_level level) {
    bool from_memory = partition_level_of(p) == LEVEL_MEMORY;
    uint64_t shown = partition_visible_end(p);
    uint32_t status = partition_set_level(p, level);
    CHECK(status == 0 || (from_memory && (status == 10006 || status == partition_state(p))));
    CHECK_EQUAL(partition_level_of(p), level);
    CHECK(partition_visible_end(p) >= shown);
    if (status == 0 && from_memory) {
        CHECK_EQUAL(partition_unsaved_bytes(p), 0);
        kill_proof = acknowledged > kill_proof ? acknowledged : kill_proof;
    }
    saw_unsaved_change |= status == 10006 && partition_unsaved_bytes(p) > 0;
}

static void run(partition *p, model *m) {
    for (size_t i = 0; i < CHANGES; i++) {
        if (i > 0) change(p, changes[i]);
        append(p, m, 1 + (uint32_t)test_random(3));
        append(p, m, 1);
        if (i % 2 == 1) append(p, m, 2);
    }
}

static void finish(partition *p, model *m, bool kill, partition_level after) {
    fault_disk_heal(&faulty);
    bool poisoned = partition_state(p) != 0;
    saw_poison |= poisoned;
    if (!poisoned) { /* once more around, from whatever was left */
        change(p, after);
        CHECK(append(p, m, 2));
    }
    uint64_t readable = check_readable(m, p);
    CHECK(readable >= (poisoned ? kill_proof : acknowledged));
    if (partition_level_of(p) == LEVEL_DURABLE) CHECK_EQUAL(readable, partition_visible_end(p));
    if (!kill) partition_close(p);
    partition_release(p);
    partition_options options = options_on(&disk_system, after);
    p = reopen(&options);
    uint64_t found = check_readable(m, p);
    CHECK(found >= (kill || poisoned ? kill_proof : acknowledged));
    CHECK_EQUAL(found, partition_next_offset(p));
    partition_close(p);
    partition_release(p);
}

static bool try_plan(fault_operation operation, unsigned at, unsigned times, int error, size_t accepted) {
    static model m;
    partition *p = open_fresh(&m);
    fault_disk_plan(&faulty, operation, at, times, error, accepted);
    unsigned before = check_errors;
    run(p, &m);
    bool reached = faulty.injected > 0;
    finish(p, &m, at % 2 == 0, (partition_level)(at % 3));
    if (check_errors != before)
        fprintf(stderr, "  in the plan: operation %d, call %u, times %u, error %d, accepted %zu\n", operation, at,
                times, error, accepted);
    model_free(&m);
    return reached;
}

static void sweep(fault_operation operation, unsigned times, int error, size_t accepted) {
    unsigned at = 1;
    while (at < 1000 && check_errors < 20 && try_plan(operation, at, times, error, accepted)) at++;
    CHECK(at > 1 && at < 1000);
}

static void test_no_fault_in_a_change_loses_what_was_acknowledged(void) {
    static const int errors[] = {EIO, ENOSPC, EMFILE};
    static const fault_operation operations[] = {FAULT_OPEN,     FAULT_DUPLICATE, FAULT_WRITE, FAULT_TRUNCATE,
                                                 FAULT_ALLOCATE, FAULT_SYNC,      FAULT_MKDIR};
    for (size_t o = 0; o < sizeof(operations) / sizeof(operations[0]); o++)
        for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) sweep(operations[o], 1, errors[e], 0);
    sweep(FAULT_WRITE, 2, ENOSPC, 500);
    sweep(FAULT_WRITE, 4, EDQUOT, 0); /* refused for a while: a journal outlives its level */
    CHECK(saw_unsaved_change && saw_poison);
}

static off_t log_size(void) {
    char path[256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/00000000000000000000.log", directory);
    return stat(path, &st) == 0 ? st.st_size : -1;
}

/* A kill right after the change: the journal is in the file, and the space ahead is gone. */
static void test_a_change_leaves_the_files_of_its_level(void) {
    static model m;
    partition *p = open_fresh(&m);
    change(p, LEVEL_MEMORY);
    CHECK(append(p, &m, 3));
    CHECK(log_size() < (off_t)m.total_bytes);
    change(p, LEVEL_WRITTEN);
    CHECK_EQUAL(log_size(), m.total_bytes);
    CHECK(append(p, &m, 1));
    change(p, LEVEL_DURABLE);
    CHECK_EQUAL(partition_visible_end(p), m.count); /* they were acknowledged, and are read, at `written` */
    CHECK_EQUAL(partition_unseen(p), 0);
    CHECK(append(p, &m, 1));
    CHECK_EQUAL(log_size(), 1500);
    CHECK_EQUAL(inside_sync(p)->durable_end, m.count);
    change(p, LEVEL_MEMORY);
    CHECK_EQUAL(log_size(), m.total_bytes);
    partition_release(p);
    partition_options options = options_on(&disk_system, LEVEL_WRITTEN);
    p = reopen(&options);
    CHECK_EQUAL(check_readable(&m, p), m.count);
    partition_close(p);
    CHECK_EQUAL(partition_set_level(p, LEVEL_DURABLE), 3007);
    partition_release(p);
    model_free(&m);
}

/* Readers and the statistics see what is written but not yet on the device when the level stops asking for it. */
static void test_what_waited_for_the_device_is_seen_after_the_change(void) {
    static model m;
    static uint8_t buffer[1 << 14];
    static partition_stats stats;
    partition *p = open_fresh(&m);
    inside_set_stats(p, &stats);
    change(p, LEVEL_DURABLE);
    append_batch b = {.messages = buffer, .count = 3, .length = make_records(buffer, 3, 100, 300)};
    partition_append(p, &b, 1, 1000);
    CHECK_EQUAL(b.status, 0);
    model_append(&m, &b);
    CHECK_EQUAL(check_readable(&m, p), 0);
    CHECK_EQUAL(atomic_load(&stats.unseen), 3);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 0), 4100);
    change(p, LEVEL_WRITTEN);
    CHECK_EQUAL(atomic_load(&stats.unseen), 0);
    CHECK_EQUAL(check_readable(&m, p), 3);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 2), 0);
    change(p, LEVEL_DURABLE); /* and stays seen */
    CHECK_EQUAL(check_readable(&m, p), 3);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

int main(void) {
    test_root_make();
    RUN(test_no_fault_in_a_change_loses_what_was_acknowledged);
    RUN(test_a_change_leaves_the_files_of_its_level);
    RUN(test_what_waited_for_the_device_is_seen_after_the_change);
    test_root_remove();
    return check_report();
}
