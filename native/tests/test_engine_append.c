/* Appends of Python that ask for something: where their messages are, to be stored at a certain offset only; and who
 * waits for messages. On partitions of the own shard and of another one. */
#include "test_engine_calls_support.h"

#define LARGE_COUNT 30u
#define LARGE_SIZE 100000u

static uint64_t ask(engine *e, uint32_t shard, uint32_t count, uint32_t size, producer_batch by) {
    uint32_t total, metadata;
    uint8_t *payload = send_payload(0, count, size, &total);
    memcpy(&metadata, payload, 4);
    partition_request what = request_of(REQUEST_SEND, stream_of(shard));
    what.count = count;
    what.by = by;
    uint64_t token = calls_append(&e->calls, shard, &what, payload + 4 + metadata, total - 4 - metadata);
    free(payload);
    return token;
}

static uint64_t expecting(engine *e, uint32_t shard, uint32_t count, uint64_t offset) {
    return ask(e, shard, count, 100, (producer_batch){.sequence = offset, .asks = APPEND_TELLS | APPEND_EXPECTS});
}

/* The timestamp of the first message. */
static uint64_t check_placed(server *serving, engine *e, uint64_t token, uint64_t first, uint32_t count) {
    event v = next_end(serving, e, token);
    CHECK_EQUAL(v.code, CALL_STATUS);
    CHECK_EQUAL(v.number, 0);
    CHECK_EQUAL(v.made.kind, PRODUCED_PLACED);
    CHECK_EQUAL(v.made.first, first);
    CHECK_EQUAL(v.made.count, count);
    return v.made.timestamp;
}

static void check_refused(server *serving, engine *e, uint64_t token, uint32_t status) {
    event v = next_end(serving, e, token);
    CHECK_EQUAL(v.code, CALL_STATUS);
    CHECK_EQUAL(v.number, status);
    CHECK_EQUAL(v.made.kind, PRODUCED_NONE);
}

/* Of the message at that offset. */
static uint64_t stored_timestamp(server *serving, engine *e, uint32_t shard, uint64_t offset) {
    uint64_t token = read_from(e, shard, offset, 1, false), timestamp = 0;
    CHECK_EQUAL(next_end(serving, e, token).code, CALL_LAST_WINDOW);
    call_window w = {0};
    CHECK(calls_window(&e->calls, token, &w) && w.length > 64);
    if (w.length > 64) memcpy(&timestamp, w.records + 32, sizeof timestamp);
    calls_took(&e->calls, token);
    return timestamp;
}

static uint64_t timestamps[SHARDS];

static void tell_where(server *serving, engine *e) {
    producer_batch tells = {.asks = APPEND_TELLS}, distinct = {.asks = APPEND_TELLS | APPEND_DISTINCT};
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        uint64_t silent = append(e, shard, 2, 100), told = ask(e, shard, 3, 100, tells);
        event v = next_end(serving, e, silent);
        CHECK_EQUAL(v.number, 0);
        CHECK_EQUAL(v.made.kind, PRODUCED_NONE);
        uint64_t at = check_placed(serving, e, told, 2, 3);
        CHECK_EQUAL(stored_timestamp(serving, e, shard, 2), at);
        CHECK_EQUAL(stored_timestamp(serving, e, shard, 4), at);
        at = check_placed(serving, e, ask(e, shard, 3, 100, distinct), 5, 3);
        for (uint64_t i = 0; i < 3; i++) CHECK_EQUAL(stored_timestamp(serving, e, shard, 5 + i), at + i);
        timestamps[shard] = at + 2;
        uint64_t together[100];
        for (unsigned i = 0; i < 100; i++) together[i] = ask(e, shard, 2, 10, distinct);
        for (unsigned i = 0; i < 100; i++) {
            at = check_placed(serving, e, together[i], 8 + 2 * i, 2);
            CHECK(at > timestamps[shard]);
            timestamps[shard] = at + 1;
        }
    }
    CHECK(until_free(serving, e));
}

