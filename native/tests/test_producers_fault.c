/* Every call of the disk fails once, or as one of its kind for ever until it is mended, while a producer sends. What
 * was refused counts for nothing, the same batch is accepted later, and after a kill each batch is in the log once. */
#include "test_numbered_batches.h"

#define BATCHES 14u
#define TRIES 4u

static fault_disk faulty;
static uint64_t first_of[BATCHES];
static bool count_what_was_refused; /* canary */
static unsigned refused;

/* A batch of so many messages of 300 bytes, each with its number. */
static uint32_t send_some(partition *p, uint64_t sequence, uint32_t count, produced *made) {
    static uint8_t messages[1 << 12];
    append_batch b = {.messages = messages, .count = count, .length = make_records(messages, count, 300, 300)};
    for (uint32_t i = 0; i < count; i++)
        memcpy(messages + b.length / count * i + RECORD_HEADER_SIZE, &sequence, sizeof sequence);
    uint32_t status = send_once(p, &b, sequence);
    *made = b.made;
    return status;
}

static uint32_t send(partition *p, uint64_t sequence, produced *made) { return send_some(p, sequence, 1, made); }

/* The batch until it is there. False: the partition takes no more writes. */
static bool deliver(partition *p, uint64_t sequence) {
    for (unsigned i = 0; i < TRIES; i++) {
        if (i == TRIES / 2) faulty.site.at = 0; /* there is room again */
        uint64_t before = partition_next_offset(p);
        append_batch b = numbered_batch(sequence, 300);
        uint32_t status = send_once(p, &b, sequence);
        if (status == 0) {
            CHECK_EQUAL(b.made.kind, PRODUCED_STORED);
            first_of[sequence] = b.made.first;
            return true;
        }
        refused++;
        CHECK(status == 10006 || status == partition_state(p));
        CHECK_EQUAL(partition_next_offset(p), before);
        if (count_what_was_refused) return true;
    }
    CHECK(partition_state(p) != 0);
    return false;
}

/* How many calls there were. */
static unsigned scenario(unsigned site, bool for_ever, int error, partition_level level) {
    static unsigned number;
    unsigned times[BATCHES];
    uint64_t sent = 0;
    snprintf(directory, sizeof directory, "%s/f%u/p", test_root, number++);
    memory = (producer_memory){.boot = {1}, .known_last = 5};
    fault_disk_init(&faulty);
    partition_options options = options_on(&faulty.disk, level, 1500);
    partition *p = partition_open(&options, NULL, 0);
    CHECK(p != NULL);
    if (p == NULL) return 0;
    faulty.site.at = site;
    faulty.site.for_ever = for_ever;
    faulty.site.error = error;
    while (sent < BATCHES && deliver(p, sent)) {
        sent++;
        if (sent % 5 == 0) partition_sync_now(p);
    }
    unsigned calls = faulty.all_calls;
    partition_release(p); /* killed */
    fault_disk_init(&faulty);
    p = reopen(&options);
    CHECK(p != NULL);
    if (p == NULL) return 0;
    count_in_log(p, times, BATCHES);
    for (uint64_t i = 0; i < BATCHES; i++) CHECK_EQUAL(times[i], i < sent);
    for (uint64_t i = 0; i < BATCHES; i++) { /* all of it again, and on */
        append_batch b = numbered_batch(i, 300);
        CHECK_EQUAL(send_once(p, &b, i), 0);
        CHECK_EQUAL(b.made.kind, i < sent ? PRODUCED_DUPLICATE : PRODUCED_STORED);
        if (i < sent) CHECK_EQUAL(b.made.first, first_of[i]);
    }
    count_in_log(p, times, BATCHES);
    for (uint64_t i = 0; i < BATCHES; i++) CHECK_EQUAL(times[i], 1);
    if (check_errors != 0 && !count_what_was_refused)
        printf("call %u of %u, errno %d, level %u\n", site, calls, error, level);
    partition_close(p);
    partition_release(p);
    return calls;
}

static void test_what_was_refused_counts_for_nothing_and_is_accepted_later(void) {
    static const int errors[] = {ENOSPC, EDQUOT, EIO, EMFILE, EINTR};
    static const partition_level levels[] = {LEVEL_WRITTEN, LEVEL_DURABLE};
    unsigned ran = 0;
    refused = 0;
    for (size_t l = 0; l < 2; l++) {
        unsigned calls = scenario(0, false, 0, levels[l]);
        CHECK(calls > BATCHES);
        for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++)
            for (unsigned site = 1; site <= calls && check_errors == 0; site++, ran += 2) {
                scenario(site, false, errors[e], levels[l]);
                if (errors[e] != EINTR) scenario(site, true, errors[e], levels[l]);
            }
    }
    printf("%u runs, %u refusals\n", ran, refused);
    CHECK(refused > 100);
}

