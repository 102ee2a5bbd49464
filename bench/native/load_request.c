#include "load.h"

#include <stdio.h>
#include <stdlib.h>

#include "wire.h"

static uint64_t random_next(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint8_t *allocate(size_t bytes) {
    uint8_t *data = calloc(1, bytes);
    if (data == NULL) {
        fprintf(stderr, "load: out of memory for %zu bytes\n", bytes);
        exit(1);
    }
    return data;
}

static uint8_t *put_messages(uint8_t *at, const load_options *o, uint64_t origin_us) {
    uint32_t size = RECORD_HEAD + o->payload_bytes;
    for (uint32_t i = 0; i < o->batch; i++) {
        put_u32(at, 0);
        put_u32(at + 4, (i + 1) * size); /* END of the message; relative offset and timestamp stay 0 */
        at += INDEX_ENTRY;
    }
    for (uint32_t i = 0; i < o->batch; i++) {
        put_u64(at + 40, origin_us);
        put_u32(at + RECORD_PAYLOAD_LENGTH_AT, o->payload_bytes);
        for (uint32_t j = 0; j < o->payload_bytes; j++) at[RECORD_HEAD + j] = (uint8_t)('a' + (i + j) % 26);
        at += size;
    }
    return at;
}

static void build_send(request *r, const load_options *o, uint32_t stream) {
    uint32_t partitioning = 2 + (o->keyed ? KEY_BYTES : o->balanced ? 0 : 4);
    uint32_t metadata = 2 * NUMERIC_IDENTIFIER + partitioning + 4;
    r->length = REQUEST_HEAD + 4 + metadata + o->batch * (INDEX_ENTRY + RECORD_HEAD + o->payload_bytes);
    r->bytes = allocate(r->length);
    uint8_t *at = put_u32(r->bytes, r->length - 4);
    at = put_u32(at, CODE_SEND);
    at = put_u32(at, metadata);
    at = put_identifier(at, stream);
    at = put_identifier(at, o->topic);
    if (o->keyed) {
        at = put_u8(at, 3);
        at = put_u8(at, KEY_BYTES);
        r->key_at = (uint32_t)(at - r->bytes);
        at += KEY_BYTES;
    } else if (o->balanced) {
        at = put_u8(at, 1);
        at = put_u8(at, 0);
    } else {
        at = put_u8(at, 2);
        at = put_u8(at, 4);
        at = put_u32(at, o->partition);
    }
    at = put_u32(at, o->batch);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    put_messages(at, o, (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u);
}

static void build_poll(request *r, const load_options *o, uint32_t stream) {
    r->length = REQUEST_HEAD + 1 + 3 * NUMERIC_IDENTIFIER + 5 + 9 + 4 + 1;
    r->bytes = allocate(r->length);
    uint8_t *at = put_u32(r->bytes, r->length - 4);
    at = put_u32(at, CODE_POLL);
    bool member = o->group >= 0;
    at = put_u8(at, member ? 2 : 1);
    at = put_identifier(at, member ? (uint32_t)o->group : 1);
    at = put_identifier(at, stream);
    at = put_identifier(at, o->topic);
    at = put_u8(at, !member); /* whether the partition id counts; a member gets one after the other */
    at = put_u32(at, o->partition);
    at = put_u8(at, 1); /* strategy: offset */
    r->offset_at = (uint32_t)(at - r->bytes);
    at = put_u64(at, 0);
    at = put_u32(at, o->batch);
    put_u8(at, member); /* auto-commit */
}

void request_build(request *r, const load_options *options, uint32_t stream, uint64_t seed) {
    *r = (request){.random = seed};
    if (options->mode == MODE_SEND) build_send(r, options, stream);
    else build_poll(r, options, stream);
}

void request_next(request *r, const load_options *options) {
    if (r->key_at != 0) put_u64(r->bytes + r->key_at, random_next(&r->random));
    if (r->offset_at != 0 && r->begun) {
        r->offset = get_u64(r->bytes + r->offset_at) + options->batch;
        if (r->offset + options->batch > options->poll_messages) r->offset = 0;
        put_u64(r->bytes + r->offset_at, r->offset);
    }
    r->begun = true;
}

void request_free(request *r) {
    free(r->bytes);
    r->bytes = NULL;
}

uint32_t login_build(uint8_t *frame) {
    static const char credentials[] = "\x04iggy\x04iggy";
    const uint32_t payload = sizeof credentials - 1 + 8; /* then version and context, both empty */
    put_u32(frame, 4 + payload);
    put_u32(frame + 4, CODE_LOGIN);
    memset(frame + REQUEST_HEAD, 0, payload);
    memcpy(frame + REQUEST_HEAD, credentials, sizeof credentials - 1);
    return REQUEST_HEAD + payload;
}

uint32_t join_build(uint8_t *frame, const load_options *options, uint32_t stream) {
    uint8_t *at = put_u32(frame, 4 + 3 * NUMERIC_IDENTIFIER);
    at = put_u32(at, CODE_JOIN_GROUP);
    at = put_identifier(at, stream);
    at = put_identifier(at, options->topic);
    at = put_identifier(at, (uint32_t)options->group);
    return (uint32_t)(at - frame);
}

const char *reply_fault(uint64_t offset, const load_options *options, const uint8_t *head, uint64_t length) {
    if (get_u32(head) != 0) return "status is not 0";
    if (options->mode == MODE_SEND) return length == REPLY_HEAD ? NULL : "acknowledgement carries a payload";
    uint64_t records = (uint64_t)options->batch * (RECORD_HEAD + options->payload_bytes);
    if (length != REPLY_HEAD + POLLED_HEAD + records) return "polled bytes are not those of the messages asked for";
    if (get_u32(head + REPLY_HEAD + 12) != options->batch) return "polled message count is not the one asked for";
    const uint8_t *record = head + REPLY_HEAD + POLLED_HEAD;
    if (options->verify_offsets && get_u64(record + RECORD_OFFSET_AT) != offset)
        return "first polled message has another offset than asked for";
    return NULL;
}
