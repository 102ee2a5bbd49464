/* Power loss at level `durable` and idempotent producers: on a disk that forgets, keeps and tears what was not synced,
 * no batch is stored twice, none that was acknowledged is lost, and one that was acknowledged last is known when the
 * log ends with its sync. Classic messages come in between. */
#include "test_numbered_batches.h"

#include "forgetting_disk.h"

#define SEEDS 400u
#define BATCHES 64u /* more than there are slots */

static uint64_t batches_first[BATCHES * 2]; /* where each was stored */
static unsigned cuts, cut_messages;
static unsigned told_duplicate, told_stored, told_unknown;
static bool after_a_cut, forget_the_barrier, cut_too_much; /* the last two: canaries */

/* `sequence`: of the producer; a classic batch has UINT64_MAX for its number. */
static produced send(partition *p, uint64_t sequence, bool idempotent) {
    append_batch b = numbered_batch(idempotent ? sequence : UINT64_MAX, 100);
    if (!idempotent) partition_append(p, &b, 1, 1000);
    else if (send_once(p, &b, sequence) == 0 && b.made.kind != PRODUCED_STORED) return b.made;
    /* the log of a segment behind a gap is in the way, which a server moves */
    CHECK(b.status == 0 || (after_a_cut && b.made.kind == PRODUCED_STORED));
    if (b.status != 0) return (produced){0};
    return (produced){PRODUCED_STORED, 1, b.first_offset, 0};
}

static void count_stored(partition *p, unsigned *times) {
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, UINT32_MAX, OFFSET_CONSUMER, 1, &cursor), 0);
    partition_cursor_end(&cursor);
    count_in_log(p, times, BATCHES * 2);
}

/* The start of the last log. */
static void last_log(uint64_t *last) {
    DIR *d = opendir(directory);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        uint64_t start = strtoull(e->d_name, NULL, 10);
        if (strlen(e->d_name) == 24 && strcmp(e->d_name + 20, ".log") == 0 && start > *last) *last = start;
    }
    if (d != NULL) closedir(d);
}

static size_t read_bytes(const char *name, uint8_t *out, size_t size) {
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "r");
    size_t length = f != NULL ? fread(out, 1, size, f) : 0;
    if (f != NULL) fclose(f);
    return length;
}

/* As shardd/log/unproven_tail.py: the active segment up to what it and the file of producers prove. `before`: its log
 * as the power left it. */
static void cut_to_proven(segment_info *active, const uint8_t *before, size_t length) {
    static uint8_t content[DISK_BYTES_MAX];
    char log[40], path[FILE_PATH_MAX];
    bool torn = false;
    for (size_t i = active->log_bytes; i < length; i++) torn |= before[i] != 0;
    size_t size = read_bytes("producers", content, sizeof content);
    uint64_t end = active->start_offset + active->count;
    uint64_t proven = producers_proven_end(content, size, 2, memory.boot, end, torn);
    CHECK(proven <= end);
    proven -= cut_too_much && proven < end && proven > active->start_offset;
    if (proven == end || proven < active->start_offset) return;
    cuts++;
    cut_messages += end - proven;
    uint64_t at = 0;
    active->count = proven - active->start_offset;
    for (uint64_t i = 0; i < active->count; i++) {
        active->last_timestamp = load_u64(before + at + 32);
        at += RECORD_HEADER_SIZE + load_u32(before + at + 48) + load_u32(before + at + 52);
    }
    if (active->count == 0) active->last_timestamp = active->first_timestamp = 0;
    active->log_bytes = at;
    snprintf(log, sizeof log, "%020" PRIu64 ".log", active->start_offset);
    snprintf(path, sizeof path, "%s/%s", directory, log);
    CHECK_EQUAL(truncate(path, (off_t)at), 0);
    snprintf(path, sizeof path, "%s/%020" PRIu64 ".index", directory, active->start_offset);
    CHECK_EQUAL(truncate(path, (off_t)(active->count * INDEX_ENTRY_SIZE)), 0);
}

