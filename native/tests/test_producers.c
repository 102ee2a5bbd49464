/* What a partition knows of producers says what a list of all batches says: whatever is sent again, in whatever order,
 * over failed writes, kills between slot and records, and boots of the machine. */
#include "check.h"
#include "log/producers.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 25000u
#define PRODUCERS 5u
#define BATCHES_MAX 40000u

typedef struct batch {
    uint64_t first;
    uint32_t count;
} batch;

typedef struct model { /* of one producer */
    batch *stored;     /* by number, in its epoch */
    uint64_t next, begun;
    uint32_t epoch;
    bool stranger; /* the partition has forgotten it */
} model;

static char directory[] = "/tmp/shardd-producers-XXXXXX";
static file_cache files;
static producer_memory memory;
static producers known;
static model models[PRODUCERS];
static uint64_t end, record; /* of the log, of the metadata */
static uint64_t random_state = 42;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int reopen(void) {
    producers_free(&known);
    known = (producers){
        .incarnation = 7, .fd = -1, .memory = &memory, .disk = &disk_system, .files = &files, .directory = directory};
    memory.known_last = record;
    return producers_open(&known, end);
}

static producer_batch batch_of(uint64_t i, uint64_t sequence) {
    return (producer_batch){
        .producer = i + 1, .sequence = sequence, .begun = models[i].begun, .epoch = models[i].epoch};
}

static void begin_epoch(uint64_t i, bool first) {
    models[i].epoch += !first;
    models[i].next = 0;
    models[i].begun = ++record;
    models[i].stranger = false;
}

/* A batch that has to be stored: written, or lost on one of its ways. */
static void store(uint64_t i) {
    model *m = &models[i];
    producer_batch b = batch_of(i, m->next);
    uint32_t count = (uint32_t)(next_random() % 20);
    CHECK_EQUAL(producers_write(&known, &b, end, count), 0);
    switch (next_random() % 12) {
    case 0: /* the records could not be written */ CHECK(producers_failed(&known, &b)); return;
    case 1: /* killed before the records */
        if (count == 0) break;
        CHECK_EQUAL(reopen(), 0);
        return;
    default: break;
    }
    m->stored[m->next++] = (batch){end, count};
    end += count;
    if (next_random() % 50 == 0) CHECK_EQUAL(reopen(), 0); /* killed before the answer */
    else producers_stored(&known, &b, m->stored[m->next - 1].first, count);
}

static void send(uint64_t i) {
    model *m = &models[i];
    int64_t wanted = (int64_t)m->next + (int64_t)(next_random() % 50) - 45;
    uint64_t sequence = next_random() % 2 == 0 || wanted < 0 ? m->next : (uint64_t)wanted;
    producer_batch b = batch_of(i, sequence);
    produced made;
    CHECK_EQUAL(producers_judge(&known, &b, &made), 0);
    if (m->stranger) {
        CHECK_EQUAL(made.kind, PRODUCED_UNKNOWN);
    } else if (sequence == m->next) {
        CHECK_EQUAL(made.kind, PRODUCED_STORED);
        if (made.kind == PRODUCED_STORED && m->next < BATCHES_MAX) store(i);
    } else if (sequence > m->next) {
        CHECK(made.kind == PRODUCED_GAP || (made.kind == PRODUCED_UNKNOWN && m->next == 0));
        if (made.kind == PRODUCED_GAP) CHECK_EQUAL(made.first, m->next);
    } else {
        CHECK_EQUAL(made.kind, PRODUCED_DUPLICATE);
        bool told = m->next - sequence <= PRODUCER_WINDOW;
        if (told) CHECK_EQUAL(made.count, m->stored[sequence].count);
        if (told) CHECK_EQUAL(made.first, m->stored[sequence].first);
    }
}

static void stale(uint64_t i) {
    model *m = &models[i];
    if (m->epoch == 0 || m->next == 0 || m->stranger) return;
    producer_batch b = batch_of(i, next_random() % 3);
    produced made;
    b.epoch--;
    CHECK_EQUAL(producers_judge(&known, &b, &made), 0);
    CHECK_EQUAL(made.kind, PRODUCED_STALE);
    CHECK_EQUAL(made.count, m->epoch);
}

