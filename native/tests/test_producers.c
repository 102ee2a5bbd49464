/* What a partition knows of producers says what a list of all batches says: whatever is sent again, in whatever order,
 * over failed writes, kills between slot and records, and boots of the machine. */
#include "check.h"
#include "log/producers.h"
#include "log/producers_table.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 25000u
#define PRODUCERS 5u
#define BATCHES_MAX 40000u
#define FILE_BYTES_MAX 65536u

typedef struct batch {
    uint64_t first;
    uint32_t count;
} batch;

typedef struct model {               /* of one producer */
    batch *stored;                   /* by number, in its epoch */
    uint64_t next, begun, told_from; /* after a power loss it may not know where the last ones are */
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
static bool forget_slots; /* a planted fault: slots that are missing are not counted */
static bool reopened;
static bool calm;                          /* every batch has messages, and all writes succeed */
static unsigned believed, believed_target; /* after cuts of the power */

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int reopen(void) {
    reopened = true;
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
    models[i].next = models[i].told_from = 0;
    models[i].begun = ++record;
    models[i].stranger = false;
}

/* A batch that has to be stored: written, or lost on one of its ways. */
static void store(uint64_t i) {
    model *m = &models[i];
    producer_batch b = batch_of(i, m->next);
    uint32_t count = (uint32_t)(next_random() % 20) + calm;
    CHECK_EQUAL(producers_write(&known, &b, end, count), 0);
    switch (calm ? 2 : next_random() % 12) {
    case 0: /* the records could not be written */ CHECK(producers_failed(&known, &b)); return;
    case 1: /* killed before the records */
        if (count == 0) break;
        CHECK_EQUAL(reopen(), 0);
        return;
    default: break;
    }
    m->stored[m->next++] = (batch){end, count};
    end += count;
    if (!calm && next_random() % 50 == 0) CHECK_EQUAL(reopen(), 0); /* killed before the answer */
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
        bool told = (m->next - sequence <= PRODUCER_WINDOW && sequence >= m->told_from) || made.count > 0;
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

static void sync_all(void) { /* the second one says that the first has succeeded */
    for (unsigned i = 0; i < 2; i++) {
        producers_cover(&known, end, true);
        producers_covered(&known);
    }
}

static size_t read_file(uint8_t *out) {
    char path[128];
    snprintf(path, sizeof path, "%s/producers", directory);
    FILE *f = fopen(path, "r");
    if (f == NULL) return 0;
    size_t length = fread(out, 1, FILE_BYTES_MAX, f);
    fclose(f);
    return length;
}

static void write_file(const uint8_t *bytes, size_t length) {
    char path[128];
    snprintf(path, sizeof path, "%s/producers", directory);
    FILE *f = fopen(path, "w");
    REQUIRE(f != NULL && fwrite(bytes, 1, length, f) == length);
    fclose(f);
}

static void send(uint64_t i);

/* Of what was written since the last sync the device has some sectors and not others, and the log ends where that sync
 * was, or the one that was running, or elsewhere. What the file then says must be true of the log that is there. */
static void cut_power(void) {
    static uint8_t before[FILE_BYTES_MAX], after[FILE_BYTES_MAX];
    uint64_t synced = end, target;
    if (!known.exists) return;
    sync_all();
    calm = next_random() % 4 != 0;
    reopened = false;
    size_t old = read_file(before);
    for (uint64_t i = next_random() % 60; i > 0; i--) send(next_random() % PRODUCERS);
    target = end;
    if (forget_slots) known.counted = 0;
    producers_cover(&known, end, true);
    for (uint64_t i = next_random() % 60; i > 0; i--) send(next_random() % PRODUCERS);
    size_t length = read_file(after);
    calm = false;
    uint64_t kind = next_random() % 4, keep = next_random() % 4; /* 0: all sectors */
    if (reopened) keep = 0;                                      /* it may be another file */
    if (forget_slots) kind = 1;
    for (size_t at = forget_slots ? PRODUCERS_HEAD_BYTES : 0; at < old; at += 64)
        if (forget_slots || (keep != 0 && next_random() % 4 < keep))
            memcpy(after + at, before + at, at + 64 <= old ? 64 : old - at);
    write_file(after, length);
    end = kind == 0 ? synced : kind == 1 ? target : kind == 2 ? end : synced + next_random() % (end - synced + 1);
    memory.boot[0]++;
    CHECK_EQUAL(reopen(), 0);
    bool forgotten = known.barrier == record;
    believed += !forgotten;
    believed_target += !forgotten && end == target && end > synced;
    for (uint64_t i = 0; i < PRODUCERS; i++) {
        model *m = &models[i];
        const producer_entry *e = producers_find(&known, i + 1);
        uint64_t next = e != NULL && e->epoch == m->epoch ? e->next : 0;
        while (m->next > 0 && m->stored[m->next - 1].first + m->stored[m->next - 1].count > end) m->next--;
        while (m->next > next && m->stored[m->next - 1].count == 0) m->next--; /* nobody misses them */
        m->told_from = m->next;
        m->stranger |= forgotten;
    }
    record++;
}

/* The power goes. Where log and slots were on the device as they are, nothing is forgotten; else all is. */
static void boot(void) {
    uint64_t what = next_random() % 4;
    bool covered = what == 0 && known.exists;
    if (what > 1) {
        cut_power();
        return;
    }
    if (covered) sync_all();
    else end += 1 + next_random() % 3; /* records of somebody else came behind it */
    memory.boot[0]++;
    CHECK_EQUAL(reopen(), 0);
    for (uint64_t i = 0; i < PRODUCERS; i++) models[i].stranger |= !covered;
}

static void step(void) {
    uint64_t i = next_random() % PRODUCERS, what = next_random() % 400;
    if (what < 2) boot();
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

static void cut_often(unsigned cuts) {
    begin();
    believed = believed_target = 0;
    for (unsigned i = 0; i < cuts && check_errors == 0; i++) {
        for (uint64_t k = 0; k < PRODUCERS; k++)
            if (models[k].stranger || models[k].next > BATCHES_MAX / 2) begin_epoch(k, false);
        for (unsigned k = 0; k < 30; k++) send(next_random() % PRODUCERS);
        cut_power();
        for (unsigned k = 0; k < 30; k++) send(next_random() % PRODUCERS);
    }
    producers_free(&known);
}

static void test_after_a_power_loss_it_knows_the_log_that_is_there_or_nothing(void) {
    cut_often(2000);
    CHECK(believed > 400 && believed_target > 50);
}

/* The list finds what goes wrong: faults that are planted on purpose. */
static unsigned errors_with(void (*fault)(void)) {
    check_hidden hidden = check_hide();
    begin();
    for (unsigned i = 0; i < STEPS && check_errors == hidden.errors; i++) {
        step();
        if (i % 64 == 63) fault();
    }
    producers_free(&known);
    return check_show(hidden);
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
    forget_slots = true;
    CHECK(errors_with(cut_power) > 0);
    forget_slots = false;
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

/* A recovery cuts such a log. Where it may not, nobody is told that the batch is new. */
static void test_a_log_that_ends_inside_a_batch_is_known_and_never_believed(void) {
    static uint8_t content[FILE_BYTES_MAX];
    begin();
    for (uint64_t i = 0; i < 3; i++) {
        producer_batch b = batch_of(i, 0);
        produced made;
        CHECK(producers_judge(&known, &b, &made) == 0 && made.kind == PRODUCED_STORED);
        CHECK_EQUAL(producers_write(&known, &b, end, 5), 0);
        producers_stored(&known, &b, end, 5);
        end += 5;
        models[i].next++;
    }
    size_t length = read_file(content);
    for (uint64_t at = 0; at <= 16; at++)
        CHECK_EQUAL(producers_end_inside(content, length, 7, at), at < 15 && at % 5 != 0);
    CHECK(!producers_end_inside(content, length, 8, 7));
    end = 12;
    CHECK_EQUAL(reopen(), 0);
    for (uint64_t i = 0; i < 3; i++) {
        producer_batch b = batch_of(i, models[i].next);
        produced made;
        CHECK_EQUAL(producers_judge(&known, &b, &made), 0);
        CHECK_EQUAL(made.kind, PRODUCED_UNKNOWN);
    }
    producers_free(&known);
}

static bool is_known_to_metadata(void *context, uint64_t producer) { return context == NULL && producer != 9; }

static void test_one_more_than_there_is_room_for_is_refused_and_counts_nothing(void) {
    produced made;
    begin();
    producer_batch last = {.producer = PRODUCERS_OF_PARTITION_MAX + 1, .begun = record + 1};
    CHECK_EQUAL(known.count, 0);
    for (uint64_t id = 1; known.count < PRODUCERS_OF_PARTITION_MAX; id++) {
        producer_batch b = {.producer = id, .begun = record + 1};
        CHECK_EQUAL(producers_judge(&known, &b, &made), 0);
        CHECK_EQUAL(made.kind, PRODUCED_STORED);
    }
    for (unsigned i = 0; i < 3; i++) CHECK_EQUAL(producers_judge(&known, &last, &made), STATUS_FEATURE_UNAVAILABLE);
    CHECK_EQUAL(known.count, PRODUCERS_OF_PARTITION_MAX);
    producers_sweep(&known, is_known_to_metadata, NULL);
    CHECK_EQUAL(producers_judge(&known, &last, &made), 0); /* the same batch */
    CHECK_EQUAL(made.kind, PRODUCED_STORED);
    CHECK_EQUAL(producers_write(&known, &last, end, 1), 0);
    producers_stored(&known, &last, end, 1);
    memory.used = PRODUCERS_OF_WORKER_MAX; /* the room of the worker */
    producers_sweep(&known, is_known_to_metadata, NULL);
    producer_batch another = {.producer = 9, .begun = record + 1};
    CHECK_EQUAL(producers_judge(&known, &another, &made), STATUS_FEATURE_UNAVAILABLE);
    memory.used = known.count;
    producers_free(&known);
    CHECK_EQUAL(memory.used, 0);
}

int main(void) {
    if (mkdtemp(directory) == NULL) return 1;
    files.budget = (descriptor_budget){.segment_pairs = 4, .offset_files = 4};
    for (unsigned i = 0; i < PRODUCERS; i++) models[i].stored = calloc(BATCHES_MAX, sizeof *models[i].stored);
    known.fd = -1;
    RUN(test_it_answers_as_a_list_of_all_batches_does);
    RUN(test_after_a_power_loss_it_knows_the_log_that_is_there_or_nothing);
    RUN(test_the_list_finds_planted_faults);
    RUN(test_a_damaged_file_is_forgotten_not_believed);
    RUN(test_one_more_than_there_is_room_for_is_refused_and_counts_nothing);
    RUN(test_a_log_that_ends_inside_a_batch_is_known_and_never_believed);
    for (unsigned i = 0; i < PRODUCERS; i++) free(models[i].stored);
    lose_the_file();
    producers_free(&known);
    rmdir(directory);
    return check_report();
}
