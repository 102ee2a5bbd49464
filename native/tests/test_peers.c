/* What becomes of forwarded requests when their owner dies, in every order in which asker, owner and successor may
 * hear of it. The asker is a shard with connections; the owner on the other one is the test, and has only the rings. */
#include "test_net_window_support.h"

#include "peer/peers.h"

enum { OWNER = 1, FIRST = 1, SECOND, THIRD }; /* its generations */

static peers p;
static links owner;

static void next_owner(void) {
    int pools[2] = {descriptors[1], descriptors[1]}, bells[2] = {descriptors[2], descriptors[2]};
    if (owner.region != NULL) links_close(&owner);
    if (links_open(&owner, OWNER, 2, descriptors[0], pools, bells, POOL_BYTES) != 0) abort();
}

static memory_stream *open_peers(void) {
    int send_fds[2] = {-1, -1};
    memory_stream *m = open_one(LEVEL_WRITTEN);
    if (peers_open(&p, k, &n, -1, send_fds) != 0) abort();
    next_owner();
    peers_up(&p, OWNER, FIRST);
    return m;
}

static memory_stream *dial_again(void) {
    memory_stream *m = dial(&dialect_classic, false, true);
    pump(m);
    return m;
}

static void close_peers(void) {
    CHECK_EQUAL(n.conns.count, 0);
    CHECK_EQUAL(p.asked.capacity - p.asked.free_count, 0);
    links_close(&owner);
    peers_close(&p);
    close_net();
}

static void expect_closed(memory_stream *m) {
    pump_often(m);
    CHECK(m->closed);
    free(m);
}

/* Sends of these sizes, all at once. */
static void send_all(memory_stream *m, const uint32_t *sizes, size_t count) {
    for (size_t i = 0; i < count; i++) put_send(ELSEWHERE, sizes[i]);
    receive_all(m);
    CHECK_EQUAL(in_work(m), count);
}

#define SEND(m, ...) send_all(m, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

/* The size of the next send that the owner gets; 0: none. */
static uint32_t take(descriptor *d) {
    return links_take(&owner, 0, d) ? (uint32_t)d->lease_length - RECORD_BYTES(0) : 0;
}

static uint32_t taken(void) {
    descriptor d;
    return take(&d);
}

static uint32_t taken_and_answered(void) {
    descriptor d;
    uint32_t size = take(&d);
    if (size == 0) return 0;
    descriptor end = {.operation = LINK_STATUS,
                      .connection = d.connection,
                      .sequence = d.sequence,
                      .requester_generation = d.generation};
    CHECK(links_post(&owner, 0, &end, NULL));
    peers_serve(&p, INT64_MAX);
    return size;
}

/* ---- what must hold ---- */

static void test_a_successor_carries_out_nothing_behind_what_died_with_its_predecessor(void) {
    memory_stream *m = open_peers();
    SEND(m, 10, 20);
    CHECK_EQUAL(taken(), 10);
    next_owner();
    CHECK_EQUAL(taken(), 0); /* the asker has not heard yet */
    peers_down(&p, OWNER);
    CHECK_EQUAL(taken(), 0);
    expect_closed(m);
    m = dial_again();
    SEND(m, 10, 20); /* the client does not know what became of them */
    peers_up(&p, OWNER, SECOND);
    CHECK_EQUAL(taken_and_answered(), 10);
    CHECK_EQUAL(taken_and_answered(), 20);
    CHECK_EQUAL(taken(), 0);
    EXPECT(m, 0, 0);
    hang_up(m);
    close_peers();
}

/* Otherwise the test above sees nothing. */
static void test_canary_a_successor_that_is_admitted_at_once_carries_out_what_is_behind(void) {
    memory_stream *m = open_peers();
    SEND(m, 10, 20);
    CHECK_EQUAL(taken(), 10);
    next_owner();
    links_admit(&k->links, OWNER, SECOND);
    CHECK_EQUAL(taken(), 20);
    peers_down(&p, OWNER);
    expect_closed(m);
    close_peers();
}

