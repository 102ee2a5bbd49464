/* A connection that sends several frames at once; the owner of what is elsewhere is the test. */
#ifndef SHARDD_TEST_NET_WINDOW_SUPPORT_H
#define SHARDD_TEST_NET_WINDOW_SUPPORT_H
#include "test_net_support.h"

#include "net/conn/places.h"
#include "wire/classic_request.h"
#include "wire/frame_limits.h"

enum { HERE = 1, ELSEWHERE = 2, NOWHERE = 3, ASKED_MAX = 64 };

/* ---- frames, one behind the other ---- */

static uint8_t frames[1 << 16];
static size_t frames_length;

static inline uint8_t *put_head(uint32_t code, uint32_t payload) {
    uint32_t words[2] = {payload + 4, code};
    uint8_t *at = frames + frames_length;
    memset(at, 0, 8 + payload);
    memcpy(at, words, 8);
    frames_length += 8 + payload;
    return at + 8;
}

static inline void put_ping(void) { put_head(CODE_PING, 0); }

static inline void put_send(uint8_t stream, uint32_t size) {
    uint32_t metadata = 12 + 6 + 4, count = 1, end = RECORD_BYTES(size);
    uint8_t *at = put_head(CODE_SEND_MESSAGES, 4 + metadata + 16 + end);
    memcpy(at, &metadata, 4);
    memcpy(at + 4, "\1\4\1\0\0\0\1\4\1\0\0\0\2\4\0\0\0\0", 18);
    at[6] = stream;
    memcpy(at + 22, &count, 4);
    memcpy(at + 30, &end, 4);
    put_record(at + 42, size, 'z');
}

static inline void put_consumer(uint8_t *at, uint8_t stream) {
    memcpy(at, "\1\1\4\7\0\0\0\1\4\1\0\0\0\1\4\1\0\0\0\1\0\0\0\0", 24);
    at[9] = stream;
}

static inline void put_poll(uint8_t stream) {
    uint8_t *at = put_head(CODE_POLL_MESSAGES, 38);
    put_consumer(at, stream);
    at[24] = 1;
    at[33] = 100;
}

static inline void put_store(uint8_t stream, uint8_t offset) {
    uint8_t *at = put_head(CODE_STORE_CONSUMER_OFFSET, 32);
    put_consumer(at, stream);
    at[24] = offset;
}

/* ---- the owner of what is elsewhere ---- */

static struct {
    remote remote; /* first */
    struct {
        pending pending; /* first */
        caller from;
        request_kind kind;
        bool cancelled;
    } asked[ASKED_MAX];
    uint32_t count;
    bool full;
} away;

static void cancel(pending *p) {
    bool *cancelled = &((__typeof__(away.asked[0]) *)p)->cancelled;
    *cancelled = true;
}

static bool forward(remote *r, uint32_t shard, const partition_request *what, const caller *from) {
    static const pending_calls calls = {.cancel = cancel};
    (void)r, (void)shard;
    if (away.full || away.count == ASKED_MAX) return false;
    __typeof__(away.asked[0]) *a = &away.asked[away.count++];
    a->pending = (pending){.calls = &calls, .waits_for = WAITS_FOR_PEER, .memory_shard = 1};
    a->from = *from;
    a->kind = what->kind;
    a->cancelled = false;
    caller_parked(from, &a->pending);
    return true;
}

static inline caller asked(uint32_t number) {
    caller from = away.asked[number].from;
    caller_parked(&from, NULL);
    return from;
}

static inline void answer(uint32_t number, uint32_t status) {
    caller from = asked(number);
    caller_status(&from, status);
}

/* ---- a connection ---- */

static void route_to(uint8_t stream, uint64_t ns, uint32_t owner) {
    uint8_t key[12] = "\1\4\0\0\0\0\1\4\1\0\0\0";
    key[2] = stream;
    route_topic *topic = routes_topic_put(&k->routes, 0, ns, 1);
    topic->partitions[0] = (route_partition){.ns = ns, .incarnation = 1, .owner = owner};
    route *r = routes_put(&k->routes, 0, key, 12, topic);
    r->can_send = r->can_poll = true;
}

static memory_stream *open_one(partition_level level) {
    open_net(level);
    memset(&away, 0, sizeof away);
    away.remote.forward = forward;
    k->remote = &away.remote;
    route_to(HERE, NS_HERE, 0);
    route_to(ELSEWHERE, NS_ELSEWHERE, 1);
    frames_length = 0;
    memory_stream *m = dial(&dialect_classic, false, true);
    pump(m);
    return m;
}

static inline void close_one(memory_stream *m) {
    hang_up(m);
    CHECK_EQUAL(n.conns.count, 0);
    CHECK_EQUAL(shares_bytes(&n), 0);
    close_net();
}

/* All frames in one receive, and no commit yet. */
static void receive_all(memory_stream *m) {
    feed(m, frames, frames_length, UINT32_MAX);
    frames_length = 0;
    k->now_us = clock_monotonic_us();
    net_run_prompt_frames(&n, INT64_MAX);
    net_run_bulk_frames(&n, INT64_MAX);
}

static inline uint32_t in_work(const memory_stream *m) { return m->c->state == CONN_WINDOW ? m->c->window->count : 0; }

/* Its answers so far, which are statuses alone. */
static inline void expect(memory_stream *m, const uint32_t *statuses, size_t count) {
    await_output(m, count * 8);
    for (size_t i = 0; i < count; i++) {
        uint32_t words[2] = {statuses[i], 0};
        CHECK(memcmp(m->output + i * 8, words, 8) == 0);
    }
}

#define EXPECT(m, ...) expect(m, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

static inline uint64_t messages_here(void) { return partition_next_offset(core_owned(k, NS_HERE)->p); }

static inline void pump_often(memory_stream *m) {
    for (int i = 0; i < 20; i++) pump(m);
}
#endif
