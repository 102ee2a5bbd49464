/* Python as a caller (engine/calls.h): on partitions of its own shard and of another one, over limits, cancelled, and
 * with owners that die. Everything happens in the thread of shard 0. */
#include "test_engine_calls_support.h"

#define LARGE_COUNT 30u
#define LARGE_SIZE 60000u
#define OWNER_GENERATION 1u /* of the owner that the test plays (take_all) */

static void check_status(server *serving, engine *e, uint64_t token, uint32_t status) {
    CHECK(token != 0);
    event v = next_end(serving, e, token);
    CHECK_EQUAL(v.code, CALL_STATUS);
    CHECK_EQUAL(v.number, status);
}

/* ---- what must hold ---- */

static void append_and_read(server *serving, engine *e) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        check_status(serving, e, append(e, shard, 3, 100), 0);
        uint64_t token = read_from(e, shard, 0, 10, true);
        CHECK_EQUAL(next_end(serving, e, token).code, CALL_LAST_WINDOW);
        call_window w;
        REQUIRE(calls_window(&e->calls, token, &w));
        CHECK_EQUAL(w.length, 3 * 164);
        CHECK_EQUAL(w.whole.total_count, 3);
        CHECK_EQUAL(w.whole.total_bytes, 3 * 164);
        CHECK_EQUAL(w.whole.current_offset, 2);
        for (uint32_t i = 0; i < 3; i++) CHECK_EQUAL(w.records[i * 164 + 64], 'a' + i);
        calls_took(&e->calls, token);
        CHECK(!calls_window(&e->calls, token, &w));
        partition_request next = request_of(REQUEST_POLL, stream_of(shard)); /* behind what was committed */
        next.strategy = POLL_NEXT;
        next.count = 10;
        token = calls_ask(&e->calls, shard, &next);
        CHECK_EQUAL(next_end(serving, e, token).code, CALL_LAST_WINDOW);
        REQUIRE(calls_window(&e->calls, token, &w));
        CHECK_EQUAL(w.whole.total_count + w.length, 0);
        calls_took(&e->calls, token);
        partition_request store = request_of(REQUEST_STORE, stream_of(shard));
        store.value = 1;
        check_status(serving, e, calls_ask(&e->calls, shard, &store), 0);
        store.value = 3;
        check_status(serving, e, calls_ask(&e->calls, shard, &store), 4100);
    }
    CHECK(until_free(serving, e));
}

static void refuse_bad_batches(server *serving, engine *e) {
    uint8_t batch[16 + 64 + 10] = {0};
    partition_request what = request_of(REQUEST_SEND, stream_of(OWNER));
    check_status(serving, e, calls_append(&e->calls, OWNER, &what, batch, sizeof batch), 4009);
    what.count = 6;
    check_status(serving, e, calls_append(&e->calls, OWNER, &what, batch, sizeof batch), 3);
    what.count = 1;
    check_status(serving, e, calls_append(&e->calls, OWNER, &what, batch, sizeof batch), 4036);
    batch[0] = 1;
    check_status(serving, e, calls_append(&e->calls, OWNER, &what, batch, sizeof batch), 4031);
    check_status(serving, e, calls_append(&e->calls, OWNER, &what, batch, e->calls.batch_bytes_max + 1), 3);
    for (uint32_t shard = 0; shard < SHARDS; shard++) { /* another partition in the same place */
        what = request_of(REQUEST_POLL, stream_of(shard));
        what.incarnation += 100;
        CHECK_EQUAL(next_end(serving, e, calls_ask(&e->calls, shard, &what)).code, CALL_AGAIN);
    }
    CHECK_EQUAL(e->calls.record_bytes, 0);
    CHECK(until_free(serving, e));
}

static void copy_in_steps(server *serving, engine *e) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        uint32_t total, metadata;
        uint8_t *payload = send_payload(0, 1, 1000, &total);
        memcpy(&metadata, payload, 4);
        const uint8_t *batch = payload + 4 + metadata;
        uint32_t length = total - 4 - metadata;
        partition_request what = request_of(REQUEST_SEND, stream_of(shard));
        what.count = 1;
        uint64_t used = pool_used(e->core.pool), given_up = calls_prepare(&e->calls, shard, &what, batch, length);
        CHECK_EQUAL(calls_batch_bytes(&e->calls, given_up), length);
        CHECK(calls_fill(&e->calls, given_up, batch, 100));
        calls_cancel(&e->calls, given_up);
        CHECK(!calls_fill(&e->calls, given_up, batch, 100));
        CHECK(!calls_fill(&e->calls, 0, batch, 100));
        CHECK_EQUAL(pool_used(e->core.pool), used);
        uint64_t token = calls_prepare(&e->calls, shard, &what, batch, length);
        unsigned steps = 1;
        while (calls_fill(&e->calls, token, batch, 100)) steps++;
        CHECK_EQUAL(steps, (1000 + 64 + 99) / 100);
        CHECK_EQUAL(calls_batch_bytes(&e->calls, token), 0);
        check_status(serving, e, token, 0);
        free(payload);
    }
    CHECK(until_free(serving, e));
}