static partition *reopen_to_gap(const partition_options *options) {
    static recovered found;
    static uint8_t before[DISK_BYTES_MAX];
    size_t count = 0, length = 0;
    uint64_t next = 0, last = 0;
    last_log(&last);
    char log[40];
    snprintf(log, sizeof log, "%020" PRIu64 ".log", last);
    length = read_bytes(log, before, sizeof before);
    recover(options->directory, &found);
    while (count < found.count && found.segments[count].start_offset == next) next += found.segments[count++].count;
    if (count > 0 && count == found.count) cut_to_proven(&found.segments[count - 1], before, length);
    return partition_open(options, found.segments, count);
}

static void try_luck(uint64_t seed) {
    unsigned times[BATCHES * 2];
    disk device = disk_system;
    device.fdatasync = device_sync;
    snprintf(root, sizeof(root), "%s/l%" PRIu64, test_root, seed);
    snprintf(directory, sizeof(directory), "%s/streams/1/topics/2/partitions/3", root);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    id_source_seed_fixed(&ids, 3);
    test_random_state = seed;
    memory = (producer_memory){.boot = {1}, .known_last = 5};
    partition_options options = options_on(&device, LEVEL_DURABLE, 6000);
    if (test_random(2) == 0) options.segment_size_bytes = 30000; /* without a roll */
    partition *p = partition_open(&options, NULL, 0);
    uint64_t sent = 0, acknowledged = 0;
    uint64_t odds = test_random(4) == 0 ? 30 : 3; /* of a sync */
    for (uint64_t i = test_random(BATCHES); i > 0; i--) {
        bool idempotent = test_random(3) > 0;
        batches_first[sent] = send(p, sent, idempotent).first;
        sent += idempotent;
        if (test_random(odds) != 0) continue;
        partition_sync_now(p);
        acknowledged = sent;
    }
    for (uint64_t i = test_random(3); i > 0; i--, sent++) send(p, sent, true);
    int fds[64];
    size_t count = test_random(2) == 0 ? partition_sync_begin(p, SYNC_EVERYTHING, fds, 64) : 0;
    for (size_t i = 0; i < count; i++) {
        if (test_random(2) == 0) CHECK_EQUAL(device_sync(NULL, fds[i]), 0);
        close(fds[i]);
    }
    partition_release(p);
    lucky = test_random(3) > 0;
    cut_power();
    lucky = false;
    memory = (producer_memory){.boot = {2}, .known_last = 5, .barrier = 5};
    if (forget_the_barrier) {
        memory.known_last = memory.barrier = 0;
        memory.boot[0] = 1;
        char path[FILE_PATH_MAX];
        snprintf(path, sizeof path, "%s/producers", directory);
        unlink(path);
    }
    p = reopen_to_gap(&options);
    after_a_cut = true;
    count_stored(p, times);
    for (uint64_t i = 0; i < acknowledged; i++) CHECK_EQUAL(times[i], 1);
    for (uint64_t i = 0; i < sent; i++) { /* the producer sends again */
        produced made = send(p, i, true);
        told_unknown += made.kind == PRODUCED_UNKNOWN;
        if (made.kind == PRODUCED_UNKNOWN || made.kind == PRODUCED_NONE) break;
        CHECK(made.kind == (times[i] == 0 ? PRODUCED_STORED : PRODUCED_DUPLICATE));
        told_duplicate += made.kind == PRODUCED_DUPLICATE;
        told_stored += made.kind == PRODUCED_STORED;
        if (made.kind == PRODUCED_DUPLICATE && made.count > 0 && i < acknowledged)
            CHECK_EQUAL(made.first, batches_first[i]);
    }
    partition_sync_now(p);
    count_stored(p, times);
    for (uint64_t i = 0; i < sent; i++) CHECK(times[i] <= 1);
    if (check_errors != 0 && !forget_the_barrier && !cut_too_much) printf("seed %" PRIu64 "\n", seed);
    after_a_cut = false;
    partition_close(p);
    partition_release(p);
}

