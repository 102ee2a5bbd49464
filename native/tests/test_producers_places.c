/* The file of producers stays within what its reader takes, however many producers come and are forgotten; a larger
 * file of an earlier version is read and made small again. */
#include "check.h"

#include "fault_disk.h"
#include "log/producers.h"
#include "log/producers_file.h"
#include "log/producers_proof.h"
#include "log/producers_table.h"

#include "base/bytes.h"
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

#define EARLIER_SLOT_BYTES 32u
#define EARLIER_ENTRY_BYTES (64u + EARLIER_SLOT_BYTES * PRODUCER_SLOTS)

static void put_check(uint8_t *bytes, uint64_t producer, size_t checked) {
    uint64_t check = producers_check(known.incarnation, producer, bytes, checked);
    memcpy(bytes + checked, &check, sizeof check);
}

/* An entry as version 2 has it. */
static void put_earlier(const uint8_t *entry, uint8_t *out) {
    memset(out, 0, EARLIER_ENTRY_BYTES);
    memcpy(out, entry, ENTRY_HEAD_BYTES);
    for (unsigned i = 0; i < PRODUCER_SLOTS; i++) {
        const uint8_t *slot = entry + ENTRY_HEAD_BYTES + (size_t)i * SLOT_BYTES;
        uint8_t *at = out + ENTRY_HEAD_BYTES + (size_t)i * EARLIER_SLOT_BYTES;
        if (producers_is_zero(slot, SLOT_BYTES)) continue;
        CHECK_EQUAL(load_u64(slot), load_u64(slot + 24)); /* its running number is its sequence number */
        memcpy(at, slot, 24);
        put_check(at, load_u64(entry), 24);
    }
}

/* A file as version 2 left it: so many free entries, then those of `live` producers with `batches` each. */
static void make_earlier(unsigned empty, unsigned live, unsigned batches) {
    static uint8_t content[PRODUCERS_HEAD_BYTES + 8 * PRODUCER_ENTRY_BYTES];
    uint8_t entry[EARLIER_ENTRY_BYTES];
    uint32_t version = VERSION_WITHOUT_DIGESTS, entry_bytes = sizeof entry;
    begin();
    for (unsigned i = 0; i < live; i++)
        for (unsigned k = 0; k < batches; k++) send(1 + i, k);
    leave();
    known.incarnation = 7;
    size_t length = PRODUCERS_HEAD_BYTES + (size_t)live * PRODUCER_ENTRY_BYTES;
    FILE *f = fopen(path, "r+");
    REQUIRE(f != NULL && length <= sizeof content);
    CHECK_EQUAL(fread(content, 1, length, f), length);
    memcpy(content + 8, &version, sizeof version);
    memcpy(content + 12, &entry_bytes, sizeof entry_bytes);
    put_check(content, 0, 56);
    CHECK_EQUAL(ftruncate(fileno(f), 0), 0);
    rewind(f);
    CHECK_EQUAL(fwrite(content, 1, PRODUCERS_HEAD_BYTES, f), PRODUCERS_HEAD_BYTES);
    CHECK_EQUAL(fseek(f, (long)((size_t)empty * sizeof entry), SEEK_CUR), 0);
    for (unsigned i = 0; i < live; i++) {
        put_earlier(content + PRODUCERS_HEAD_BYTES + (size_t)i * PRODUCER_ENTRY_BYTES, entry);
        CHECK_EQUAL(fwrite(entry, 1, sizeof entry, f), sizeof entry);
    }
    CHECK_EQUAL(fclose(f), 0);
}

static void test_a_file_of_the_version_before_is_made_anew_and_forgets_nothing(void) {
    make_earlier(0, 3, 45);
    CHECK_EQUAL(file_bytes(), PRODUCERS_HEAD_BYTES + 3 * EARLIER_ENTRY_BYTES);
    for (unsigned round = 0; round < 2; round++) {
        CHECK_EQUAL(reopen(), 0);
        CHECK_EQUAL(file_bytes(), PRODUCERS_HEAD_BYTES + 3 * PRODUCER_ENTRY_BYTES);
        for (uint64_t id = 1; id <= 3; id++) {
            CHECK_EQUAL(producers_find(&known, id)->next, 45 + round);
            for (uint64_t k = 45 - PRODUCER_WINDOW; k < 45; k++) {
                producer_batch b = {.producer = id, .sequence = k, .begun = BEGUN, .digest = 9};
                produced made;
                CHECK_EQUAL(producers_judge(&known, &b, &made), 0);
                CHECK_EQUAL(made.kind, PRODUCED_DUPLICATE);
                CHECK_EQUAL(made.first, (id - 1) * 45 + k);
            }
            if (round == 0) send(id, 45);
        }
    }
}

