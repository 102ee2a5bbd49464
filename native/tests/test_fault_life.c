/* Every errno at every call of the disk seam in the whole life of a partition, at every level: open, append, roll,
 * sync, poll, offsets, DELETE_SEGMENTS, retention, orderly end, reopening, purge, kill. The clean life is counted
 * first, then it is lived again for each call with that call failing once, in short, or for ever after. What must hold:
 * only statuses of the taxonomy; nothing is acknowledged behind a failed sync until the next start; after a restart all
 * that was acknowledged is there, unchanged, up to the end of what is read.
 *
 * FAULT_FULL=1: all of that; otherwise every second call, the errnos that are handled differently, and one for ever. */
#include "test_fault_life_support.h"

static void delete_segments(partition *p, known *k) {
    uint32_t deleted;
    bool busy;
    uint64_t lowest = MODEL_NONE;
    for (int i = 0; i < CONSUMERS; i++) {
        uint64_t now;
        if (partition_offset_get(p, OFFSET_CONSUMER, (uint32_t)i, &now) && now < lowest) lowest = now;
    }
    uint32_t status = partition_delete_segments(p, 2, trash, &deleted, &busy);
    require(is_typed(status), "DELETE_SEGMENTS: a status that does not exist");
    require(faulty.injected > 0 || (status == 0 && deleted > 0), "the clean life deletes no segments");
    k->passed = lowest == MODEL_NONE ? k->written : lowest + 1;
    require(partition_first_offset(p) <= k->passed, "a segment is gone that a consumer still needs");
}

static void end_life(partition *p, known *k, end_kind how) {
    bool saved = partition_unsaved_bytes(p) == 0 && partition_state(p) == 0;
    require(faulty.injected > 0 || k->acknowledged == k->written, "the clean life is not acknowledged");
    if (how == END_ORDERLY) {
        saved = partition_flush(p) == 0 && partition_state(p) == 0;
        if (level == LEVEL_DURABLE) partition_sync_now(p);
        partition_close(p);
    }
    k->lost_journal |= level == LEVEL_MEMORY && !saved;
    partition_release(p);
}

static void first_half(partition *p, known *k) {
    for (uint32_t i = 0; i < 14; i++) {
        append(p, k);
        if (i == 1 || i == 2 || i == 5) store(p, k, i % 2, i);
        if (i == 6) {
            require(is_typed(partition_flush(p)), "flush: a status that does not exist");
            background_sync(p);
            read_all(p, k);
        }
    }
    poll_middle(p, k);
    store(p, k, 2, 1);
    delete_offset(p, k, 2);
    store(p, k, 0, k->written / 2);
    store(p, k, 1, k->written / 2);
    delete_segments(p, k);
    append(p, k);
    uint32_t removed = clean(p, k);
    require(faulty.injected > 0 || removed > 0, "the clean life cleans nothing away");
    append(p, k);
}

/* Returns false when it ended because the partition could not be opened. */
static bool live(known *k) {
    partition_options options = options_with(&faulty.disk, 2);
    partition *p = partition_open(&options, NULL, 0);
    if (p == NULL) return false;
    first_half(p, k);
    end_life(p, k, END_ORDERLY);
    if (k->lost_journal) /* the offsets begin anew where the journal was */
        return false;
    p = open_again(&faulty.disk, 2);
    if (p == NULL) return false;
    if (partition_next_offset(p) != k->written) { /* written, not acknowledged, and gone: nothing to compare with */
        require(partition_next_offset(p) >= k->acknowledged, "acknowledged messages are gone");
        partition_release(p);
        return false;
    }
    if (level != LEVEL_MEMORY && partition_state(p) == 0)
        k->acknowledged = k->written; /* it was found at the start: polls serve it */
    for (int i = 0; i < 4; i++) append(p, k);
    store(p, k, 1, k->written - 1);
    background_sync(p);
    clean(p, k);
    end_life(p, k, last_end);
    return true;
}

