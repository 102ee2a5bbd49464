/* What a connection of 0.9 may take: turns for a large SEND, memory for what was polled. */
#include "test_iggy09_support.h"

#include "base/checksum.h"
#include "core/output.h"

#define MANY 30000u

/* A SEND of so many messages of 64 bytes that have a key in front. */
static size_t put_send(uint8_t *at, uint32_t count, uint64_t request) {
    static const char address[] = "1a000000 02066f7264657273 02066576656e7473 020400000000";
    size_t size = 0;
    uint8_t *body = at + IGGY09_HEAD_SIZE, *batch;
    size = bytes_of(address, body);
    put_u32(body + size, count);
    batch = body + size + 4;
    memset(batch, 0, IGGY09_BATCH_HEAD);
    uint8_t *frame = batch + IGGY09_BATCH_HEAD, *sums = malloc(44 + 8ull * count);
    for (uint32_t i = 0; i < count; i++, frame += IGGY09_FRAME_HEAD + 64) {
        memset(frame, 0, IGGY09_FRAME_HEAD);
        put_u32(frame + 24, i);
        put_u32(frame + 36, 64);
        memset(frame + IGGY09_FRAME_HEAD, (int)(i & 0xFF), 64);
        put_u64(frame, XXH3_64bits(frame + 8, IGGY09_FRAME_HEAD + 64 - 8));
        memcpy(sums + 44 + 8ull * i, frame, 8);
    }
    put_u64(batch + 32, (uint64_t)(frame - batch));
    put_u32(batch + 48, count);
    memcpy(sums, batch, 40);
    memcpy(sums + 40, batch + 48, 4);
    put_u64(batch + 40, XXH3_64bits(sums, 44 + 8ull * count));
    free(sums);
    size_t length = (size_t)(frame - body);
    memset(at, 0, IGGY09_HEAD_SIZE);
    uint8_t head[IGGY09_HEAD_SIZE];
    put_frame(head, IGGY09_SEND, 0, request, NULL, 0);
    memcpy(at, head, sizeof head);
    put_u32(at + 48, (uint32_t)(IGGY09_HEAD_SIZE + length));
    return IGGY09_HEAD_SIZE + length;
}

/* All but its last byte has come; then that one. */
static memory_stream *with_frame(const uint8_t *frame, size_t length) {
    memory_stream *m = dial(&dialect_iggy09, true, true);
    open_orders(m);
    feed(m, frame, length, 65536);
    return m;
}

static void test_a_large_send_is_unpacked_in_several_turns(void) {
    uint8_t *frame = malloc(8 << 20), ping[IGGY09_HEAD_SIZE];
    size_t length = put_send(frame, MANY, 1), slices = 0, turns = 0;
    put_frame(ping, IGGY09_NON_REPLICATED, 1, 1, NULL, 0);
    open_net(LEVEL_WRITTEN);
    uint64_t before = pool_used(k->pool);
    memory_stream *other = dial(&dialect_iggy09, true, true), *m = with_frame(frame, length);
    for (; m->output_length == 0 && turns < 1000; turns++) {
        pump(m);
        if (m->c->state != CONN_UNPACKING) continue;
        slices++;
        if (slices == 2) feed(other, ping, sizeof ping, 256);
        if (slices == 4) CHECK_EQUAL(other->output_length, 256); /* somebody else, between its slices */
        if (slices == 5) CHECK(net_run_bulk_frames(&n, 0) >= FRAMES_BETWEEN_LOOKS); /* the pass looks at the clock */
    }
    CHECK(slices >= 8 && slices <= MANY * 112 / 262144);
    CHECK_EQUAL(load_u32(m->output + 216), 0);
    CHECK_EQUAL(partition_next_offset(core_owned(k, NS_HERE)->p), MANY);
    hang_up(m);
    hang_up(other);
    CHECK(shares_bytes(&n) == 0 && pool_used(k->pool) == before);
    close_net();
    free(frame);
}

