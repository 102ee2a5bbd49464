/* For test_engine_calls*.c: calls that are made in the thread of shard 0, and how they end. */
#ifndef SHARDD_TEST_ENGINE_CALLS_SUPPORT_H
#define SHARDD_TEST_ENGINE_CALLS_SUPPORT_H
#include "test_engine_support.h"

#include "base/clock.h"
#include "core/reads.h"

#define WAIT_US 20000000
#define OWNER 0u
#define OTHER 1u

static server s;
static void (*_Atomic job)(server *serving, engine *e);
static event ends[CALLS_MAX]; /* the last event of each call, by its place */

static void do_job(server *serving, engine *e) {
    if (e->core.links.shard != OWNER || job == NULL) return;
    job(serving, e);
    job = NULL;
}

static void in_engine(void (*work)(server *serving, engine *e)) {
    job = work;
    for (int i = 0; i < 60000 && job != NULL; i++) usleep(1000);
    CHECK(job == NULL);
}

static void turn(server *serving, engine *e) {
    engine_turn(e, -1, 2000);
    for (uint32_t i = 0; i < e->core.events.count; i++) {
        event v = e->core.events.list[i];
        if (v.kind == EVENT_CALL) ends[(uint32_t)v.connection] = v;
        else answer(serving, e, &v);
    }
    events_clear(&e->core.events);
}

/* The next event of a call, or the last one that nobody has asked for. */
static event next_end(server *serving, engine *e, uint64_t token) {
    event *last = &ends[(uint32_t)token];
    for (int64_t until = clock_monotonic_us() + WAIT_US; clock_monotonic_us() < until; turn(serving, e)) {
        event found = *last;
        if (found.connection != token) continue;
        *last = (event){0};
        return found;
    }
    return (event){.code = 99, .number = 99};
}

static bool until_free(server *serving, engine *e) {
    for (int64_t until = clock_monotonic_us() + WAIT_US; clock_monotonic_us() < until;) {
        if (calls_under_way(&e->calls) == 0) return true;
        turn(serving, e);
    }
    return false;
}

static uint32_t stream_of(uint32_t shard) {
    uint32_t stream = 0;
    while (hash_owner(namespace_of(stream, 0, 0), SHARDS) != shard) stream++;
    return stream;
}

static partition_request request_of(request_kind kind, uint32_t stream) {
    return (partition_request){.kind = kind,
                               .ns = namespace_of(stream, 0, 0),
                               .incarnation = stream + 1,
                               .strategy = POLL_OFFSET,
                               .consumer_kind = OFFSET_CONSUMER,
                               .consumer_id = 5};
}

/* `count` messages of `size` bytes as calls_append takes them. */
static uint64_t append(engine *e, uint32_t shard, uint32_t count, uint32_t size) {
    uint32_t total, metadata;
    uint8_t *payload = send_payload(0, count, size, &total);
    memcpy(&metadata, payload, 4);
    partition_request what = request_of(REQUEST_SEND, stream_of(shard));
    what.count = count;
    uint64_t token = calls_append(&e->calls, shard, &what, payload + 4 + metadata, total - 4 - metadata);
    free(payload);
    return token;
}

static uint64_t read_from(engine *e, uint32_t shard, uint64_t offset, uint32_t count, bool auto_commit) {
    partition_request what = request_of(REQUEST_POLL, stream_of(shard));
    what.value = offset;
    what.count = count;
    what.auto_commit = auto_commit;
    return calls_ask(&e->calls, shard, &what);
}
#endif
