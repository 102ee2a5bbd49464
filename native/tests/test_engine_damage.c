/* Polls that meet damage, on both shards: they wait for a survey (the test plays it) and get an answer. */
#include <fcntl.h>

#include "test_engine_support.h"

#include "core/reads.h"

#define MESSAGES 10u
#define BODY 50u
#define VICTIM 4u

static server s;

/* A byte of the victim's payload. */
static void flip(uint32_t stream) {
    char path[160];
    snprintf(path, sizeof path, "%s/%u/%020u.log", s.directory, stream, 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;
    off_t at = VICTIM * (64 + BODY) + 70;
    CHECK_EQUAL(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    CHECK_EQUAL(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void withhold(server *of, engine *e, uint64_t ns, uint64_t segment) {
    (void)of;
    owned *o = core_owned(&e->core, ns);
    CHECK(partition_withhold(o->p, VICTIM, VICTIM + 1, false));
    reads_surveyed(o, segment);
}

static void find_nothing(server *of, engine *e, uint64_t ns, uint64_t segment) {
    (void)of;
    reads_surveyed(core_owned(&e->core, ns), segment + 1); /* polls of another segment go on waiting */
    reads_surveyed(core_owned(&e->core, ns), segment);
}

static void close_it(server *of, engine *e, uint64_t ns, uint64_t segment) {
    (void)of;
    (void)segment;
    core_partition_remove(&e->core, ns);
}

static void wait_for_doubts(unsigned count) {
    for (int i = 0; i < 5000 && s.doubts < count; i++) usleep(1000);
    CHECK(s.doubts >= count);
}

/* Four streams live on either shard; a connection of one of them asks all. */
static void fill_and_flip(int fd) {
    for (uint32_t stream = 0; stream < 4; stream++) {
        CHECK_EQUAL(send_messages(fd, stream, MESSAGES, BODY), 0);
        flip(stream);
    }
}

static void test_the_poll_that_meets_damage_waits_and_ends_before_it(void) {
    int fd = login(&s);
    fill_and_flip(fd);
    s.doubted = withhold;
    for (uint32_t stream = 0; stream < 4; stream++) {
        CHECK_EQUAL(poll_messages(fd, stream, 0, 100, NULL), VICTIM);
        CHECK_EQUAL(poll_messages(fd, stream, VICTIM, 100, NULL), -4028);
        CHECK_EQUAL(poll_messages(fd, stream, VICTIM + 1, 100, NULL), MESSAGES - VICTIM - 1);
        CHECK_EQUAL(send_messages(fd, stream, 1, BODY), 0);
    }
    CHECK_EQUAL(s.doubts, 4);
    close(fd);
}

static void test_without_a_finding_the_poll_still_ends_before_what_fails(void) {
    int fd = login(&s);
    fill_and_flip(fd);
    s.doubted = find_nothing;
    for (uint32_t stream = 0; stream < 4; stream++) {
        CHECK_EQUAL(poll_messages(fd, stream, 0, 100, NULL), VICTIM);
        CHECK_EQUAL(poll_messages(fd, stream, VICTIM, 100, NULL), -4028);
        CHECK_EQUAL(poll_messages(fd, stream, VICTIM + 1, 100, NULL), MESSAGES - VICTIM - 1);
    }
    close(fd);
}

static void send_poll(int fd, uint32_t stream) {
    uint8_t payload[64] = {1, 1, 4, 7, 0, 0, 0};
    uint32_t words[2] = {42, CODE_POLL_MESSAGES}, count = 100;
    put_address(payload + 7, stream);
    memcpy(payload + 19, "\1\0\0\0\0\1", 6);
    memcpy(payload + 33, &count, 4);
    CHECK(send(fd, words, 8, 0) == 8 && send(fd, payload, 38, 0) == 38);
}

static void test_who_leaves_while_the_poll_waits_costs_nothing(void) {
    int fd = login(&s);
    fill_and_flip(fd);
    for (uint32_t stream = 0; stream < 4; stream++) {
        int waiting = login(&s);
        send_poll(waiting, stream);
        wait_for_doubts(stream + 1);
        close(waiting);
    }
    usleep(100000);
    s.doubted = withhold;
    for (uint32_t stream = 0; stream < 4; stream++) CHECK_EQUAL(poll_messages(fd, stream, 0, 100, NULL), VICTIM);
    close(fd);
}

static void test_several_waiting_polls_go_on_together(void) {
    int fd = login(&s), waiting[8];
    fill_and_flip(fd);
    for (unsigned i = 0; i < 8; i++) {
        waiting[i] = login(&s);
        send_poll(waiting[i], i % 4);
    }
    wait_for_doubts(8);
    s.doubted = withhold;
    for (uint32_t stream = 0; stream < 4; stream++) CHECK_EQUAL(poll_messages(fd, stream, 0, 100, NULL), VICTIM);
    for (unsigned i = 0; i < 8; i++) {
        uint32_t length;
        CHECK_EQUAL(next_status(waiting[i], &length, NULL), 0);
        CHECK_EQUAL(length, 16 + VICTIM * (64 + BODY));
        close(waiting[i]);
    }
    close(fd);
}

static void test_a_partition_that_goes_answers_the_polls_that_wait(void) {
    int fd = login(&s);
    fill_and_flip(fd);
    s.doubted = close_it;
    for (uint32_t stream = 0; stream < 4; stream++) CHECK_EQUAL(poll_messages(fd, stream, 0, 100, NULL), -3008);
    close(fd);
}

static void on_a_fresh_server(io_engine which, void (*test)(void)) {
    s.io_engine = which;
    s.doubted = NULL;
    start_server(&s);
    test();
    usleep(300000); /* background syncs end */
    stop_server(&s);
}

static io_engine which;

#define FRESH(test) \
    static void fresh_##test(void) { on_a_fresh_server(which, test); }
FRESH(test_the_poll_that_meets_damage_waits_and_ends_before_it)
FRESH(test_without_a_finding_the_poll_still_ends_before_what_fails)
FRESH(test_who_leaves_while_the_poll_waits_costs_nothing)
FRESH(test_several_waiting_polls_go_on_together)
FRESH(test_a_partition_that_goes_answers_the_polls_that_wait)

static void run_on(io_engine engine) {
    which = engine;
    RUN(fresh_test_the_poll_that_meets_damage_waits_and_ends_before_it);
    RUN(fresh_test_without_a_finding_the_poll_still_ends_before_what_fails);
    RUN(fresh_test_who_leaves_while_the_poll_waits_costs_nothing);
    RUN(fresh_test_several_waiting_polls_go_on_together);
    RUN(fresh_test_a_partition_that_goes_answers_the_polls_that_wait);
}

int main(void) {
    for_each_engine(run_on);
    return check_report();
}