/* Reads `count` large messages; the number of windows. */
static unsigned read_windows(server *serving, engine *e, uint32_t shard, uint64_t *bytes) {
    unsigned windows = 0;
    uint64_t token = read_from(e, shard, 0, UINT32_MAX, false), total = 0;
    for (uint32_t code = CALL_WINDOW; code == CALL_WINDOW && windows < 1000; windows++) {
        code = next_end(serving, e, token).code;
        call_window w;
        if (!calls_window(&e->calls, token, &w)) return 0;
        CHECK(w.length <= POLL_WINDOW_BYTES);
        *bytes += w.length;
        total = w.whole.total_bytes;
        uint64_t reads = e->core.counters.reads_cached;
        for (unsigned i = 0; code == CALL_WINDOW && i < 5; i++) turn(serving, e); /* nothing comes unasked */
        if (shard == OWNER) CHECK_EQUAL(e->core.counters.reads_cached, reads);
        if (code == CALL_WINDOW) CHECK(calls_next(&e->calls, token));
        else calls_took(&e->calls, token);
    }
    CHECK_EQUAL(*bytes, total);
    return windows;
}

static void give_one_window_at_a_time(server *serving, engine *e) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        check_status(serving, e, append(e, shard, LARGE_COUNT, LARGE_SIZE), 0);
        uint64_t bytes = 0, output = e->core.output.bytes;
        CHECK(read_windows(serving, e, shard, &bytes) > LARGE_COUNT * LARGE_SIZE / POLL_WINDOW_BYTES);
        CHECK(bytes >= LARGE_COUNT * (uint64_t)LARGE_SIZE);
        CHECK_EQUAL(e->core.output.bytes, output);
    }
    CHECK(until_free(serving, e));
}

static void free_what_is_cancelled(server *serving, engine *e) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        uint64_t used = pool_used(e->core.pool);
        calls_cancel(&e->calls, append(e, shard, 3, 100)); /* is appended all the same */
        uint64_t window = read_from(e, shard, 0, UINT32_MAX, false);
        CHECK_EQUAL(next_end(serving, e, window).code, CALL_WINDOW);
        calls_cancel(&e->calls, window);
        calls_cancel(&e->calls, window);
        calls_cancel(&e->calls, read_from(e, shard, 0, 1, false));
        uint64_t last = read_from(e, shard, 0, 1, false);
        CHECK_EQUAL(next_end(serving, e, last).code, CALL_LAST_WINDOW);
        calls_cancel(&e->calls, last); /* before it was taken */
        CHECK(until_free(serving, e));
        CHECK_EQUAL(pool_used(e->core.pool), used);
        CHECK_EQUAL(e->calls.record_bytes, 0);
        CHECK_EQUAL(e->core.events.promised, e->net.conns.count);
        CHECK(calls_next(&e->calls, window)); /* unknown by now */
    }
}

static void run_whole_on(io_engine which) {
    s = (server){.io_engine = which, .each_turn = do_job};
    start_server(&s);
    int fd = login(&s);
    in_engine(append_and_read);
    for (uint32_t shard = 0; shard < SHARDS; shard++) CHECK_EQUAL(poll_messages(fd, stream_of(shard), 0, 10, NULL), 3);
    in_engine(refuse_bad_batches);
    in_engine(give_one_window_at_a_time);
    in_engine(free_what_is_cancelled);
    in_engine(copy_in_steps);
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        CHECK_EQUAL(poll_messages(fd, stream_of(shard), 0, 1000, NULL), 3 + LARGE_COUNT + 3 + 1);
    close(fd);
    stop_server(&s);
}

static void test_calls_do_what_a_connection_does(void) { for_each_engine(run_whole_on); }

static void hold_for_the_device(server *serving, engine *e) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        check_status(serving, e, append(e, shard, 3, 100), 0);
        partition_request store = request_of(REQUEST_STORE, stream_of(shard));
        check_status(serving, e, calls_ask(&e->calls, shard, &store), 0);
        uint64_t token = append(e, shard, 3, 100), waits = e->core.counters.syncs;
        calls_cancel(&e->calls, token);
        CHECK(until_free(serving, e));
        CHECK(shard != OWNER || waits > 0);
    }
}

static void run_durable_on(io_engine which) {
    s = (server){.io_engine = which, .each_turn = do_job, .level = LEVEL_DURABLE};
    start_server(&s);
    in_engine(hold_for_the_device);
    stop_server(&s);
}

static void test_calls_wait_for_the_device_at_durable(void) { for_each_engine(run_durable_on); }

/* ---- the other shard never runs ---- */

static uint64_t tokens[CALLS_MAX];

