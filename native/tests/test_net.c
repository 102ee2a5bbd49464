/* The seams under a connection: a stream that is fed by memory, byte by byte, and a second dialect. Connections and
 * core without engine, sockets or workers. */
#include "test_net_support.h"

#include "net/moving.h"
#include "wire/classic_request.h"
#include "wire/frame_limits.h"

/* ---- classic frames ---- */

static void classic_route(void) {
    const uint8_t key[12] = "\1\4\1\0\0\0\1\4\1\0\0\0";
    route *r = routes_put(&k->routes, 0, key, 12, routes_topic(&k->routes, NS_HERE));
    r->can_send = r->can_poll = true;
}

static size_t put_head(uint8_t *at, uint32_t code, uint32_t payload) {
    uint32_t words[2] = {payload + 4, code};
    memcpy(at, words, 8);
    return 8;
}

static uint8_t *classic_send(uint32_t size, size_t *length) {
    uint32_t metadata = 12 + 6 + 4, count = 1, end = RECORD_BYTES(size), payload = 4 + metadata + 16 + end;
    uint8_t *frame = calloc(1, 8 + payload), *at = frame + put_head(frame, CODE_SEND_MESSAGES, payload);
    memcpy(at, &metadata, 4);
    memcpy(at + 4, "\1\4\1\0\0\0\1\4\1\0\0\0\2\4\0\0\0\0", 18);
    memcpy(at + 22, &count, 4);
    memcpy(at + 30, &end, 4);
    put_record(at + 42, size, 'z');
    *length = 8 + payload;
    return frame;
}

static size_t classic_poll(uint8_t *at, uint64_t offset, uint32_t count) {
    put_head(at, CODE_POLL_MESSAGES, 38);
    memcpy(at + 8, "\1\1\4\7\0\0\0\1\4\1\0\0\0\1\4\1\0\0\0\1\0\0\0\0\1", 25);
    memcpy(at + 33, &offset, 8);
    memcpy(at + 41, &count, 4);
    at[45] = 0;
    return 46;
}

static void test_frames_that_come_and_go_byte_by_byte_are_answered(void) {
    open_net(LEVEL_WRITTEN);
    classic_route();
    memory_stream *m = dial(&dialect_classic, true, true);
    m->send_max = 1;
    size_t length;
    uint8_t *frame = classic_send(200, &length), poll[46], ping[8];
    feed(m, frame, length, 1);
    await_output(m, 8);
    put_head(ping, CODE_PING, 0);
    feed(m, ping, 8, 1);
    await_output(m, 16);
    feed(m, poll, classic_poll(poll, 0, 10), 1);
    await_output(m, 16 + 24 + RECORD_BYTES(200));
    static const uint8_t good[16] = {0};
    CHECK(memcmp(m->output, good, 16) == 0);
    uint32_t words[2] = {0, 16 + RECORD_BYTES(200)}, count = 1;
    CHECK(memcmp(m->output + 16, words, 8) == 0);
    CHECK(memcmp(m->output + 36, &count, 4) == 0);
    CHECK(m->output[40 + 64] == 'z' && m->output[40 + RECORD_BYTES(200) - 1] == 'z');
    free(frame);
    hang_up(m);
    close_net();
}

/* A frame larger than what came with its head goes on into a private block. */
static void test_a_large_frame_over_a_stream_of_memory_arrives_whole(void) {
    open_net(LEVEL_DURABLE);
    classic_route();
    memory_stream *m = dial(&dialect_classic, true, true);
    size_t length;
    uint8_t *frame = classic_send(300000, &length);
    feed(m, frame, length, 7001);
    await_output(m, 8);
    static const uint8_t good[8] = {0};
    CHECK(memcmp(m->output, good, 8) == 0);
    CHECK_EQUAL(partition_next_offset(core_owned(k, NS_HERE)->p), 1);
    CHECK_EQUAL(shares_bytes(&n), 0);
    free(frame);
    hang_up(m);
    close_net();
}