static void test_what_a_dead_owner_had_not_taken_waits_for_its_successor_in_order(void) {
    memory_stream *m = open_peers(), *later = dial_again();
    SEND(m, 10, 20);
    next_owner();
    CHECK_EQUAL(taken(), 0);
    peers_down(&p, OWNER);
    SEND(later, 30, 40);
    CHECK_EQUAL(taken(), 0);
    peers_up(&p, OWNER, SECOND);
    k->now_us += 2 * HELD_REQUEST_US;
    forward_check_times(&p); /* nothing is given up any more */
    for (uint32_t size = 10; size <= 40; size += 10) CHECK_EQUAL(taken_and_answered(), size);
    EXPECT(m, 0, 0);
    EXPECT(later, 0, 0);
    hang_up(m);
    hang_up(later);
    close_peers();
}

static void test_what_waits_too_long_for_a_successor_is_never_carried_out(void) {
    memory_stream *m = open_peers();
    SEND(m, 10, 20);
    peers_down(&p, OWNER);
    next_owner();
    k->now_us += 2 * HELD_REQUEST_US;
    forward_check_times(&p);
    peers_up(&p, OWNER, SECOND);
    CHECK_EQUAL(taken(), 0);
    EXPECT(m, STATUS_SHARD_COMMUNICATION_ERROR);
    CHECK_EQUAL(m->c->state, CONN_LINGERING);
    hang_up(m);
    close_peers();
}

/* Who does not read the refusal sends all of it again. */
static void test_nothing_that_was_sent_behind_a_refusal_is_carried_out(void) {
    memory_stream *m = open_peers();
    SEND(m, 10, 20);
    peers_down(&p, OWNER);
    next_owner();
    k->now_us += 2 * HELD_REQUEST_US;
    forward_check_times(&p);
    peers_up(&p, OWNER, SECOND);
    put_send(ELSEWHERE, 30); /* was on its way */
    receive_all(m);
    EXPECT(m, STATUS_SHARD_COMMUNICATION_ERROR);
    CHECK_EQUAL(taken(), 0);
    hang_up(m);
    close_peers();
}

/* All that was said of the second process arrives when the third one runs already. */
static void test_two_deaths_in_a_row_are_dealt_with_one_after_the_other(void) {
    memory_stream *m = open_peers(), *untouched = dial_again();
    SEND(m, 10, 20);
    peers_down(&p, OWNER);
    next_owner();
    peers_up(&p, OWNER, SECOND);
    CHECK_EQUAL(taken(), 10);
    next_owner();
    SEND(untouched, 30, 40);
    CHECK_EQUAL(taken(), 0);
    peers_down(&p, OWNER);
    expect_closed(m);
    CHECK_EQUAL(taken(), 0);
    peers_up(&p, OWNER, THIRD);
    CHECK_EQUAL(taken_and_answered(), 30);
    CHECK_EQUAL(taken_and_answered(), 40);
    CHECK_EQUAL(taken(), 0);
    EXPECT(untouched, 0, 0);
    hang_up(untouched);
    close_peers();
}

static void test_a_process_that_died_before_it_was_announced_took_nothing(void) {
    memory_stream *m = open_peers();
    SEND(m, 10, 20);
    next_owner();
    next_owner();
    peers_down(&p, OWNER);
    peers_up(&p, OWNER, SECOND);
    CHECK_EQUAL(taken(), 0);
    peers_down(&p, OWNER);
    CHECK(!m->c->closing);
    CHECK_EQUAL(taken(), 0);
    peers_up(&p, OWNER, THIRD);
    CHECK_EQUAL(taken_and_answered(), 10);
    CHECK_EQUAL(taken_and_answered(), 20);
    EXPECT(m, 0, 0);
    hang_up(m);
    close_peers();
}