static void purged_life(known *k) {
    char old[176];
    static unsigned number;
    check_restarted(k, 2);
    forget(k);
    snprintf(old, sizeof(old), "%s-%u", trash, number++); /* the purge: Python moves the directory away */
    rename(directory, old);
    partition_options options = options_with(&faulty.disk, 3);
    partition *p = partition_open(&options, NULL, 0);
    if (p == NULL) return;
    append(p, k);
    append(p, k);
    store(p, k, 0, 0);
    end_life(p, k, last_end);
}

/* One life with the fault that `faulty.site` names. Returns the calls of the disk that it made. */
static unsigned one_life(unsigned at, int error, bool for_ever, size_t accepted, bool lie) {
    static known k;
    static unsigned number;
    test_random_state = 42;
    snprintf(directory, sizeof(directory), "%s/t%u/p", test_root, number);
    snprintf(trash, sizeof(trash), "%s/trash%u", test_root, number++);
    snprintf(about, sizeof(about), "level %d, end %d, call %u, errno %d, %s, accepted %zu", level, last_end, at, error,
             for_ever ? "for ever" : "once", accepted);
    id_source_seed_fixed(&ids, 3);
    fault_disk_init(&faulty);
    faulty.site.at = at;
    faulty.site.error = error;
    faulty.site.for_ever = for_ever;
    faulty.site.accepted = accepted;
    faulty.site.lie = lie;
    forget(&k);
    unsigned before = check_errors, found = findings;
    bool whole = live(&k);
    if (whole) purged_life(&k);
    unsigned calls = faulty.all_calls;
    fault_disk_heal(&faulty);
    check_restarted(&k, whole ? 3 : 2);
    forget(&k);
    findings += check_errors - before; /* of the fixture */
    if (findings == found && !quiet)
        nftw(directory, test_remove, 16, FTW_DEPTH | FTW_PHYS); /* what a finding needs stays until the end */
    check_errors = before;
    pairs += at > 0;
    return calls;
}

static void fail_each_call(bool full) {
    static const int once[] = {EIO, ENOSPC, EINTR, EDQUOT, EMFILE, ENFILE, ENOMEM};
    static const int for_ever[] = {ENOSPC, EIO, EDQUOT, EMFILE, ENFILE, ENOMEM};
    static const size_t shorts[] = {4, 170};
    static const char *const names[FAULT_OPERATIONS] = {"open",     "close", "dup",    "write",  "read", "truncate",
                                                        "allocate", "sync",  "rename", "unlink", "mkdir"};
    unsigned calls = one_life(0, 0, false, 0, false), before = pairs;
    require(calls > 50, "the life makes hardly any call");
    for (int i = 0; i < FAULT_OPERATIONS; i++)
        printf("%s%s %u", i > 0 ? ", " : "calls of the disk: ", names[i], faulty.calls[i]);
    printf("\n");
    for (unsigned at = 1; at <= calls && findings < SHOWN_MAX; at++) {
        if (!full && (at + level) % 2 == 0) /* each call at one level at least */
            continue;
        if (!full) last_end = at % 4 < 2 ? END_KILL : END_ORDERLY;
        for (size_t i = 0; i < (full ? sizeof(once) / sizeof(once[0]) : 3); i++) one_life(at, once[i], false, 0, false);
        for (size_t i = 0; i < (full ? sizeof(for_ever) / sizeof(for_ever[0]) : 1); i++)
            one_life(at, for_ever[i], true, 0, false);
        if (faulty.site.operation != FAULT_WRITE && faulty.site.operation != FAULT_READ) continue;
        for (size_t i = 0; i < (full ? 2 : 1); i++) {
            one_life(at, ENOSPC, false, shorts[i], false);
            one_life(at, ENOSPC, true, shorts[i], false);
        }
    }
    printf("level %d: %u calls, %u pairs of call and errno\n", level, calls, pairs - before);
}

static void test_every_errno_at_every_call_of_a_life(void) {
    const char *wish = getenv("FAULT_FULL");
    bool full = wish != NULL && wish[0] == '1';
    for (level = LEVEL_WRITTEN; level <= LEVEL_DURABLE; level++)
        for (last_end = END_KILL; last_end <= (full ? END_ORDERLY : END_KILL); last_end++) {
            end_kind now = last_end;
            fail_each_call(full);
            last_end = now;
        }
    CHECK_EQUAL(findings, 0);
    printf("fault: %u pairs of call site and errno, %u findings\n", pairs, findings);
}

