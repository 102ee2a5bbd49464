/* The load engine of `shardd bench`: what actors send is whole, what they are told may be anything. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../load/dialect.h"
#include "../load/wire.h"

enum { SENDS_SLOT = SLOTS_FIXED, POLLS_SLOT, SLOTS_COUNT, PAYLOAD_BYTES = 300, GARBAGE_RUNS = 300, OTHERS_MAX = 16 };

static _Atomic int64_t slots[SLOTS_COUNT];
static char payload[PAYLOAD_BYTES];

typedef struct peer {
    int fd;
    uint64_t seed;         /* of garbage; 0: right answers */
    uint32_t closes_after; /* so many requests, the last of which it does not answer; 0: never */
    uint32_t status;       /* of the last of these, if it is answered */
    uint32_t sends, messages, wrong;
} peer;

static uint64_t random_next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static bool read_all(int fd, uint8_t *bytes, size_t length) {
    for (size_t have = 0; have < length;) {
        ssize_t n = recv(fd, bytes + have, length - have, 0);
        if (n <= 0) return false;
        have += (size_t)n;
    }
    return true;
}

static void answer_garbage(peer *p) {
    uint8_t bytes[256];
    size_t length = 1 + random_next(&p->seed) % sizeof bytes;
    for (size_t i = 0; i < length; i++) bytes[i] = (uint8_t)random_next(&p->seed);
    memset(bytes, 0, length < 4 ? length : 4); /* a status that is good */
    if (length > 8) memset(bytes + 5, 0, 3);
    send(p->fd, bytes, length, MSG_NOSIGNAL);
}

/* The batch of a send has the records that its index says. */
static bool is_whole(const uint8_t *frame, uint32_t length, uint32_t *count) {
    const uint8_t *at = frame + 8 + get_u32(frame + 4);
    *count = get_u32(at - 4);
    const uint8_t *index = at, *records = at + (size_t)*count * INDEX_ENTRY;
    uint32_t end = 0;
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t size = get_u32(records + end + RECORD_PAYLOAD_LENGTH_AT);
        if (memcmp(records + end + RECORD_HEAD, payload, size) != 0) return false;
        end += RECORD_HEAD + size;
        if (get_u32(index + (size_t)i * INDEX_ENTRY + 4) != end) return false;
    }
    return records + end == frame + length;
}

static void *serve(void *argument) {
    peer *p = argument;
    static _Thread_local uint8_t frame[1 << 20];
    uint8_t head[4], done[REPLY_HEAD] = {0};
    while (read_all(p->fd, head, sizeof head)) {
        uint32_t length = get_u32(head), count = 0;
        if (length > sizeof frame || !read_all(p->fd, frame, length)) break;
        if (p->seed != 0) {
            answer_garbage(p);
            break; /* what looks like the head of a longer answer would be waited for */
        }
        p->sends++;
        if (!is_whole(frame, length, &count)) p->wrong++;
        p->messages += count;
        if (p->sends == p->closes_after) {
            put_u32(done, p->status);
            if (p->status != 0) send(p->fd, done, sizeof done, MSG_NOSIGNAL);
            break;
        }
        send(p->fd, done, sizeof done, MSG_NOSIGNAL);
    }
    shutdown(p->fd, SHUT_RDWR);
    return NULL;
}

/* Runs one actor; what it has recorded is in `messages`. */
static bool run_one(actor_plan plan, peer *p, uint64_t *messages, load_run *run) {
    int pair[2];
    pthread_t thread;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) abort();
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    p->fd = pair[1];
    plan.fd = (uint64_t)pair[0];
    if (pthread_create(&thread, NULL, serve, p) != 0) abort();
    *run = (load_run){.slots = slots, .payload = payload};
    actor a;
    bool done = actor_open(&a, &plan, NULL, run, 7) && load_run_actors(run, &a, 1);
    *messages = 0;
    for (size_t i = 0; i < a.records.count; i++) *messages += a.records.items[i].messages;
    actor_close(&a);
    shutdown(pair[0], SHUT_RDWR);
    pthread_join(thread, NULL);
    close(pair[0]);
    close(pair[1]);
    return done;
}

/* Connections that are opened in place of broken ones, as shardd/benchmark/reopen.py does. */
typedef struct others {
    int broken[2], opened[2]; /* pipes */
    uint32_t closes_after;    /* of each but the last */
    uint32_t status;          /* of the first */
    uint32_t count, most;
    peer peers[OTHERS_MAX];
    pthread_t threads[OTHERS_MAX];
    int ends[OTHERS_MAX];
} others;