static void test_a_connection_that_closes_while_its_answer_waits_for_the_device_is_freed(void) {
    open_net(LEVEL_DURABLE);
    classic_route();
    memory_stream *m = dial(&dialect_classic, true, true);
    size_t length;
    uint8_t *frame = classic_send(100, &length);
    feed(m, frame, length, UINT32_MAX);
    net_run_prompt_frames(&n, INT64_MAX);
    commit_all(k);
    CHECK(m->output_length == 8 || conn_waits_for(m->c, WAITS_FOR_DEVICE));
    free(frame);
    hang_up(m);
    CHECK_EQUAL(n.conns.count, 0);
    close_net();
}

/* ---- a second dialect: u8 operation, u16 length, payload; answers are lines of text ---- */

enum { TOY_HEAD = 3, TOY_LINE = 11 };

static bool toy_read_head(const uint8_t *head, frame_head *out) {
    static const uint8_t operations[] = "?.>< ";
    const uint8_t *found = memchr(operations, head[0], 4);
    if (found == NULL) return false;
    static const request_kind kinds[] = {REQUEST_OTHER, REQUEST_PING, REQUEST_SEND, REQUEST_POLL};
    uint32_t length = head[1] | (uint32_t)head[2] << 8;
    *out = (frame_head){.code = head[0],
                        .kind = kinds[found - operations],
                        .length = length,
                        .length_max = 1000,
                        .drained_max = 2000,
                        .anonymous_max = 10};
    return true;
}

/* SEND: key of the route, one record. POLL: key of the route, offset as one byte. */
static uint32_t toy_parse(const frame_head *head, uint8_t *payload, request *out) {
    out->kind = head->kind;
    if (head->kind == REQUEST_SEND) {
        if (head->length < 1 + 64) return STATUS_INVALID_COMMAND;
        out->send = (send_request){.address = payload,
                                   .stream_length = 1,
                                   .partitioning = PARTITIONING_PARTITION_ID,
                                   .count = 1,
                                   .messages = payload + 1,
                                   .messages_length = head->length - 1};
        return 0;
    }
    if (head->length != 2) return STATUS_INVALID_COMMAND;
    out->consumer = (consumer_request){.kind = CONSUMER_PLAIN,
                                       .address = payload,
                                       .stream_length = 1,
                                       .strategy = 1,
                                       .value = payload[1],
                                       .count = 100};
    return 0;
}

static size_t toy_line(uint8_t *at, char what, uint32_t number) {
    char line[TOY_LINE + 1];
    snprintf(line, sizeof line, "%c %08u\n", what, number);
    memcpy(at, line, TOY_LINE);
    return TOY_LINE;
}

static size_t toy_status(const uint8_t *head, uint8_t *at, uint32_t status) {
    (void)head;
    return toy_line(at, status == 0 ? '+' : '-', status);
}
static size_t toy_committed(const uint8_t *head, uint8_t *at, uint64_t offset) {
    (void)head;
    return toy_line(at, 'c', (uint32_t)offset);
}
static size_t toy_empty(const uint8_t *head, uint8_t *at) {
    (void)head;
    return toy_line(at, 'm', 0);
}
static size_t toy_payload(const uint8_t *head, uint8_t *at, uint32_t status, size_t length) {
    (void)head, (void)status;
    return toy_line(at, 'b', (uint32_t)length);
}
static void toy_poll_head(uint8_t *at, const poll_summary *whole) { toy_line(at, 'm', (uint32_t)whole->total_count); }

static const dialect toy = {.name = "toy",
                            .number = 200,
                            .answer_bytes = TOY_LINE,
                            .head_bytes = TOY_HEAD,
                            .poll_head_bytes = TOY_LINE,
                            .send_bytes_max = 1000,
                            .read_head = toy_read_head,
                            .parse = toy_parse,
                            .put_status = toy_status,
                            .put_committed = toy_committed,
                            .put_empty_poll = toy_empty,
                            .put_payload_head = toy_payload,
                            .put_poll_head = toy_poll_head};

