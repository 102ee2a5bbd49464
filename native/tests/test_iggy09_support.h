/* Bytes of the dialect of Apache Iggy 0.9, recorded and made. */
#ifndef SHARDD_TEST_IGGY09_SUPPORT_H
#define SHARDD_TEST_IGGY09_SUPPORT_H
#include "test_net_support.h"

#include "base/bytes.h"
#include "wire/iggy09_batch.h"

/* ---- recorded bytes: hex, and [n] for n zeros ---- */

static size_t bytes_of(const char *text, uint8_t *out) {
    size_t length = 0;
    while (*text != 0) {
        unsigned value;
        int used;
        if (sscanf(text, "[%u]%n", &value, &used) == 1) {
            memset(out + length, 0, value);
            length += value;
        } else if (sscanf(text, "%2x%n", &value, &used) == 1) {
            out[length++] = (uint8_t)value;
        } else {
            abort();
        }
        text += used;
        while (*text == ' ') text++;
    }
    return length;
}

/* Two messages, ids 1 and 2 of a client; the second one with a user header. */
static const char recorded_send[] =
    "1a00000002066f726465727302066576656e747302040000000002[27]3adcc319c06006007701000000000000"
    "c5792d76122fb4c302[207]8e5ca59edbbdbfb901[27]05000000000000000000000068656c6c6f"
    "fd00a8714bcae1cc02000000000000000000000000000000010000000a0000000c0000000600000000000000"
    "00000000776f726c642102010000006b020100000076";
/* What was polled of them later. */
static const char recorded_poll[] =
    "00000000010000000000000002000000"
    "[16]5addc319c06006003adcc319c0600600770100000000000034541c7999b5a12a02[207]"
    "8e5ca59edbbdbfb901[27]05000000000000000000000068656c6c6f"
    "fd00a8714bcae1cc02000000000000000000000000000000010000000a0000000c0000000600000000000000"
    "00000000776f726c642102010000006b020100000076";
static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }
static void put_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, 8); }

/* ---- frames ---- */

static size_t put_frame(uint8_t *at, uint8_t operation, uint32_t code, uint64_t request, const uint8_t *body,
                        size_t length) {
    memset(at, 0, IGGY09_HEAD_SIZE);
    put_u32(at + 48, (uint32_t)(IGGY09_HEAD_SIZE + length));
    at[60] = 5;
    at[128] = 0x77;
    put_u64(at + 168, request);
    at[176] = operation;
    put_u64(at + 184, request > 0 ? 9 : 0);
    put_u32(at + 196, code);
    if (length > 0) memcpy(at + IGGY09_HEAD_SIZE, body, length);
    return IGGY09_HEAD_SIZE + length;
}

static void open_orders(memory_stream *m) {
    static const uint8_t key[16] = "\2\6orders\2\6events";
    route *r = routes_put(&k->routes, 0, key, 16, routes_topic(&k->routes, NS_HERE));
    r->can_send = r->can_poll = true;
    iggy09_begin_session(&m->c->large->memory, 9);
}

static size_t put_poll(uint8_t *at, uint32_t count) {
    uint8_t body[64];
    size_t length = bytes_of("01010407000000 02066f7264657273 02066576656e7473 0100000000 010000000000000000", body);
    put_u32(body + length, count);
    body[length + 4] = 0;
    return put_frame(at, IGGY09_NON_REPLICATED, 100, 2, body, length + 5);
}
#endif