static void *reopen(void *argument) {
    others *o = argument;
    uint32_t number;
    while (read(o->broken[0], &number, sizeof number) == (ssize_t)sizeof number) {
        int pair[2];
        if (o->count == OTHERS_MAX || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) abort();
        fcntl(pair[0], F_SETFL, O_NONBLOCK);
        o->peers[o->count] = (peer){.fd = pair[1], .closes_after = o->count + 1 < o->most ? o->closes_after : 0};
        o->ends[o->count] = pair[0];
        if (pthread_create(&o->threads[o->count], NULL, serve, &o->peers[o->count]) != 0) abort();
        o->count++;
        opened answer = {.actor = number, .fd = (uint64_t)pair[0]};
        if (write(o->opened[1], &answer, sizeof answer) != (ssize_t)sizeof answer) abort();
    }
    return NULL;
}

/* One actor whose connections break; all that its peers have seen is in `first`. */
static bool run_broken(actor_plan plan, others *o, peer *first, uint64_t *messages, load_run *run) {
    int pair[2];
    pthread_t thread, opener;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || pipe(o->broken) != 0 || pipe(o->opened) != 0) abort();
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    fcntl(o->opened[0], F_SETFL, O_NONBLOCK);
    *first = (peer){.fd = pair[1], .closes_after = o->closes_after, .status = o->status};
    plan.fd = (uint64_t)pair[0];
    if (pthread_create(&thread, NULL, serve, first) != 0 || pthread_create(&opener, NULL, reopen, o) != 0) abort();
    *run = (load_run){.slots = slots, .payload = payload, .reopens = true};
    run->broken_fd = o->broken[1];
    run->opened_fd = o->opened[0];
    actor a;
    bool done = actor_open(&a, &plan, NULL, run, 7) && load_run_actors(run, &a, 1);
    *messages = 0;
    for (size_t i = 0; i < a.records.count; i++) *messages += a.records.items[i].messages;
    actor_close(&a);
    close(o->broken[1]);
    pthread_join(opener, NULL);
    shutdown(pair[0], SHUT_RDWR);
    pthread_join(thread, NULL);
    close(pair[0]);
    close(pair[1]);
    for (uint32_t i = 0; i < o->count; i++) {
        shutdown(o->ends[i], SHUT_RDWR);
        pthread_join(o->threads[i], NULL);
        first->sends += o->peers[i].sends;
        first->messages += o->peers[i].messages;
        first->wrong += o->peers[i].wrong;
        close(o->ends[i]);
        close(o->peers[i].fd);
    }
    close(o->broken[0]);
    close(o->opened[0]);
    close(o->opened[1]);
    return done;
}

static void set_slots(int64_t sends, int64_t polls) {
    atomic_store(&slots[SLOT_STOP], 0);
    atomic_store(&slots[SLOT_START_NS], (int64_t)now_ns());
    atomic_store(&slots[SLOT_SENDERS], sends > 0);
    atomic_store(&slots[SENDS_SLOT], sends);
    atomic_store(&slots[POLLS_SLOT], polls);
}

static actor_plan sender(uint64_t depth, uint64_t batch_min, uint64_t payload_min) {
    return (actor_plan){.sends = 1,
                        .batch_min = batch_min,
                        .batch_max = 10,
                        .payload_min = payload_min,
                        .payload_max = PAYLOAD_BYTES,
                        .partitions = 1,
                        .sends_slot = SENDS_SLOT,
                        .polls_slot = POLLS_SLOT,
                        .depth = depth,
                        .records_max = 10000};
}

static void test_frames_are_whole_whatever_depth_and_sizes(void) {
    const uint64_t depths[] = {1, 2, 17}, batches[] = {10, 1}, sizes[] = {PAYLOAD_BYTES, 0};
    for (unsigned i = 0; i < 12; i++) {
        peer p = {0};
        uint64_t messages;
        load_run run;
        set_slots(200, 0);
        REQUIRE(run_one(sender(depths[i % 3], batches[i / 3 % 2], sizes[i / 6]), &p, &messages, &run));
        CHECK_EQUAL(p.wrong, 0);
        CHECK_EQUAL(p.sends, 200);
        CHECK_EQUAL(p.messages, messages);
        CHECK_EQUAL(atomic_load(&slots[SLOT_SENDERS]), 0);
    }
}

static void test_an_open_loop_sends_all_that_is_due(void) {
    peer p = {0};
    uint64_t messages;
    load_run run;
    actor_plan plan = sender(4, 10, PAYLOAD_BYTES);
    plan.open_loop = 1;
    plan.send_rate = 6000000; /* 2,000 batches each second */
    set_slots(100, 0);
    REQUIRE(run_one(plan, &p, &messages, &run));
    CHECK_EQUAL(messages, 1000);
    CHECK(run.wall_ns >= 45000000u);
}