/* However a send failed: once the disk works again the syncs of a stop come to an end. */
static bool becomes_clean(unsigned site) {
    snprintf(directory, sizeof directory, "%s/c%u/p", test_root, site);
    memory = (producer_memory){.boot = {1}, .known_last = 5};
    fault_disk_init(&faulty);
    partition_options options = options_on(&faulty.disk, LEVEL_WRITTEN, 1500);
    partition *p = partition_open(&options, NULL, 0);
    CHECK(p != NULL);
    if (p == NULL) return false;
    faulty.site.at = site;
    faulty.site.for_ever = true;
    faulty.site.error = ENOSPC;
    for (uint64_t sent = 0; sent < BATCHES && deliver(p, sent); sent++) {
    }
    bool reached = faulty.all_calls >= site;
    faulty.site.at = 0;
    sync_all(p);
    partition_close(p);
    partition_release(p);
    return reached;
}

static void test_syncs_come_to_an_end_whatever_was_refused(void) {
    unsigned site = 1;
    while (becomes_clean(site)) site++;
    CHECK(site > BATCHES);
}

/* The device fails three times: what is in the log of a refused batch can neither be cut off nor overwritten. Killed
 * then, or after the next sync, and the producer sends it again. `bytes`: that came into the log. */
static void refused_and_not_cut(size_t bytes, uint32_t messages, bool synced) {
    unsigned times[BATCHES];
    produced made;
    snprintf(directory, sizeof directory, "%s/n%zu-%u/p", test_root, bytes, synced);
    memory = (producer_memory){.boot = {1}, .known_last = 5};
    fault_disk_init(&faulty);
    partition_options options = options_on(&faulty.disk, LEVEL_WRITTEN, 1500);
    partition *p = partition_open(&options, NULL, 0);
    CHECK_EQUAL(send(p, 0, &made), 0);
    fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, 1, EPERM, 0);
    fault_disk_plan(&faulty, FAULT_WRITE, 2, 3, ENOSPC, bytes); /* the first one is that of its slot */
    CHECK_EQUAL(send_some(p, 1, messages, &made), 10006);
    CHECK(partition_state(p) != 0);
    if (synced) partition_sync_now(p);
    partition_release(p); /* killed */
    fault_disk_init(&faulty);
    p = reopen(&options);
    CHECK_EQUAL(send_some(p, 1, messages, &made), 0);
    CHECK_EQUAL(made.kind, synced ? PRODUCED_STORED : PRODUCED_UNKNOWN); /* unfinished_batch.py cuts by the slot */
    if (synced) CHECK_EQUAL(made.first, 1);
    CHECK_EQUAL(send(p, 2, &made), 0);
    CHECK_EQUAL(made.kind, synced ? PRODUCED_STORED : PRODUCED_UNKNOWN);
    count_in_log(p, times, BATCHES);
    CHECK_EQUAL(times[1], synced ? messages : messages - 1);
    partition_close(p);
    partition_release(p);
}

static void test_a_refused_batch_that_could_not_be_cut_off_is_not_stored_once_more(void) {
    const size_t record = RECORD_HEADER_SIZE + 300;
    for (size_t bytes = record - 1; bytes < 2 * record; bytes += 7) refused_and_not_cut(bytes, 2, true);
    refused_and_not_cut(record + 1, 2, false);
    refused_and_not_cut(2 * record + 1, 3, false);
}

static void test_a_batch_that_was_refused_and_counted_is_found(void) {
    check_hidden hidden = check_hide();
    count_what_was_refused = true;
    for (unsigned site = 1; site < 30; site++) scenario(site, true, ENOSPC, LEVEL_WRITTEN);
    count_what_was_refused = false;
    CHECK(check_show(hidden) > 0);
}

int main(void) {
    test_root_make();
    id_source_seed_fixed(&ids, 3);
    RUN(test_what_was_refused_counts_for_nothing_and_is_accepted_later);
    RUN(test_syncs_come_to_an_end_whatever_was_refused);
    RUN(test_a_refused_batch_that_could_not_be_cut_off_is_not_stored_once_more);
    RUN(test_a_batch_that_was_refused_and_counted_is_found);
    test_root_remove();
    return check_report();
}
