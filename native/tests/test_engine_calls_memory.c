/* Calls of Python without memory: every allocation of theirs and of the turns that carry them out fails once. Each call
 * is refused or has one end, what was acknowledged is there, and nothing stays behind. */
#include "test_failing_memory.h"

#include "test_engine_calls_support.h"

#define ROUNDS_MAX 2000

static uint64_t acknowledged[SHARDS];
static unsigned refused;

/* An append while memory may fail for the call, but not for the test. */
static uint64_t append_two(engine *e, uint32_t shard) {
    uint32_t total, metadata;
    uint8_t *payload = send_payload(0, 2, 50, &total);
    memcpy(&metadata, payload, 4);
    partition_request what = request_of(REQUEST_SEND, stream_of(shard));
    what.count = 2;
    in_turn = true;
    uint64_t token = calls_append(&e->calls, shard, &what, payload + 4 + metadata, total - 4 - metadata);
    in_turn = false;
    free(payload);
    return token;
}

/* Until it is over. The status, or the count of messages of a poll; -1: refused, or not carried out. */
static int64_t end_of(server *serving, engine *e, uint64_t token) {
    in_turn = false;
    refused += token == 0;
    for (unsigned windows = 0; token != 0 && windows < 100; windows++) {
        event v = next_end(serving, e, token);
        CHECK(v.connection == token); /* nobody waits until the test's patience ends */
        call_window w;
        if (v.code == CALL_STATUS) return (int64_t)v.number;
        if (!calls_window(&e->calls, token, &w)) return -1;
        int64_t count = (int64_t)w.whole.total_count;
        calls_took(&e->calls, token);
        if (v.code == CALL_LAST_WINDOW) return count;
        in_turn = true;
        bool goes_on = calls_next(&e->calls, token);
        in_turn = false;
        if (!goes_on) calls_cancel(&e->calls, token);
        if (!goes_on) return -1;
    }
    return -1;
}

static void live(server *serving, engine *e) {
    uint64_t appends[SHARDS] = {append_two(e, 0), append_two(e, 1)}; /* at a time: there is room for one event */
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        if (end_of(serving, e, appends[shard]) == 0) acknowledged[shard] += 2;
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        in_turn = true;
        uint64_t token = read_from(e, shard, 0, UINT32_MAX, true);
        end_of(serving, e, token);
        partition_request store = request_of(REQUEST_STORE, stream_of(shard));
        in_turn = true;
        token = calls_ask(&e->calls, shard, &store);
        end_of(serving, e, token);
        in_turn = true;
        token = read_from(e, shard, 0, 1, false);
        in_turn = false;
        calls_cancel(&e->calls, token);
    }
    CHECK(until_free(serving, e));
    CHECK_EQUAL(e->calls.record_bytes, 0);
    CHECK_EQUAL(e->core.events.promised, e->net.conns.count);
}

static void fail_each(server *serving, engine *e) {
    int n = 0;
    for (unsigned before = failures; n < ROUNDS_MAX && check_errors == 0; n++, before = failures) {
        until_failure = n;
        live(serving, e);
        until_failure = -1;
        if (failures == before) break;
    }
    fprintf(stderr, "-- %d allocations, %u calls refused\n", n, refused);
    CHECK(n > 4 && n < ROUNDS_MAX);
    CHECK(refused > 0);
}

static void find_all(server *serving, engine *e) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        CHECK_EQUAL(end_of(serving, e, append(e, shard, 1, 50)), 0);
        CHECK(end_of(serving, e, read_from(e, shard, 0, UINT32_MAX, false)) > (int64_t)acknowledged[shard]);
        CHECK(acknowledged[shard] > 0);
    }
}

static void keep_arrays_small(server *of, engine *e) {
    (void)of;
    e->core.commit.capacity = e->core.events.capacity = 1;
}

static void run_at(io_engine which, partition_level level) {
    memset(acknowledged, 0, sizeof acknowledged);
    refused = 0;
    s = (server){.io_engine = which, .level = level, .each_turn = do_job, .opened = keep_arrays_small};
    start_server(&s);
    in_engine(fail_each);
    in_engine(find_all);
    stop_server(&s);
}

static void run_on(io_engine which) {
    run_at(which, LEVEL_WRITTEN);
    run_at(which, LEVEL_DURABLE);
}

static void test_each_allocation_may_fail(void) { for_each_engine(run_on); }

int main(void) {
    RUN(test_each_allocation_may_fail);
    return check_report();
}