static void store_what_is_expected_only(server *serving, engine *e) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        check_refused(serving, e, expecting(e, shard, 1, 0), STATUS_UNEXPECTED_OFFSET);
        check_refused(serving, e, expecting(e, shard, 1, 209), STATUS_UNEXPECTED_OFFSET);
        check_refused(serving, e, expecting(e, shard, 1, INT64_MAX), STATUS_UNEXPECTED_OFFSET);
        /* In one commit: each is judged behind those before it. */
        uint64_t tokens[] = {expecting(e, shard, 2, 208), expecting(e, shard, 1, 208), append(e, shard, 3, 100),
                             expecting(e, shard, 1, 210), expecting(e, shard, 1, 213), append(e, shard, 1, 100),
                             expecting(e, shard, 4, 215)};
        check_placed(serving, e, tokens[0], 208, 2);
        check_refused(serving, e, tokens[1], STATUS_UNEXPECTED_OFFSET);
        CHECK_EQUAL(next_end(serving, e, tokens[2]).number, 0);
        check_refused(serving, e, tokens[3], STATUS_UNEXPECTED_OFFSET);
        check_placed(serving, e, tokens[4], 213, 1);
        CHECK_EQUAL(next_end(serving, e, tokens[5]).number, 0);
        check_placed(serving, e, tokens[6], 215, 4);
    }
    CHECK(until_free(serving, e));
}

/* Large ones are written in parts, and judged before the first one. */
static void judge_large_ones(server *serving, engine *e) {
    producer_batch right = {.sequence = 219, .asks = APPEND_TELLS | APPEND_EXPECTS | APPEND_DISTINCT};
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        uint64_t tokens[] = {ask(e, shard, LARGE_COUNT, LARGE_SIZE, right),
                             ask(e, shard, LARGE_COUNT, LARGE_SIZE, right), expecting(e, shard, 1, 219),
                             expecting(e, shard, 1, 219 + LARGE_COUNT)};
        uint64_t at = check_placed(serving, e, tokens[0], 219, LARGE_COUNT);
        check_refused(serving, e, tokens[1], STATUS_UNEXPECTED_OFFSET);
        check_refused(serving, e, tokens[2], STATUS_UNEXPECTED_OFFSET);
        CHECK(check_placed(serving, e, tokens[3], 219 + LARGE_COUNT, 1) >= at + LARGE_COUNT - 1);
        for (uint64_t i = 0; i < LARGE_COUNT; i++) CHECK_EQUAL(stored_timestamp(serving, e, shard, 219 + i), at + i);
    }
    CHECK(until_free(serving, e));
    CHECK_EQUAL(e->calls.record_bytes, 0);
}

static uint64_t wait_of(engine *e, uint32_t shard, int64_t wait_us) {
    partition_request what = request_of(REQUEST_POLL, stream_of(shard));
    return calls_wait(&e->calls, shard, what.ns, what.incarnation, 0, wait_us);
}

static void tell_who_waits(server *serving, engine *e) {
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        uint64_t woken = wait_of(e, shard, WAIT_US), cancelled = wait_of(e, shard, WAIT_US);
        CHECK(woken != 0 && cancelled != 0);
        calls_cancel(&e->calls, cancelled);
        CHECK_EQUAL(next_end(serving, e, append(e, shard, 1, 10)).number, 0);
        CHECK_EQUAL(next_end(serving, e, woken).code, CALL_STATUS);
        CHECK_EQUAL(next_end(serving, e, wait_of(e, shard, 20000)).code, CALL_STATUS); /* its time is over */
        uint64_t gone = calls_wait(&e->calls, OWNER, namespace_of(stream_of(OWNER), 0, 0), 12345, 0, WAIT_US);
        CHECK_EQUAL(next_end(serving, e, gone).code, CALL_AGAIN);
    }
    CHECK(until_free(serving, e));
    for (uint32_t shard = 0; shard < SHARDS; shard++) CHECK(wait_of(e, shard, WAIT_US) != 0); /* until the end */
}

static void run_on(io_engine which) {
    static const partition_level levels[] = {LEVEL_WRITTEN, LEVEL_DURABLE};
    for (unsigned i = 0; i < 2; i++) {
        s = (server){.io_engine = which, .each_turn = do_job, .level = levels[i]};
        start_server(&s);
        in_engine(tell_where);
        in_engine(store_what_is_expected_only);
        in_engine(judge_large_ones);
        in_engine(tell_who_waits);
        stop_server(&s);
    }
}

static void test_appends_get_what_they_ask_for(void) { for_each_engine(run_on); }

int main(void) {
    RUN(test_appends_get_what_they_ask_for);
    return check_report();
}
