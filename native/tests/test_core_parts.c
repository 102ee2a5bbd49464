/* Large batches of callers: one part in a pass, those behind them in order, one end for each, whatever happens. */
#include "test_core_support.h"

#include "core/once.h"
#include "fault_disk.h"
#include "partition_inside.h"

#define LARGE_COUNT 8u
#define LARGE_BODY 700000u
#define LARGE_PARTS 6u

typedef struct heard {
    unsigned ends, number; /* number: how many had ended with it */
    uint32_t status;
    bool dropped;
    unsigned lent;
    pending *work;
    uint8_t *records;
} heard;

static unsigned ended;
static session who;

static void hear(heard *h, uint32_t status) {
    h->ends++;
    h->number = ++ended;
    h->status = status;
}

static void on_status(const caller *to, uint32_t status) { hear(to->owner, status); }

static void on_committed(const caller *to, uint64_t offset) {
    (void)offset;
    hear(to->owner, 0);
}

static void on_gone(const caller *to) { hear(to->owner, UINT32_MAX); }

static void on_parked(const caller *to, pending *p) { ((heard *)to->owner)->work = p; }

static bool is_wanted(const caller *to) {
    (void)to;
    return true;
}

static bool lend(const caller *to, uint8_t **records) {
    (void)records;
    ((heard *)to->owner)->lent++;
    return true;
}

static const caller_calls calls = {.status = on_status,
                                   .committed = on_committed,
                                   .gone = on_gone,
                                   .again = on_gone,
                                   .dropped = on_gone,
                                   .parked = on_parked,
                                   .wanted = is_wanted,
                                   .lend = lend};

static void send(heard *h, uint32_t count, uint32_t body) {
    *h = (heard){.records = malloc(count * RECORD_BYTES(body))};
    for (uint32_t i = 0; i < count; i++) put_record(h->records + i * RECORD_BYTES(body), body, 'x');
    request q = {.kind = REQUEST_SEND,
                 .send = {.address = (const uint8_t *)"h",
                          .stream_length = 1,
                          .partitioning = PARTITIONING_PARTITION_ID,
                          .count = count,
                          .messages = h->records,
                          .messages_length = count * RECORD_BYTES(body)}};
    caller from = {.calls = &calls, .owner = h, .session = &who};
    CHECK_EQUAL(execute_request(k, &who, &q, &from), EXECUTED);
}

static void send_large(heard *h) { send(h, LARGE_COUNT, LARGE_BODY); }

static void send_small(heard *h) { send(h, 1, 100); }

static uint64_t first_offset(const heard *h) {
    uint64_t offset;
    memcpy(&offset, h->records + 24, sizeof offset);
    return offset;
}

static void pass(void) { /* without the waiting of `turn` */
    commit_part(k);
    commit_all(k);
}

static void finish(heard *all, unsigned count, uint32_t status) {
    for (int i = 0; i < 5000 && ended < count; i++) turn();
    for (unsigned i = 0; i < count; i++) {
        CHECK_EQUAL(all[i].ends, 1);
        CHECK_EQUAL(all[i].status, status);
        free(all[i].records);
    }
    CHECK(!commit_has_parts(k));
}

static void begin(partition_level level) {
    ended = 0;
    open_core(level);
}

static void test_a_large_batch_takes_a_part_in_a_pass(void) {
    static heard all[2];
    begin(LEVEL_WRITTEN);
    partition *p = core_owned(k, NS_HERE)->p;
    send_small(&all[0]);
    send_large(&all[1]);
    commit_all(k);
    CHECK_EQUAL(ended, 1);
    for (unsigned i = 1; i < LARGE_PARTS; i++) {
        pass();
        CHECK_EQUAL(partition_next_offset(p), 1);
        CHECK(commit_has_parts(k));
    }
    pass();
    CHECK_EQUAL(partition_next_offset(p), 1 + LARGE_COUNT);
    CHECK_EQUAL(all[0].lent + all[1].lent, 0);
    finish(all, 2, 0);
    close_core();
}