/* What its successor would find in the ring; how many of them are sends. */
static unsigned take_all(const engine *e) {
    links owner = e->core.links;
    owner.shard = OTHER;
    owner.generation = OWNER_GENERATION;
    descriptor d;
    unsigned sends = 0;
    while (links_take(&owner, OWNER, &d)) sends += d.operation == LINK_SEND;
    return sends;
}

static void hit_the_limits(server *serving, engine *e) {
    uint64_t used = pool_used(e->core.pool);
    links_admit(&e->core.links, OTHER, OWNER_GENERATION);
    for (uint32_t i = 0; i < CALLS_MAX; i++) {
        tokens[i] = read_from(e, OTHER, 0, 1, false);
        CHECK(tokens[i] != 0);
    }
    CHECK_EQUAL(read_from(e, OTHER, 0, 1, false), 0);
    CHECK_EQUAL(append(e, OWNER, 1, 1), 0);
    CHECK_EQUAL(e->calls.refused, 2);
    turn(serving, e);
    uint32_t kept = 0, told = 0;
    for (uint32_t i = 0; i < CALLS_MAX; i++) kept += calls_cancel(&e->calls, tokens[i]);
    CHECK_EQUAL(kept, calls_under_way(&e->calls));
    CHECK(kept <= LINK_SLOTS); /* those for which there was no place have left */
    CHECK(until_free(serving, e));
    for (uint32_t i = 0; i < CALLS_MAX; i++) {
        event last = ends[(uint32_t)tokens[i]];
        told += last.connection == tokens[i] && last.code == CALL_LET_GO;
    }
    CHECK_EQUAL(told, kept);
    CHECK_EQUAL(take_all(e), 0);
    uint64_t begun = 0, most = pool_capacity(e->core.pool) / CALLS_POOL_PART;
    while (begun < 1000 && append(e, OTHER, 1, (1u << 20) - 64) != 0) begun++;
    CHECK_EQUAL(begun, most >> 20);
    CHECK_EQUAL(e->calls.record_bytes, most);
    CHECK_EQUAL(append(e, OTHER, 1, 1), 0);
    CHECK(until_free(serving, e)); /* 11001 for each */
    CHECK_EQUAL(pool_used(e->core.pool), used);
    CHECK_EQUAL(take_all(e), 0);
}

static void tell_of_dead_owners(server *serving, engine *e) {
    check_status(serving, e, append(e, OTHER, 1, 1), STATUS_SHARD_COMMUNICATION_ERROR); /* it had not taken it */
    CHECK_EQUAL(take_all(e), 0);
    peers_up(&e->peers, OTHER, OWNER_GENERATION);
    uint64_t taken = append(e, OTHER, 1, 1), cancelled = append(e, OTHER, 1, 1);
    calls_cancel(&e->calls, cancelled);
    CHECK_EQUAL(take_all(e), 2);
    peers_down(&e->peers, OTHER);
    CHECK_EQUAL(next_end(serving, e, taken).code, CALL_GONE);
    CHECK(until_free(serving, e));
}

static void test_calls_to_a_dead_owner_end_with_what_is_known(void) {
    s = (server){.io_engine = IO_ENGINE_EPOLL, .each_turn = do_job, .alone = true};
    start_server(&s);
    in_engine(hit_the_limits);
    in_engine(tell_of_dead_owners);
    stop_server(&s);
}

static void lose_the_owner_of_a_window(server *serving, engine *e) {
    check_status(serving, e, append(e, OTHER, LARGE_COUNT, LARGE_SIZE), 0);
    uint64_t asked = read_from(e, OTHER, 0, UINT32_MAX, false), left = read_from(e, OTHER, 0, UINT32_MAX, false);
    CHECK_EQUAL(next_end(serving, e, asked).code, CALL_WINDOW);
    while (ends[(uint32_t)left].connection != left) turn(serving, e);
    peers_down(&e->peers, OTHER);
    CHECK_EQUAL(calls_under_way(&e->calls), 2);
    CHECK(calls_next(&e->calls, asked));
    CHECK_EQUAL(next_end(serving, e, asked).code, CALL_GONE);
    calls_cancel(&e->calls, left);
    CHECK_EQUAL(calls_under_way(&e->calls), 0);
    peers_up(&e->peers, OTHER, serving->engines[OTHER]->core.links.generation);
}

static void test_a_window_of_an_owner_that_dies_is_the_last_one(void) {
    s = (server){.io_engine = IO_ENGINE_EPOLL, .each_turn = do_job};
    start_server(&s);
    in_engine(lose_the_owner_of_a_window);
    stop_server(&s);
}

int main(void) {
    RUN(test_calls_do_what_a_connection_does);
    RUN(test_calls_wait_for_the_device_at_durable);
    RUN(test_calls_to_a_dead_owner_end_with_what_is_known);
    RUN(test_a_window_of_an_owner_that_dies_is_the_last_one);
    return check_report();
}
