#include "load.h"

#include <stdio.h>
#include <stdlib.h>

#include "frames.h"
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

static frame_target target_of(const load_options *o, uint32_t stream) {
    return (frame_target){.stream = stream,
                          .topic = o->topic,
                          .partition = o->partition,
                          .partitioning = o->keyed      ? TO_KEY
                                          : o->balanced ? TO_BALANCED
                                                        : TO_PARTITION,
                          .member = o->group >= 0,
                          .commits = o->mode == MODE_COMMIT,
                          .group = (uint32_t)o->group};
}

static void build_send(request *r, const load_options *o, uint32_t stream) {
    frame_target target = target_of(o, stream);
    uint32_t record = RECORD_HEAD + o->payload_bytes, messages = o->batch * (INDEX_ENTRY + record);
    r->bytes = allocate(SEND_HEAD_MAX + messages);
    uint32_t head = frame_send_head(r->bytes, &target, o->batch, messages);
    r->length = head + messages;
    if (o->keyed) r->key_at = head - 4 - KEY_BYTES;
    frame_messages(r->bytes + head, o->batch, o->payload_bytes);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t origin_us = (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
    uint8_t *at = r->bytes + head + o->batch * INDEX_ENTRY;
    for (uint32_t i = 0; i < o->batch; i++, at += record) {
        put_u64(at + RECORD_ORIGIN_AT, origin_us);
        for (uint32_t j = 0; j < o->payload_bytes; j++) at[RECORD_HEAD + j] = (uint8_t)('a' + (i + j) % 26);
    }
}

static void build_poll(request *r, const load_options *o, uint32_t stream) {
    frame_target target = target_of(o, stream);
    r->bytes = allocate(POLL_FRAME_MAX);
    r->length = frame_poll(r->bytes, &target, false, o->batch);
    r->offset_at = r->length - POLL_OFFSET_FROM_END;
}

static void build_store(request *r, const load_options *o, uint32_t stream) {
    frame_target target = target_of(o, stream);
    r->bytes = allocate(POLL_FRAME_MAX);
    r->length = frame_store(r->bytes, &target);
    r->offset_at = r->length - STORE_OFFSET_FROM_END;
}

void request_build(request *r, const load_options *options, uint32_t stream, uint64_t seed) {
    *r = (request){.random = seed};
    if (options->mode == MODE_SEND) build_send(r, options, stream);
    else if (options->mode == MODE_STORE) build_store(r, options, stream);
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
    if (options->mode == MODE_SEND || options->mode == MODE_STORE)
        return length == REPLY_HEAD ? NULL : "acknowledgement carries a payload";
    uint64_t records = (uint64_t)options->batch * (RECORD_HEAD + options->payload_bytes);
    if (length != REPLY_HEAD + POLLED_HEAD + records) return "polled bytes are not those of the messages asked for";
    if (get_u32(head + REPLY_HEAD + 12) != options->batch) return "polled message count is not the one asked for";
    const uint8_t *record = head + REPLY_HEAD + POLLED_HEAD;
    if (options->verify_offsets && get_u64(record + RECORD_OFFSET_AT) != offset)
        return "first polled message has another offset than asked for";
    return NULL;
}