static void test_what_comes_behind_a_large_batch_waits_and_keeps_its_place(void) {
    static const char order[] = "sLssLLsL";
    static const partition_level levels[] = {LEVEL_WRITTEN, LEVEL_DURABLE};
    for (int level = 0; level < 2; level++) {
        static heard all[sizeof order - 1];
        unsigned count = sizeof order - 1;
        begin(levels[level]);
        for (unsigned i = 0; i < count; i++) {
            if (order[i] == 'L') send_large(&all[i]);
            else send_small(&all[i]);
            CHECK_EQUAL(all[i].lent, i > 1); /* its records stay for longer */
            if (i % 3 == 2) pass();
        }
        uint64_t expected = 0;
        for (int i = 0; i < 5000 && ended < count; i++) turn();
        for (unsigned i = 0; i < count; i++) {
            CHECK_EQUAL(all[i].number, i + 1);
            CHECK_EQUAL(first_offset(&all[i]), expected);
            expected += order[i] == 'L' ? LARGE_COUNT : 1;
        }
        CHECK_EQUAL(partition_next_offset(core_owned(k, NS_HERE)->p), expected);
        finish(all, count, 0);
        close_core();
    }
}

static void test_a_partition_that_goes_ends_all_that_wait_there(void) {
    for (unsigned parts = 0; parts < LARGE_PARTS; parts++) {
        static heard all[4];
        begin(LEVEL_WRITTEN);
        send_large(&all[0]);
        send_small(&all[1]);
        send_large(&all[2]);
        send_small(&all[3]);
        for (unsigned i = 0; i < parts; i++) pass();
        CHECK_EQUAL(ended, 0);
        core_partition_remove(k, NS_HERE);
        finish(all, 4, STATUS_PARTITION_NOT_FOUND);
        close_core();
    }
}

static void test_an_end_between_the_parts_leaves_nothing_behind(void) {
    static heard all[3];
    begin(LEVEL_WRITTEN);
    send_large(&all[0]);
    send_small(&all[1]);
    send_large(&all[2]);
    pass();
    close_core(); /* under ASan: nothing is lost, nothing is used afterwards */
    CHECK_EQUAL(ended, 0);
    for (int i = 0; i < 3; i++) free(all[i].records);
}

static void test_without_room_on_the_disk_all_of_them_are_refused(void) {
    static heard all[3];
    begin(LEVEL_WRITTEN);
    k->commit.room = (room){.fd = 0, .refused = true};
    send_large(&all[0]);
    send_small(&all[1]);
    send_large(&all[2]);
    finish(all, 3, STATUS_CANNOT_WRITE_TO_FILE);
    CHECK_EQUAL(partition_next_offset(core_owned(k, NS_HERE)->p), 0);
    k->commit.room.fd = -1;
    close_core();
}

static void set_readonly(bool readonly) {
    owned *target = core_owned(k, NS_HERE);
    target->readonly = readonly;
    once_changed(target);
}

static void test_what_has_begun_when_a_partition_becomes_read_only_is_finished(void) {
    static heard all[4], later[2];
    begin(LEVEL_WRITTEN);
    partition *p = core_owned(k, NS_HERE)->p;
    send_large(&all[0]);
    send_large(&all[1]);
    send_small(&all[2]);
    pass();
    set_readonly(true);
    send_small(&all[3]);
    for (int i = 0; i < 5000 && ended < 4; i++) turn();
    CHECK_EQUAL(all[0].status, 0);
    for (int i = 1; i < 4; i++) CHECK_EQUAL(all[i].status, STATUS_CANNOT_APPEND_MESSAGE);
    CHECK_EQUAL(partition_next_offset(p), LARGE_COUNT);
    CHECK_EQUAL(k->counters.refused_by_topic, 3);
    for (int i = 0; i < 4; i++) free(all[i].records);
    set_readonly(false);
    ended = 0;
    send_small(&later[0]);
    send_large(&later[1]);
    finish(later, 2, 0);
    CHECK(!core_owned(k, NS_HERE)->judged);
    close_core();
}

static void set_paused(bool paused) {
    owned *target = core_owned(k, NS_HERE);
    target->paused = paused;
    once_changed(target);
}