static void test_a_large_send_that_is_wrong_at_its_end_is_refused(void) {
    uint8_t *frame = malloc(8 << 20);
    size_t length = put_send(frame, MANY, 1);
    static const struct {
        uint32_t back, status;
    } rows[] = {{1, STATUS_INVALID_MESSAGE_CHECKSUM}, {64 + 8, STATUS_INVALID_COMMAND}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        open_net(LEVEL_WRITTEN);
        uint64_t before = pool_used(k->pool);
        frame[length - rows[i].back] ^= 1;
        memory_stream *m = with_frame(frame, length);
        await_output(m, 256);
        CHECK_EQUAL(load_u32(m->output + 216), rows[i].status);
        CHECK_EQUAL(partition_next_offset(core_owned(k, NS_HERE)->p), 0);
        frame[length - rows[i].back] ^= 1;
        hang_up(m);
        CHECK(shares_bytes(&n) == 0 && pool_used(k->pool) == before);
        close_net();
    }
    free(frame);
}

static void test_who_leaves_in_between_leaves_nothing_behind(void) {
    uint8_t *frame = malloc(8 << 20);
    size_t length = put_send(frame, MANY, 1);
    open_net(LEVEL_WRITTEN);
    uint64_t before = pool_used(k->pool);
    memory_stream *m = with_frame(frame, length);
    for (int i = 0; i < 100 && m->c->state != CONN_UNPACKING; i++) pump(m);
    CHECK(m->c->state == CONN_UNPACKING && shares_bytes(&n) > 2 * MANY * 112ull);
    hang_up(m);
    CHECK(shares_bytes(&n) == 0 && pool_used(k->pool) == before);
    CHECK_EQUAL(partition_next_offset(core_owned(k, NS_HERE)->p), 0);
    close_net();
    free(frame);
}

/* What packs has a share of its own: without any the answer waits, and holds one window. */
static void test_what_was_polled_waits_for_memory(void) {
    uint8_t *frame = malloc(8 << 20);
    size_t length = put_send(frame, 4000, 1);
    open_net(LEVEL_WRITTEN);
    memory_stream *m = with_frame(frame, length);
    await_output(m, 256);
    uint64_t before = pool_used(k->pool), made = pool_capacity(k->pool);
    for (uint32_t count = 1; count <= 2500; count += 2499) { /* of one window, of several */
        uint8_t poll[512];
        size_t answer = count == 1 ? 256 + 16 + 256 + 112 : 256 + 16 + count * (256ull + 112);
        m->output_length = 0;
        k->output.made_bytes += made;
        feed(m, poll, put_poll(poll, count), 512);
        for (int i = 0; i < 50; i++) pump(m);
        CHECK(m->c->state == CONN_WAITING && m->output_length == 0);
        k->output.made_bytes -= made;
        for (int i = 0; i < 5000 && m->output_length < answer; i++) {
            waiters_run(&k->waiters, INT64_MAX);
            pump(m);
            CHECK(k->output.made_bytes <= 128u << 10);
        }
        CHECK(m->output_length == answer && load_u32(m->output + 48) == answer);
        for (int i = 0; i < 10; i++) pump(m);
        CHECK(k->output.made_bytes == 0 && k->output.bytes == 0 && pool_used(k->pool) == before);
    }
    put_poll(frame, 2500); /* and who leaves while it waits */
    k->output.made_bytes += made;
    feed(m, frame, put_poll(frame, 2500), 512);
    for (int i = 0; i < 50; i++) pump(m);
    CHECK(m->c->state == CONN_WAITING && k->waiters.first != NULL);
    hang_up(m);
    k->output.made_bytes -= made;
    CHECK(k->waiters.first == NULL && k->output.made_bytes == 0 && k->output.bytes == 0);
    close_net();
    free(frame);
}

int main(void) {
    RUN(test_a_large_send_is_unpacked_in_several_turns);
    RUN(test_a_large_send_that_is_wrong_at_its_end_is_refused);
    RUN(test_who_leaves_in_between_leaves_nothing_behind);
    RUN(test_what_was_polled_waits_for_memory);
    return check_report();
}