static void test_nothing_is_stored_twice_and_nothing_acknowledged_is_lost(void) {
    const char *seeds = getenv("POWER_SEEDS");
    uint64_t count = seeds != NULL ? strtoull(seeds, NULL, 10) : SEEDS;
    for (uint64_t seed = 1; seed <= count && check_errors == 0; seed++) try_luck(seed);
    printf("%u duplicates, %u stored, %u unknown; %u logs cut to what is proven, by %u messages\n", told_duplicate,
           told_stored, told_unknown, cuts, cut_messages);
    CHECK(cuts > 0);
    CHECK(told_duplicate > 0 && told_stored > 0 && told_unknown > 0);
}

/* How many checks fail with the planted fault. */
static unsigned found_with(bool *planted, uint64_t seeds) {
    check_hidden hidden = check_hide();
    *planted = true;
    for (uint64_t seed = 100001; seed <= 100000 + seeds; seed++) try_luck(seed);
    *planted = false;
    return check_show(hidden);
}

static void test_a_server_that_forgets_is_found(void) { CHECK(found_with(&forget_the_barrier, 20) > 0); }

static void test_a_recovery_that_cuts_too_much_is_found(void) { CHECK(found_with(&cut_too_much, 60) > 0); }

/* Where a log that is all there is cut, if the power goes now. */
static uint64_t end_after_power(const partition *p, bool torn) {
    static uint8_t content[DISK_BYTES_MAX];
    static const uint8_t next_boot[PRODUCERS_BOOT_BYTES] = {2};
    size_t size = read_bytes("producers", content, sizeof content);
    CHECK_EQUAL(producers_proven_end(content, size, 2, memory.boot, partition_next_offset(p) - 1, torn),
                partition_next_offset(p) - 1); /* of this boot: a kill loses nothing */
    return producers_proven_end(content, size, 2, next_boot, partition_next_offset(p), torn);
}

static void test_what_was_acknowledged_without_a_sync_is_not_cut(void) {
    disk device = disk_system;
    snprintf(root, sizeof root, "%s/levels", test_root);
    snprintf(directory, sizeof directory, "%s/streams/1/topics/2/partitions/3", root);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    memory = (producer_memory){.boot = {1}, .known_last = 5};
    partition_options options = options_on(&device, LEVEL_DURABLE, 6000);
    options.segment_size_bytes = 60000;
    partition *p = partition_open(&options, NULL, 0);
    uint64_t sent = 0;
    for (; sent < 5; sent++) send(p, sent, true);
    partition_sync_now(p);
    partition_sync_now(p);
    CHECK_EQUAL(end_after_power(p, false), 5);
    for (; sent < 8; sent++) send(p, sent, true);
    CHECK_EQUAL(end_after_power(p, false), 5); /* at durable nobody was told of them */
    CHECK_EQUAL(end_after_power(p, true), 5);
    CHECK_EQUAL(partition_set_level(p, LEVEL_WRITTEN), 0);
    CHECK_EQUAL(end_after_power(p, false), 8); /* what comes now is acknowledged at once */
    CHECK_EQUAL(partition_set_level(p, LEVEL_DURABLE), 0);
    CHECK_EQUAL(end_after_power(p, false), 8); /* until a sync has brought that, too */
    partition_sync_now(p);
    for (; sent < 10; sent++) send(p, sent, true);
    CHECK_EQUAL(end_after_power(p, false), 8);
    partition_close(p);
    partition_release(p);
    options.level = LEVEL_WRITTEN; /* killed, and started at another level */
    p = reopen(&options);
    CHECK_EQUAL(partition_next_offset(p), 10);
    CHECK_EQUAL(end_after_power(p, false), 10);
    CHECK_EQUAL(send(p, sent - 1, true).kind, PRODUCED_DUPLICATE);
    partition_close(p);
    partition_release(p);
}

int main(void) {
    test_root_make();
    RUN(test_nothing_is_stored_twice_and_nothing_acknowledged_is_lost);
    RUN(test_a_server_that_forgets_is_found);
    RUN(test_a_recovery_that_cuts_too_much_is_found);
    RUN(test_what_was_acknowledged_without_a_sync_is_not_cut);
    test_root_remove();
    for (size_t i = 0; i < contents_count; i++) free(contents[i].bytes);
    return check_report();
}