/* A disk that says that a write was done and did not do it: the server acknowledges falsely, and that is noticed. */
static void test_a_false_acknowledgement_is_found(void) {
    unsigned caught = 0, before = findings;
    quiet = 1;
    level = LEVEL_WRITTEN;
    last_end = END_KILL;
    unsigned calls = one_life(0, 0, false, 0, false);
    for (unsigned at = 1; at <= calls; at++) {
        unsigned found = findings;
        one_life(at, 0, false, 0, true);
        caught += findings > found;
    }
    quiet = 0;
    findings = before;
    CHECK(caught >= 5);
    printf("canary: %u of the %u calls were lies that were found\n", caught, calls);
}

/* Its directory cannot be made: whoever waits for a sync (FLUSH_UNSAVED_BUFFER) hears at once. */
static void test_a_partition_without_a_directory_has_nothing_to_sync(void) {
    static const int errors[] = {ENOSPC, EIO};
    for (unsigned i = 0; i < 2; i++) {
        known k = {0};
        level = LEVEL_WRITTEN;
        snprintf(directory, sizeof(directory), "%s/without%u/topics/p", test_root, i);
        fault_disk_init(&faulty);
        partition_options options = options_with(&faulty.disk, 2);
        partition *p = partition_open(&options, NULL, 0);
        fault_disk_plan(&faulty, FAULT_MKDIR, 5, 1, errors[i], 0); /* it itself, below two new ones */
        append(p, &k);
        CHECK_EQUAL(faulty.injected, 1);
        CHECK_EQUAL(k.written, 0);
        int fds[64];
        size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
        CHECK(count > 0); /* the new names above it */
        while (count > 0) close(fds[--count]);
        CHECK(partition_sync_done(p, 0));
        CHECK(!partition_is_dirty(p));
        append(p, &k);
        CHECK_EQUAL(k.written > 0, errors[i] == ENOSPC);
        CHECK_EQUAL(partition_is_dirty(p), errors[i] == ENOSPC);
        partition_close(p);
        partition_release(p);
        forget(&k);
    }
}

/* The sync needs a file that cannot be opened: a broken device is final, a want of descriptors is not. */
static void test_a_sync_that_cannot_open_its_files(void) {
    static const int errors[] = {EIO, EMFILE};
    for (unsigned i = 0; i < 2; i++) {
        known k = {0};
        int fds[64];
        level = LEVEL_WRITTEN;
        snprintf(directory, sizeof(directory), "%s/unopened%u/p", test_root, i);
        fault_disk_init(&faulty);
        partition_options options = options_with(&faulty.disk, 2);
        partition *p = partition_open(&options, NULL, 0);
        append(p, &k);
        CHECK(k.written > 0);
        fault_disk_plan(&faulty, FAULT_OPEN, 1, UINT32_MAX / 2, errors[i], 0);
        CHECK_EQUAL(partition_sync_begin(p, SYNC_ACKNOWLEDGEMENTS, fds, 64), 0);
        CHECK(!partition_sync_done(p, 0));
        CHECK_EQUAL(partition_sync_failed(p), errors[i] == EIO);
        CHECK_EQUAL(partition_state(p), errors[i] == EIO ? 10009 : 0);
        fault_disk_heal(&faulty);
        partition_sync_now(p);
        CHECK_EQUAL(inside_sync(p)->durable_end, errors[i] == EIO ? 0 : k.written);
        read_all(p, &k);
        partition_close(p);
        partition_release(p);
        forget(&k);
    }
}

int main(void) {
    test_root_make();
    RUN(test_a_sync_that_cannot_open_its_files);
    RUN(test_a_partition_without_a_directory_has_nothing_to_sync);
    RUN(test_every_errno_at_every_call_of_a_life);
    RUN(test_a_false_acknowledgement_is_found);
    test_root_remove();
    return check_report();
}