static void toy_ask(memory_stream *m, char operation, const uint8_t *payload, uint16_t length) {
    uint8_t frame[4096] = {(uint8_t)operation, (uint8_t)length, (uint8_t)(length >> 8)};
    if (length > 0) memcpy(frame + TOY_HEAD, payload, length);
    feed(m, frame, TOY_HEAD + (size_t)length, 5);
}

/* The next line of its output. */
static void expect(memory_stream *m, unsigned line, const char *text) {
    await_output(m, (line + 1) * TOY_LINE);
    CHECK(memcmp(m->output + line * TOY_LINE, text, TOY_LINE) == 0);
}

/* The core carries both out on the same partition: what one appends the other reads, each with its own heads. */
static void test_a_second_dialect_shares_partitions_with_the_first(void) {
    open_net(LEVEL_WRITTEN);
    classic_route();
    memory_stream *of_toy = dial(&toy, true, true), *of_classic = dial(&dialect_classic, true, true);
    uint8_t payload[1 + RECORD_BYTES(20)] = {'h'}, from_start[2] = {'h', 0}, nowhere[2] = {'x', 0}, poll[46];
    put_record(payload + 1, 20, 't');
    toy_ask(of_toy, '.', NULL, 0);
    expect(of_toy, 0, "+ 00000000\n");
    toy_ask(of_toy, '>', payload, sizeof payload);
    expect(of_toy, 1, "+ 00000000\n");
    toy_ask(of_toy, '>', payload, 3);
    expect(of_toy, 2, "- 00000003\n");
    toy_ask(of_toy, '<', from_start, 2);
    await_output(of_toy, 4 * TOY_LINE + RECORD_BYTES(20));
    CHECK(memcmp(of_toy->output + 3 * TOY_LINE, "m 00000001\n", TOY_LINE) == 0);
    CHECK(of_toy->output[4 * TOY_LINE + 64] == 't');
    feed(of_classic, poll, classic_poll(poll, 0, 10), 46);
    await_output(of_classic, 24 + RECORD_BYTES(20));
    CHECK(memcmp(of_classic->output + 24, of_toy->output + 4 * TOY_LINE, RECORD_BYTES(20)) == 0);
    events_clear(&k->events);
    toy_ask(of_toy, '<', nowhere, 2); /* Python is asked by the bytes of the address */
    for (int i = 0; i < 100 && k->events.count == 0; i++) pump(of_toy);
    REQUIRE(k->events.count == 1);
    CHECK_EQUAL(k->events.list[0].kind, EVENT_ROUTE_MISS);
    CHECK_EQUAL(k->events.list[0].code, '<');
    CHECK_EQUAL(k->events.list[0].data[0], 'x');
    hang_up(of_toy);
    hang_up(of_classic);
    close_net();
}

static void test_limits_are_those_of_the_dialect(void) {
    open_net(LEVEL_WRITTEN);
    memory_stream *m = dial(&toy, true, true);
    uint8_t payload[3000] = {'h'};
    toy_ask(m, '>', payload, 1500); /* drained */
    expect(m, 0, "- 00000003\n");
    toy_ask(m, '.', NULL, 0);
    expect(m, 1, "+ 00000000\n");
    uint8_t head[TOY_HEAD] = {'>', 2500 & 255, 2500 >> 8};
    feed(m, head, TOY_HEAD, TOY_HEAD); /* beyond what is drained: the connection ends */
    expect(m, 2, "- 00000003\n");
    for (int i = 0; i < 100 && m->c->state != CONN_LINGERING; i++) pump(m);
    CHECK(m->c->state == CONN_LINGERING);
    hang_up(m);
    memory_stream *anonymous = dial(&toy, true, false);
    toy_ask(anonymous, '>', payload, 500);
    expect(anonymous, 0, "- 00000040\n");
    hang_up(anonymous);
    close_net();
}

/* ---- moving ---- */

static struct {
    remote remote; /* first */
    caller from;
    bool asked;
} away;

static bool forward(remote *r, uint32_t shard, const partition_request *what, const caller *from) {
    (void)r, (void)shard, (void)what;
    away.from = *from;
    away.asked = true;
    return true;
}