/* The power goes. Where log and slots were on the device as they are, nothing is forgotten; else all is. */
static void boot(void) {
    bool covered = next_random() % 2 == 0 && known.exists;
    if (covered) producers_cover(&known, end);
    else end += 1 + next_random() % 3; /* records of somebody else came behind it */
    memory.boot[0]++;
    CHECK_EQUAL(reopen(), 0);
    for (uint64_t i = 0; i < PRODUCERS; i++) models[i].stranger |= !covered;
}

static void step(void) {
    uint64_t i = next_random() % PRODUCERS, what = next_random() % 400;
    if (what == 0) boot();
    else if (what < 4) CHECK_EQUAL(reopen(), 0);
    else if (what < 8 || (models[i].stranger && what < 60)) begin_epoch(i, false);
    else if (what < 30) stale(i);
    else if (what < 40) end += next_random() % 5; /* of others */
    else send(i);
}

static void begin(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/producers", directory);
    unlink(path);
    end = record = 0;
    for (uint64_t i = 0; i < PRODUCERS; i++) {
        models[i].epoch = 0;
        begin_epoch(i, true);
    }
    CHECK_EQUAL(reopen(), 0);
}

static void test_it_answers_as_a_list_of_all_batches_does(void) {
    begin();
    for (unsigned i = 0; i < STEPS && check_errors == 0; i++) step();
    producers_free(&known);
    CHECK_EQUAL(memory.used, 0);
}

/* The list finds what goes wrong: faults that are planted on purpose. */
static unsigned errors_with(void (*fault)(void)) {
    unsigned before = check_errors;
    fflush(stderr);
    int kept = dup(2);
    CHECK(freopen("/dev/null", "w", stderr) != NULL);
    begin();
    for (unsigned i = 0; i < STEPS && check_errors == before; i++) {
        step();
        if (i % 64 == 63) fault();
    }
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    unsigned found = check_errors - before;
    check_errors = before;
    producers_free(&known);
    return found;
}

static void accept_twice(void) {
    for (uint32_t i = 0; i < known.capacity; i++)
        if (known.table[i] != NULL && known.table[i]->next > 0) known.table[i]->next--;
}

static void forget_epoch(void) {
    for (uint32_t i = 0; i < known.capacity; i++)
        if (known.table[i] != NULL && known.table[i]->epoch > 0) known.table[i]->epoch--;
}

static void lose_the_file(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/producers", directory);
    unlink(path);
    reopen();
}

static void believe_a_lost_slot(void) { /* the records of the newest batches are gone, and the log has not shrunk */
    for (uint32_t i = 0; i < known.capacity; i++)
        if (known.table[i] != NULL) known.table[i]->next++;
}

static void test_the_list_finds_planted_faults(void) {
    CHECK(errors_with(accept_twice) > 0);
    CHECK(errors_with(forget_epoch) > 0);
    CHECK(errors_with(lose_the_file) > 0);
    CHECK(errors_with(believe_a_lost_slot) > 0);
}

static void test_a_damaged_file_is_forgotten_not_believed(void) {
    char path[128];
    begin();
    for (unsigned i = 0; i < 200; i++) send(i % PRODUCERS);
    snprintf(path, sizeof path, "%s/producers", directory);
    FILE *f = fopen(path, "r+");
    REQUIRE(f != NULL);
    fseek(f, 20, SEEK_SET);
    fputc(0x55, f);
    fclose(f);
    CHECK_EQUAL(reopen(), 0);
    for (uint64_t i = 0; i < PRODUCERS; i++) models[i].stranger = true;
    for (unsigned i = 0; i < 50; i++) send(i % PRODUCERS);
    begin_epoch(2, false);
    for (unsigned i = 0; i < 50; i++) send(2);
    producers_free(&known);
}

int main(void) {
    if (mkdtemp(directory) == NULL) return 1;
    files.budget = (descriptor_budget){.segment_pairs = 4, .offset_files = 4};
    for (unsigned i = 0; i < PRODUCERS; i++) models[i].stored = calloc(BATCHES_MAX, sizeof *models[i].stored);
    known.fd = -1;
    RUN(test_it_answers_as_a_list_of_all_batches_does);
    RUN(test_the_list_finds_planted_faults);
    RUN(test_a_damaged_file_is_forgotten_not_believed);
    for (unsigned i = 0; i < PRODUCERS; i++) free(models[i].stored);
    lose_the_file();
    producers_free(&known);
    rmdir(directory);
    return check_report();
}