static produced_kind with_digest(uint64_t sequence, uint64_t digest) {
    producer_batch b = {.producer = 1, .sequence = sequence, .begun = BEGUN, .digest = digest};
    produced made;
    CHECK_EQUAL(producers_judge(&known, &b, &made), 0);
    if (made.kind == PRODUCED_DIFFERENT) CHECK_EQUAL(made.first, sequence);
    if (made.kind != PRODUCED_STORED) return made.kind;
    CHECK_EQUAL(producers_write(&known, &b, end, 1), 0);
    producers_stored(&known, &b, end++, 1);
    return made.kind;
}

static void test_other_content_under_a_number_is_told_over_a_restart(void) {
    begin();
    for (uint64_t i = 0; i < 2 * PRODUCER_SLOTS; i++)
        CHECK_EQUAL(with_digest(i, i % 2 == 0 ? 100 + i : 0), PRODUCED_STORED);
    for (unsigned round = 0; round < 2; round++) {
        for (uint64_t i = PRODUCER_SLOTS; i < 2 * PRODUCER_SLOTS; i++) {
            CHECK_EQUAL(with_digest(i, 0), PRODUCED_DUPLICATE);
            CHECK_EQUAL(with_digest(i, 100 + i), PRODUCED_DUPLICATE);
            CHECK_EQUAL(with_digest(i, 3), i % 2 == 0 ? PRODUCED_DIFFERENT : PRODUCED_DUPLICATE);
        }
        CHECK_EQUAL(with_digest(0, 3), PRODUCED_DUPLICATE); /* its slot is gone */
        CHECK_EQUAL(reopen(), 0);
    }
}

static void test_a_file_that_outgrew_its_bound_is_read_and_made_small(void) {
    make_earlier(2 * PRODUCERS_OF_PARTITION_MAX, 3, 1);
    CHECK(file_bytes() > PRODUCERS_FILE_BYTES_MAX);
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(known.count, 3);
    CHECK_EQUAL(file_bytes(), PRODUCERS_HEAD_BYTES + 3 * PRODUCER_ENTRY_BYTES);
    for (uint64_t id = 1; id <= 3; id++) CHECK_EQUAL(again(id, 0), PRODUCED_DUPLICATE);
    send(2, 1);
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(again(2, 1), PRODUCED_DUPLICATE);
}

static void test_a_full_disk_keeps_a_file_of_the_version_before(void) {
    fault_disk full;
    make_earlier(2 * PRODUCERS_OF_PARTITION_MAX, 3, 1);
    uint64_t bytes = file_bytes();
    fault_disk_init(&full);
    full.plan[FAULT_WRITE].at = 1;
    full.plan[FAULT_WRITE].times = 1;
    full.plan[FAULT_WRITE].error = ENOSPC;
    CHECK_EQUAL(reopen_on(&full.disk, BEGUN - 1), -1); /* the partition asks again (partition/offsets.c) */
    CHECK_EQUAL(full.injected, 1);
    CHECK_EQUAL(file_bytes(), bytes);
    CHECK_EQUAL(reopen(), 0);
    CHECK_EQUAL(file_bytes(), PRODUCERS_HEAD_BYTES + 3 * PRODUCER_ENTRY_BYTES);
    for (uint64_t id = 1; id <= 3; id++) CHECK_EQUAL(again(id, 0), PRODUCED_DUPLICATE);
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
    RUN(test_a_full_disk_keeps_a_file_of_the_version_before);
    RUN(test_a_file_of_the_version_before_is_made_anew_and_forgets_nothing);
    RUN(test_other_content_under_a_number_is_told_over_a_restart);
    RUN(test_a_file_that_no_version_wrote_is_forgotten_and_the_log_opens);
    RUN(test_a_worker_with_fewer_shards_beside_it_knows_all_producers);
    producers_free(&known);
    unlink(path);
    rmdir(directory);
    return check_report();
}