static unsigned moves_after(bool movable, unsigned requests) {
    open_net(LEVEL_WRITTEN);
    memset(&away, 0, sizeof away);
    away.remote.forward = forward;
    k->remote = &away.remote;
    memory_stream *m = dial(&toy, movable, true);
    uint8_t elsewhere[2] = {'e', 0};
    unsigned moves = 0;
    for (unsigned i = 1; i <= requests && moves == 0; i++) {
        toy_ask(m, '<', elsewhere, 2);
        for (int j = 0; j < 1000 && !away.asked; j++) pump(m);
        CHECK(away.asked);
        away.asked = false;
        caller_status(&away.from, STATUS_PARTITION_NOT_FOUND);
        await_output(m, i * TOY_LINE);
        for (uint32_t v = 0; v < k->events.count; v++) moves += k->events.list[v].kind == EVENT_MOVE;
        events_clear(&k->events);
    }
    hang_up(m);
    close_net();
    return moves;
}

static void test_a_stream_that_cannot_move_is_forwarded_for_ever(void) {
    CHECK_EQUAL(moves_after(true, MOVE_AFTER_REQUESTS - 1), 0);
    CHECK_EQUAL(moves_after(true, MOVE_AFTER_REQUESTS), 1);
    CHECK_EQUAL(moves_after(false, 5 * MOVE_AFTER_REQUESTS), 0);
}

static void test_what_moves_is_unpacked_as_it_was_packed_and_nothing_else_is(void) {
    static uint8_t bytes[MOVING_BYTES_MAX], session[MOVING_SESSION_MAX], unread[RECEIVE_BUFFER_SIZE];
    memset(session, 's', sizeof session);
    memset(unread, 'u', sizeof unread);
    moving m = {.dialect = &dialect_classic,
                .user_id = 77,
                .authenticated = true,
                .address = "[::1]:8090",
                .session = session,
                .unread = unread,
                .session_length = sizeof session,
                .unread_length = sizeof unread};
    moving got;
    size_t length = moving_pack(&m, bytes);
    REQUIRE(length > sizeof session + sizeof unread && length <= sizeof bytes);
    REQUIRE(moving_unpack(bytes, length, &got));
    CHECK(got.dialect == m.dialect && got.user_id == 77 && got.authenticated);
    CHECK(strcmp(got.address, m.address) == 0);
    CHECK(got.session_length == sizeof session && memcmp(got.session, session, sizeof session) == 0);
    CHECK(got.unread_length == sizeof unread && memcmp(got.unread, unread, sizeof unread) == 0);
    CHECK(!moving_unpack(bytes, length - 1, &got) && !moving_unpack(bytes, 8, &got));
    m.session_length = m.unread_length = 5;
    length = moving_pack(&m, bytes);
    for (size_t i = 0; i < 16; i++) { /* lengths, flags and dialect: whatever is accepted stays inside */
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes[i] ^= (uint8_t)(1u << bit);
            if (moving_unpack(bytes, length, &got))
                CHECK(got.session >= bytes && got.unread + got.unread_length == bytes + length && got.dialect != NULL);
            bytes[i] ^= (uint8_t)(1u << bit);
        }
    }
    m.session_length = MOVING_SESSION_MAX + 1;
    CHECK_EQUAL(moving_pack(&m, bytes), 0);
    m.dialect = &toy; /* no worker knows it */
    m.session_length = 0;
    CHECK(!moving_unpack(bytes, moving_pack(&m, bytes), &got));
}

int main(void) {
    RUN(test_frames_that_come_and_go_byte_by_byte_are_answered);
    RUN(test_a_large_frame_over_a_stream_of_memory_arrives_whole);
    RUN(test_a_connection_that_closes_while_its_answer_waits_for_the_device_is_freed);
    RUN(test_a_second_dialect_shares_partitions_with_the_first);
    RUN(test_limits_are_those_of_the_dialect);
    RUN(test_a_stream_that_cannot_move_is_forwarded_for_ever);
    RUN(test_what_moves_is_unpacked_as_it_was_packed_and_nothing_else_is);
    return check_report();
}