static unsigned resumed(void) {
    unsigned count = 0;
    for (uint32_t i = 0; i < k->events.count; i++)
        count += k->events.list[i].kind == EVENT_RESUMED && k->events.list[i].connection == NS_HERE;
    events_clear(&k->events);
    return count;
}

/* What is stored while a partition is paused is told of, once; what is refused is not. */
static void test_the_first_message_that_a_paused_partition_stores_is_told_of(void) {
    for (unsigned large = 0; large < 2; large++) {
        static heard refused, all[2], later;
        ended = 0;
        begin(LEVEL_WRITTEN);
        set_paused(true);
        set_readonly(true);
        send_small(&refused);
        finish(&refused, 1, STATUS_CANNOT_APPEND_MESSAGE);
        CHECK_EQUAL(resumed(), 0);
        set_readonly(false);
        CHECK(core_owned(k, NS_HERE)->judged);
        ended = 0;
        if (large) send_large(&all[0]);
        else send_small(&all[0]);
        send_small(&all[1]);
        finish(all, 2, 0);
        CHECK_EQUAL(resumed(), 1);
        CHECK(!core_owned(k, NS_HERE)->paused && !core_owned(k, NS_HERE)->judged);
        ended = 0;
        send_small(&later);
        finish(&later, 1, 0);
        CHECK_EQUAL(resumed(), 0);
        close_core();
    }
}

/* What a failing device keeps of a refused batch is of no interest when its partition is gone: nothing waits for it. */
static void test_a_removed_partition_waits_for_no_device(void) {
    static const partition_level levels[] = {LEVEL_MEMORY, LEVEL_WRITTEN};
    for (unsigned i = 0; i < 2; i++) {
        static heard one;
        fault_disk faulty;
        ended = 0;
        begin(levels[i]);
        send_small(&one);
        finish(&one, 1, 0);
        owned *target = core_owned(k, NS_HERE);
        target->references++;
        CHECK_EQUAL(partition_flush(target->p), 0);
        fault_disk_init(&faulty);
        inside_files(target->p)->disk = &faulty.disk;
        fault_disk_plan(&faulty, FAULT_TRUNCATE, 1, UINT32_MAX / 2, EROFS, 0);
        fault_disk_plan(&faulty, FAULT_WRITE, 1, UINT32_MAX / 2, EROFS, 80);
        ended = 0;
        send(&one, 1, 5 << 20); /* more than a journal holds */
        finish(&one, 1, STATUS_CANNOT_WRITE_TO_FILE);
        CHECK(partition_has_refused(target->p));
        for (int round = 0; round < 100 && k->sync.running > 0; round++) turn();
        CHECK(k->sync.dirty == target); /* it will be tried again */
        core_partition_remove(k, NS_HERE);
        for (int round = 0; round < 100 && k->sync.dirty != NULL; round++) {
            sync_save_tick(k);
            sync_tick(k);
            turn();
        }
        CHECK(k->sync.dirty == NULL);
        owned_release(target);
        close_core();
    }
}

/* The time that a commit takes shows between the requests of a pass, not at its end alone. */
static void test_batches_of_medium_size_are_committed_on_the_way(void) {
    static heard all[8];
    begin(LEVEL_WRITTEN);
    for (int i = 0; i < 8; i++) send(&all[i], 1, 1000000);
    CHECK_EQUAL(ended, 6);
    finish(all, 8, 0);
    close_core();
}

int main(void) {
    RUN(test_a_large_batch_takes_a_part_in_a_pass);
    RUN(test_what_comes_behind_a_large_batch_waits_and_keeps_its_place);
    RUN(test_a_partition_that_goes_ends_all_that_wait_there);
    RUN(test_an_end_between_the_parts_leaves_nothing_behind);
    RUN(test_without_room_on_the_disk_all_of_them_are_refused);
    RUN(test_what_has_begun_when_a_partition_becomes_read_only_is_finished);
    RUN(test_the_first_message_that_a_paused_partition_stores_is_told_of);
    RUN(test_a_removed_partition_waits_for_no_device);
    RUN(test_batches_of_medium_size_are_committed_on_the_way);
    return check_report();
}
