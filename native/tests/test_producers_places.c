/* The file of producers stays within what its reader takes, however many producers come and are forgotten; a larger
 * file of an earlier version is read and made small again. */
#include "check.h"

#include "fault_disk.h"
#include "log/producers.h"
#include "log/producers_file.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEGUN 10u

static char directory[] = "/tmp/shardd-places-XXXXXX";
static char path[64];
static file_cache files;
static producer_memory memory;
static producers known;
static uint64_t end; /* of the log */

static int reopen_on(const disk *disk, uint64_t known_last) {
    producers_free(&known);
    known = (producers){
        .incarnation = 7, .fd = -1, .memory = &memory, .disk = disk, .files = &files, .directory = directory};
    memory.known_last = known_last;
    return producers_open(&known, end);
}

static int reopen(void) { return reopen_on(&disk_system, BEGUN - 1); }

static void leave(void) {
    producers_free(&known);
    known = (producers){.fd = -1};
}

static void begin(void) {
    leave();
    unlink(path);
    end = 0;
    memory = (producer_memory){.boot = {1}};
    CHECK_EQUAL(reopen(), 0);
}

static uint64_t file_bytes(void) {
    struct stat found;
    return stat(path, &found) == 0 ? (uint64_t)found.st_size : 0;
}

/* One batch with one message. */
static void send(uint64_t producer, uint64_t sequence) {
    producer_batch b = {.producer = producer, .sequence = sequence, .begun = BEGUN};
    produced made;
    CHECK_EQUAL(producers_judge(&known, &b, &made), 0);
    CHECK_EQUAL(made.kind, PRODUCED_STORED);
    if (made.kind != PRODUCED_STORED) return;
    CHECK_EQUAL(producers_write(&known, &b, end, 1), 0);
    producers_stored(&known, &b, end++, 1);
}

static produced_kind again(uint64_t producer, uint64_t sequence) {
    producer_batch b = {.producer = producer, .sequence = sequence, .begun = BEGUN};
    produced made;
    CHECK_EQUAL(producers_judge(&known, &b, &made), 0);
    return made.kind;
}

/* The metadata know the producers whose numbers are at least as large. */
static bool is_late(void *first, uint64_t producer) { return producer >= *(uint64_t *)first; }

static void forget_before(uint64_t first) { producers_sweep(&known, is_late, &first); }

static void test_places_of_forgotten_producers_are_used_again(void) {
    uint64_t next = 1;
    begin();
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < PRODUCERS_OF_PARTITION_MAX; i++) send(next++, 0);
        CHECK(file_bytes() <= PRODUCERS_FILE_BYTES_MAX);
        CHECK_EQUAL(reopen(), 0);
        CHECK_EQUAL(known.count, PRODUCERS_OF_PARTITION_MAX);
        CHECK_EQUAL(again(next - 1, 0), PRODUCED_DUPLICATE);
        forget_before(next);
        CHECK_EQUAL(known.count, 0);
    }
    send(next, 0);
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(again(next, 0), PRODUCED_DUPLICATE);
}

static void test_holes_that_a_restart_finds_are_used_again(void) {
    begin();
    for (uint64_t id = 1; id <= 20; id++) send(id, 0);
    uint64_t bytes = file_bytes();
    forget_before(11);
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(known.count, 10);
    for (uint64_t id = 21; id <= 30; id++) send(id, 0);
    CHECK_EQUAL(file_bytes(), bytes);
    send(31, 0);
    CHECK_EQUAL(file_bytes(), bytes + PRODUCER_ENTRY_BYTES);
    CHECK_EQUAL(reopen(), 0);
    for (uint64_t id = 11; id <= 31; id++) CHECK_EQUAL(again(id, 0), PRODUCED_DUPLICATE);
}

/* A file as earlier versions left it: so many free entries, then those of `live` producers. */
static void make_large(unsigned empty, unsigned live) {
    static uint8_t content[PRODUCERS_HEAD_BYTES + 8 * PRODUCER_ENTRY_BYTES];
    begin();
    for (unsigned i = 0; i < live; i++) send(1 + i, 0);
    leave();
    size_t length = PRODUCERS_HEAD_BYTES + (size_t)live * PRODUCER_ENTRY_BYTES;
    FILE *f = fopen(path, "r+");
    REQUIRE(f != NULL && length <= sizeof content);
    CHECK_EQUAL(fread(content, 1, length, f), length);
    long first = (long)(PRODUCERS_HEAD_BYTES + (size_t)empty * PRODUCER_ENTRY_BYTES);
    CHECK_EQUAL(ftruncate(fileno(f), PRODUCERS_HEAD_BYTES), 0);
    CHECK_EQUAL(fseek(f, first, SEEK_SET), 0);
    CHECK_EQUAL(fwrite(content + PRODUCERS_HEAD_BYTES, 1, length - PRODUCERS_HEAD_BYTES, f),
                length - PRODUCERS_HEAD_BYTES);
    CHECK_EQUAL(fclose(f), 0);
}