static void test_records_have_a_bound(void) {
    peer p = {0};
    uint64_t messages;
    load_run run;
    actor_plan plan = sender(1, 10, PAYLOAD_BYTES);
    plan.records_max = 1024;
    set_slots(5000, 0);
    CHECK(!run_one(plan, &p, &messages, &run));
    CHECK(strstr(run.fault, "more requests") != NULL);
    CHECK_EQUAL(messages, 1024 * 10);
    CHECK_EQUAL(atomic_load(&slots[SLOT_STOP]), 1);
}

static void test_what_a_broken_connection_has_not_answered_is_sent_again(void) {
    const uint64_t depths[] = {1, 4}, batches[] = {10, 1}, sizes[] = {PAYLOAD_BYTES, 0};
    for (unsigned i = 0; i < 8; i++) {
        others o = {.closes_after = 30, .most = 5};
        peer seen;
        uint64_t messages;
        load_run run;
        set_slots(200, 0);
        REQUIRE(run_broken(sender(depths[i % 2], batches[i / 2 % 2], sizes[i / 4]), &o, &seen, &messages, &run));
        CHECK_EQUAL(o.count, 5);
        CHECK_EQUAL(run.broken, 5);
        CHECK(run.sent_again >= 5 && run.sent_again <= 5 * depths[i % 2]);
        CHECK_EQUAL(seen.wrong, 0);
        CHECK_EQUAL(seen.sends, 205); /* each peer saw one that it did not answer */
        CHECK(seen.messages > messages);
        CHECK(run.interrupted_ns > 0);
        if (batches[i / 2 % 2] == 10) CHECK_EQUAL(messages, 2000);
    }
}

static void test_a_request_that_breaks_every_connection_ends_the_run(void) {
    others o = {.closes_after = 1, .most = OTHERS_MAX};
    peer seen;
    uint64_t messages;
    load_run run;
    set_slots(200, 0);
    CHECK(!run_broken(sender(1, 10, PAYLOAD_BYTES), &o, &seen, &messages, &run));
    CHECK(strstr(run.fault, "closed a connection") != NULL);
    CHECK_EQUAL(o.count, BREAKS_MAX);
    CHECK_EQUAL(messages, 0);
}

static void test_a_request_is_sent_again_when_its_shard_was_away_and_for_no_other_status(void) {
    const uint32_t statuses[] = {11001, 12001, 6};
    for (unsigned i = 0; i < 3; i++) {
        others o = {.closes_after = 30, .most = 1, .status = statuses[i]};
        peer seen;
        uint64_t messages;
        load_run run;
        set_slots(100, 0);
        bool done = run_broken(sender(1, 10, PAYLOAD_BYTES), &o, &seen, &messages, &run);
        CHECK_EQUAL(done, statuses[i] != 6);
        CHECK_EQUAL(run.broken, 0);
        CHECK_EQUAL(run.refused, statuses[i] != 6);
        CHECK_EQUAL(run.sent_again, run.refused);
        if (done) CHECK_EQUAL(messages, 1000);
        else CHECK(strstr(run.fault, "status 6") != NULL);
    }
}

static void test_garbage_ends_a_run_and_nothing_else(void) {
    for (uint64_t seed = 1; seed <= GARBAGE_RUNS; seed++) {
        peer p = {.seed = seed};
        uint64_t messages;
        load_run run;
        actor_plan plan = sender(1, 1, 0);
        plan.sends = seed % 2;
        plan.polls = 1 - seed % 2;
        plan.dialect = seed / 2 % DIALECTS;
        plan.group = seed % 3;
        set_slots(plan.sends ? 3 : 0, 3);
        bool done = run_one(plan, &p, &messages, &run);
        CHECK(done || run.fault[0] != 0);
    }
}

int main(void) {
    for (size_t i = 0; i < sizeof payload; i++) payload[i] = (char)('a' + i % 26);
    RUN(test_frames_are_whole_whatever_depth_and_sizes);
    RUN(test_an_open_loop_sends_all_that_is_due);
    RUN(test_records_have_a_bound);
    RUN(test_what_a_broken_connection_has_not_answered_is_sent_again);
    RUN(test_a_request_that_breaks_every_connection_ends_the_run);
    RUN(test_a_request_is_sent_again_when_its_shard_was_away_and_for_no_other_status);
    RUN(test_garbage_ends_a_run_and_nothing_else);
    return check_report();
}
