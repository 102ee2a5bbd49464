/* Polls over segments whose records somebody has to bring first, on both shards: those of the shard that was asked and,
 * forwarded, those of the other one. */
#include "test_engine_support.h"

#include "masked_layout.h"

#include "core/reads.h"

#define LEAVING 24u
#define STREAMS_USED 4u /* they live on either shard */
#define BATCHES 10u
#define BATCH 100u
#define BODY 4000u
#define MESSAGES (BATCHES * BATCH)
#define ANSWER_BYTES(count) (16u + (count) * (64u + BODY))
#define DAMAGED_BLOCK 100u
#define FIRST_DAMAGED (DAMAGED_BLOCK * MASKED_BLOCK / (64 + BODY))

typedef enum command { NOTHING, CONVERT, FORGET, DAMAGE } command;

static server s;
static masked_layout masked[SHARDS];
static _Atomic command wanted[SHARDS];
static _Atomic bool helping;
static _Atomic unsigned waits, forgotten, waiting[SHARDS];

static void convert(engine *e, uint32_t stream) {
    uint64_t ns = namespace_of(stream, 0, 0);
    owned *o = core_owned(&e->core, ns);
    if (o == NULL) return;
    char path[128];
    snprintf(path, sizeof path, "%s/%u", s.directory, stream);
    partition_options options = {.ns = ns,
                                 .incarnation = stream + 1,
                                 .directory = path,
                                 .segment_size_bytes = 1 << 20,
                                 .stats = &e->core.links.stats[stream],
                                 .ids = &e->core.ids,
                                 .files = &e->core.files,
                                 .disk = &disk_system};
    partition *mixed = masked_reopen(&masked[e->core.links.shard], o->p, &options);
    CHECK(mixed != NULL);
    CHECK_EQUAL(partition_segment_count(mixed), 3);
    core_partition_remove(&e->core, ns);
    CHECK_EQUAL(core_partition_add(&e->core, mixed), 0);
}

/* In the thread of the engine. */
static void work(server *of, engine *e) {
    uint32_t shard = e->core.links.shard;
    masked_layout *l = &masked[shard];
    switch (wanted[shard]) {
    case CONVERT:
        for (uint32_t stream = 0; stream < STREAMS_USED; stream++) convert(e, stream);
        break;
    case FORGET: masked_forget(l); break;
    case DAMAGE:
        for (uint32_t stream = 0; stream < STREAMS_USED; stream++) {
            char path[128];
            snprintf(path, sizeof path, "%s/%u", of->directory, stream);
            if (core_owned(&e->core, namespace_of(stream, 0, 0)) != NULL) masked_flip(l, path, DAMAGED_BLOCK);
        }
        break;
    default: break;
    }
    wanted[shard] = NOTHING;
    if (helping) masked_help(l);
    waits += l->waits;
    forgotten += l->forgotten;
    l->waits = l->forgotten = 0;
    waiting[shard] = l->fetches != NULL;
}

static void tell(command what) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) wanted[shard] = what;
    for (int i = 0; i < 5000 && (wanted[0] != NOTHING || wanted[1] != NOTHING); i++) usleep(1000);
    CHECK(wanted[0] == NOTHING && wanted[1] == NOTHING);
}

static void fill_and_convert(int fd) {
    for (uint32_t stream = 0; stream < STREAMS_USED; stream++)
        for (uint32_t i = 0; i < BATCHES; i++) CHECK_EQUAL(send_messages(fd, stream, BATCH, BODY), 0);
    tell(CONVERT);
}

static void check_poll(int fd, uint32_t stream, uint64_t offset, uint32_t count) {
    uint32_t length = 0;
    CHECK_EQUAL(poll_messages(fd, stream, offset, count, &length), count);
    CHECK_EQUAL(length, ANSWER_BYTES(count));
}

static void test_polls_wait_and_answer_on_both_shards(void) {
    int fd = login(&s);
    fill_and_convert(fd);
    for (unsigned round = 0; round < 3; round++) {
        for (uint32_t stream = 0; stream < STREAMS_USED; stream++) {
            check_poll(fd, stream, 17 * round, 5);
            check_poll(fd, stream, 250, 100); /* from one segment into the next */
            check_poll(fd, stream, 0, MESSAGES);
        }
        tell(FORGET);
    }
    CHECK(waits >= 3 * STREAMS_USED);
    CHECK_EQUAL(forgotten, 0);
    close(fd);
}

static void test_the_offsets_of_a_group_move_behind_a_wait(void) {
    int fd = login(&s);
    fill_and_convert(fd);
    for (uint32_t stream = 0; stream < STREAMS_USED; stream++) {
        uint32_t length = 0;
        for (unsigned i = 0; i < 3; i++) {
            CHECK_EQUAL(poll_as(fd, CONSUMER_GROUP, POLL_NEXT, stream, 0, 100, &length), 100);
            tell(FORGET);
        }
        CHECK_EQUAL(poll_as(fd, CONSUMER_GROUP, POLL_NEXT, stream, 0, MESSAGES, &length), MESSAGES - 300);
    }
    close(fd);
}