/* Its client has gone away before the death was known, and sends both again elsewhere. */
static void test_what_nobody_waits_for_is_not_left_to_a_successor(void) {
    memory_stream *m = open_peers();
    SEND(m, 10, 20);
    CHECK_EQUAL(taken(), 10);
    next_owner();
    conn_close(m->c);
    pump_often(m);
    CHECK(!m->closed); /* the owner may read them, for all that is known */
    peers_down(&p, OWNER);
    expect_closed(m);
    peers_up(&p, OWNER, SECOND);
    CHECK_EQUAL(taken(), 0);
    close_peers();
}

static void test_an_asker_that_starts_again_finds_its_owner_and_nothing_of_its_own(void) {
    memory_stream *m = open_peers();
    SEND(m, 10, 20);
    links asker;
    int pools[2] = {descriptors[1], descriptors[1]}, bells[2] = {descriptors[2], descriptors[2]};
    CHECK_EQUAL(links_open(&asker, 0, 2, descriptors[0], pools, bells, POOL_BYTES), 0);
    descriptor d, ping = {.operation = LINK_SEND, .sequence = 99};
    CHECK(links_post(&asker, OWNER, &ping, NULL));
    for (int i = 0; i < 2; i++) CHECK(links_take(&owner, 0, &d) && links_lease(&owner, 0, &d) == NULL);
    CHECK(links_take(&owner, 0, &d) && d.sequence == 99 && links_lease(&owner, 0, &d) != NULL);
    links_close(&asker);
    peers_down(&p, OWNER);
    expect_closed(m);
    close_peers();
}

/* Windows have names: those of a process that died are none of its successor. */
static void test_what_is_said_of_a_dead_owners_window_does_not_end_a_poll_of_its_successor(void) {
    memory_stream *m = open_peers();
    for (int i = 0; i < 8; i++) { /* more than one window */
        put_send(HERE, 40000);
        receive_all(m);
        pump_often(m);
    }
    descriptor poll = {.operation = LINK_POLL, .ns = NS_HERE, .incarnation = 1, .count = 9, .strategy = POLL_FIRST}, d;
    descriptor old = {.operation = LINK_NEXT, .handle = 1, .flags = LINK_FLAG_STOP};
    CHECK(links_post(&owner, 0, &poll, NULL));
    CHECK(links_post(&owner, 0, &old, NULL));
    bool more = true;
    for (int windows = 0; more && windows < 3; windows++) {
        peers_serve(&p, INT64_MAX);
        pump_often(m);
        more = links_take(&owner, 0, &d) && d.operation == LINK_WINDOW && d.flags & LINK_FLAG_MORE;
        CHECK_EQUAL(more, windows == 0);
        descriptor next = {.operation = LINK_NEXT, .handle = d.handle};
        CHECK(links_post(&owner, 0, &next, NULL));
    }
    CHECK_EQUAL(d.operation, LINK_WINDOW);
    peers_serve(&p, INT64_MAX);
    hang_up(m);
    close_peers();
}

int main(void) {
    RUN(test_a_successor_carries_out_nothing_behind_what_died_with_its_predecessor);
    RUN(test_canary_a_successor_that_is_admitted_at_once_carries_out_what_is_behind);
    RUN(test_what_a_dead_owner_had_not_taken_waits_for_its_successor_in_order);
    RUN(test_what_waits_too_long_for_a_successor_is_never_carried_out);
    RUN(test_nothing_that_was_sent_behind_a_refusal_is_carried_out);
    RUN(test_two_deaths_in_a_row_are_dealt_with_one_after_the_other);
    RUN(test_a_process_that_died_before_it_was_announced_took_nothing);
    RUN(test_what_nobody_waits_for_is_not_left_to_a_successor);
    RUN(test_an_asker_that_starts_again_finds_its_owner_and_nothing_of_its_own);
    RUN(test_what_is_said_of_a_dead_owners_window_does_not_end_a_poll_of_its_successor);
    return check_report();
}
