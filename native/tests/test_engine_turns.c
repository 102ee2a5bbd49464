/* Turns of the loop: who has asked one thing does not wait for the work of a crowd that has sent ahead, counted in the
 * crowd's requests that were done between a PING and its answer. */
#include "test_engine_support.h"

#define CROWD 300u
#define PINGS 8192u
#define LARGE 100000u
#define ROUNDS 40
#define TURNS_MAX 10000

static server s;
static int fds[CROWD];
static int asker;
static _Atomic int wanted; /* rounds that the engine's thread has still to do */
static uint64_t worst, all_done;
static const void *ahead; /* what each of the crowd sends first */
static size_t ahead_bytes;

static uint64_t work_done(const engine *e) { return e->core.counters.frames + e->core.counters.reads_cached; }

static void one_turn(server *serving, engine *e) {
    engine_turn(e, -1, 0);
    for (uint32_t i = 0; i < e->core.events.count; i++) {
        event v = e->core.events.list[i];
        answer(serving, e, &v);
    }
    events_clear(&e->core.events);
}

/* In the thread of the engine, so that nothing happens between the count and the question. */
static void ask(server *serving, engine *e) {
    if (wanted == 0) return;
    for (unsigned i = 0; ahead != NULL && i < CROWD; i++)
        CHECK(send(fds[i], ahead, ahead_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) > 8);
    ahead = NULL;
    uint32_t ping[2] = {4, CODE_PING}, head[2];
    uint64_t before = work_done(e);
    CHECK(send(asker, ping, sizeof ping, MSG_NOSIGNAL) == sizeof ping);
    int turns = 0;
    while (recv(asker, head, sizeof head, MSG_DONTWAIT) != sizeof head && ++turns < TURNS_MAX) one_turn(serving, e);
    CHECK(turns < TURNS_MAX);
    uint64_t done = work_done(e) - before;
    if (done > worst) worst = done;
    all_done += done;
    wanted--;
}

static void measure(const void *first, size_t bytes) {
    worst = all_done = 0;
    ahead = first;
    ahead_bytes = bytes;
    wanted = ROUNDS;
    for (int patience = 0; wanted > 0 && patience < 2000; patience++) usleep(10000);
    CHECK_EQUAL(wanted, 0);
}

static void open_crowd(bool with_login) {
    int small = 4096;
    asker = login(&s);
    for (unsigned i = 0; i < CROWD; i++) {
        fds[i] = with_login ? login(&s) : dial(&s);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
}

static void close_crowd(void) {
    for (unsigned i = 0; i < CROWD; i++) close(fds[i]);
    close(asker);
}

static void beside_pings(bool with_login) {
    static uint32_t pings[2 * PINGS];
    for (unsigned n = 0; n < PINGS; n++) pings[2 * n] = 4, pings[2 * n + 1] = CODE_PING;
    open_crowd(with_login);
    measure(pings, sizeof pings);
    CHECK(all_done > 2 * ROUNDS); /* the crowd was at work */
    /* A turn of 5 ms would do thousands; with a login ten thousand, as a window of PINGs costs little. */
    CHECK(worst < (with_login ? 3000 : 1000));
    close_crowd();
}

static void test_a_crowd_without_a_login_that_sends_ahead_holds_nobody_up(void) { beside_pings(false); }

static void test_a_crowd_with_a_login_that_sends_ahead_holds_nobody_up(void) { beside_pings(true); }

static void test_large_answers_hold_nobody_up(void) {
    uint8_t frame[46] = {0}, *payload = frame + 8;
    uint32_t words[2] = {42, CODE_POLL_MESSAGES}, count = 30, stream = 0;
    memcpy(frame, words, 8);
    memcpy(payload, "\1\1\4\7\0\0\0", 7);
    while (hash_owner(namespace_of(stream, 0, 0), SHARDS) != 0) stream++;
    open_crowd(true);
    for (int n = 0; n < 30; n++) CHECK_EQUAL(send_messages(asker, stream, 1, LARGE), 0);
    put_address(payload + 7, stream);
    memcpy(payload + 19, "\1\0\0\0\0\1", 6);
    memcpy(payload + 33, &count, 4);
    measure(frame, sizeof frame);
    CHECK(all_done > 2 * ROUNDS);
    CHECK(worst < CROWD + 50); /* the crowd's requests have come at once, its windows are read in slices */
    close_crowd();
}

static void run_on(io_engine which) {
    s.io_engine = which;
    s.alone = true;
    s.each_turn = ask;
    start_server(&s);
    RUN(test_a_crowd_without_a_login_that_sends_ahead_holds_nobody_up);
    RUN(test_a_crowd_with_a_login_that_sends_ahead_holds_nobody_up);
    RUN(test_large_answers_hold_nobody_up);
    stop_server(&s);
}

int main(void) {
    raise_descriptor_limit();
    for_each_engine(run_on);
    return check_report();
}