static void send_poll(int fd, uint32_t stream) {
    uint8_t payload[64] = {1, 1, 4, 7, 0, 0, 0};
    uint32_t words[2] = {42, CODE_POLL_MESSAGES}, count = 10;
    put_address(payload + 7, stream);
    memcpy(payload + 19, "\1\0\0\0\0\1", 6);
    memcpy(payload + 33, &count, 4);
    CHECK(send(fd, words, 8, MSG_NOSIGNAL) == 8 && send(fd, payload, 38, MSG_NOSIGNAL) == 38);
}

/* The owner forgets whose connection is its own at once; what came from the other shard when it has an answer. */
static void test_who_leaves_while_records_are_brought_costs_nothing(void) {
    int fd = login(&s);
    fill_and_convert(fd);
    helping = false;
    for (unsigned i = 0; i < LEAVING; i++) {
        int leaving = login(&s);
        send_poll(leaving, i % STREAMS_USED);
        for (int n = 0; n < 5000 && waits <= i; n++) usleep(1000);
        close(leaving);
    }
    CHECK_EQUAL(waits, LEAVING);
    for (int n = 0; n < 5000 && forgotten == 0; n++) usleep(1000);
    CHECK(forgotten > 0);
    helping = true;
    for (int n = 0; n < 5000 && (waiting[0] != 0 || waiting[1] != 0); n++) usleep(1000);
    CHECK(waiting[0] == 0 && waiting[1] == 0);
    for (uint32_t stream = 0; stream < STREAMS_USED; stream++) check_poll(fd, stream, 0, 10);
    close(fd);
}

static void withhold(server *of, engine *e, uint64_t ns, uint64_t segment) {
    (void)of;
    CHECK_EQUAL(segment, 0);
    owned *o = core_owned(&e->core, ns);
    CHECK(partition_withhold(o->p, FIRST_DAMAGED, FIRST_DAMAGED + 2, false));
    reads_surveyed(o, segment);
}

static void test_damage_in_such_a_segment_is_surveyed_and_withheld(void) {
    int fd = login(&s);
    fill_and_convert(fd);
    tell(DAMAGE);
    s.doubted = withhold;
    for (uint32_t stream = 0; stream < STREAMS_USED; stream++) {
        CHECK_EQUAL(poll_messages(fd, stream, 0, 40, NULL), FIRST_DAMAGED);
        CHECK_EQUAL(poll_messages(fd, stream, FIRST_DAMAGED, 40, NULL), -STATUS_INVALID_MESSAGE_CHECKSUM - 1);
        CHECK_EQUAL(poll_messages(fd, stream, FIRST_DAMAGED + 2, 100, NULL), 100);
    }
    CHECK_EQUAL(s.doubts, STREAMS_USED);
    close(fd);
}

static void test_records_that_never_come_cost_a_typed_status(void) {
    int fd = login(&s);
    fill_and_convert(fd);
    helping = false;
    for (uint32_t stream = 0; stream < STREAMS_USED; stream++) {
        int waits_long = login(&s);
        CHECK_EQUAL(poll_messages(waits_long, stream, 0, 10, NULL), -STATUS_TASK_TIMEOUT - 1);
        close(waits_long);
    }
    helping = true;
    for (uint32_t stream = 0; stream < STREAMS_USED; stream++) check_poll(fd, stream, 0, 10);
    close(fd);
}

static io_engine which;

static void on_a_fresh_server(void (*test)(void), int64_t request_timeout_us) {
    s.io_engine = which;
    s.each_turn = work;
    s.bounds = (server_bounds){.request_timeout_us = request_timeout_us};
    s.doubted = NULL;
    helping = true;
    waits = forgotten = 0;
    for (uint32_t shard = 0; shard < SHARDS; shard++) masked_open(&masked[shard]);
    start_server(&s);
    test();
    stop_server(&s);
    for (uint32_t shard = 0; shard < SHARDS; shard++) masked_close(&masked[shard]);
}

#define FRESH(test, request_timeout_us) \
    static void fresh_##test(void) { on_a_fresh_server(test, request_timeout_us); }
FRESH(test_polls_wait_and_answer_on_both_shards, 0)
FRESH(test_the_offsets_of_a_group_move_behind_a_wait, 0)
FRESH(test_who_leaves_while_records_are_brought_costs_nothing, 300000)
FRESH(test_damage_in_such_a_segment_is_surveyed_and_withheld, 0)
FRESH(test_records_that_never_come_cost_a_typed_status, 300000)

static void run_on(io_engine engine) {
    which = engine;
    RUN(fresh_test_polls_wait_and_answer_on_both_shards);
    RUN(fresh_test_the_offsets_of_a_group_move_behind_a_wait);
    RUN(fresh_test_who_leaves_while_records_are_brought_costs_nothing);
    RUN(fresh_test_damage_in_such_a_segment_is_surveyed_and_withheld);
    RUN(fresh_test_records_that_never_come_cost_a_typed_status);
}

int main(void) {
    for_each_engine(run_on);
    return check_report();
}