static void test_a_file_that_outgrew_its_bound_is_read_and_made_small(void) {
    make_large(PRODUCERS_OF_PARTITION_MAX, 3);
    CHECK(file_bytes() > PRODUCERS_FILE_BYTES_MAX);
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(known.count, 3);
    CHECK_EQUAL(file_bytes(), PRODUCERS_HEAD_BYTES + 3 * PRODUCER_ENTRY_BYTES);
    for (uint64_t id = 1; id <= 3; id++) CHECK_EQUAL(again(id, 0), PRODUCED_DUPLICATE);
    send(2, 1);
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(again(2, 1), PRODUCED_DUPLICATE);
}

static void test_a_full_disk_keeps_a_file_that_outgrew_its_bound(void) {
    fault_disk full;
    make_large(PRODUCERS_OF_PARTITION_MAX, 3);
    uint64_t bytes = file_bytes();
    fault_disk_init(&full);
    full.plan[FAULT_WRITE].at = 1;
    full.plan[FAULT_WRITE].times = 1;
    full.plan[FAULT_WRITE].error = ENOSPC;
    CHECK_EQUAL(reopen_on(&full.disk, BEGUN - 1), 0);
    CHECK_EQUAL(full.injected, 1);
    CHECK_EQUAL(file_bytes(), bytes);
    for (uint64_t id = 1; id <= 3; id++) CHECK_EQUAL(again(id, 0), PRODUCED_DUPLICATE);
    send(3, 1); /* its place lies behind the bound */
    send(4, 0); /* a new place does not */
    CHECK_EQUAL(file_bytes(), bytes);
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(file_bytes(), PRODUCERS_HEAD_BYTES + 4 * PRODUCER_ENTRY_BYTES);
    CHECK_EQUAL(again(3, 1), PRODUCED_DUPLICATE);
    CHECK_EQUAL(again(4, 0), PRODUCED_DUPLICATE);
}

static void test_a_file_that_no_version_wrote_is_forgotten_and_the_log_opens(void) {
    begin();
    send(1, 0);
    CHECK_EQUAL(truncate(path, (off_t)PRODUCERS_FILE_READ_MAX + 1), 0);
    CHECK_EQUAL(reopen_on(&disk_system, BEGUN), 0);
    CHECK_EQUAL(known.count, 0);
    CHECK_EQUAL(file_bytes(), PRODUCERS_HEAD_BYTES);
    CHECK_EQUAL(again(1, 1), PRODUCED_UNKNOWN);
}

static void test_a_worker_with_fewer_shards_beside_it_knows_all_producers(void) {
    producer_batch newcomer = {.producer = 8, .begun = BEGUN};
    produced made;
    begin();
    for (uint64_t id = 1; id <= 5; id++) send(id, 0);
    leave();
    memory.used = PRODUCERS_OF_WORKER_MAX - 2; /* those of the partitions that were opened before */
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(known.count, 5);
    for (uint64_t id = 1; id <= 5; id++) CHECK_EQUAL(again(id, 0), PRODUCED_DUPLICATE);
    send(5, 1);
    CHECK_EQUAL(producers_judge(&known, &newcomer, &made), STATUS_FEATURE_UNAVAILABLE);
    memory.used = known.count;
}

int main(void) {
    if (mkdtemp(directory) == NULL) return 1;
    snprintf(path, sizeof path, "%s/producers", directory);
    files.budget = (descriptor_budget){.segment_pairs = 4, .offset_files = 4};
    known.fd = -1;
    RUN(test_places_of_forgotten_producers_are_used_again);
    RUN(test_holes_that_a_restart_finds_are_used_again);
    RUN(test_a_file_that_outgrew_its_bound_is_read_and_made_small);
    RUN(test_a_full_disk_keeps_a_file_that_outgrew_its_bound);
    RUN(test_a_file_that_no_version_wrote_is_forgotten_and_the_log_opens);
    RUN(test_a_worker_with_fewer_shards_beside_it_knows_all_producers);
    producers_free(&known);
    unlink(path);
    rmdir(directory);
    return check_report();
}
