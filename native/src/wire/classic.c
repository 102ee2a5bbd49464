/* The classic dialect: binary frames with little-endian integers (docs/protocol/framing.md, docs/protocol/messages.md).
 *
 * request  u32 length of what follows, u32 code, payload
 * answer   u32 status, u32 length, payload
 * produced u8 kind, 3 zeros, u32 count, u64 first
 * polled   u32 partition, u64 current offset, u32 count, records
 * position the same with more behind the count (positions.c) */
#include "wire/dialect.h"

#include "base/bytes.h"
#include "wire/frame_limits.h"
#include "wire/classic_request.h"
#include "wire/positions.h"

#define POLLED_HEAD_SIZE 16u
#define PRODUCED_SIZE 16u

static request_kind kind_of(uint32_t code) {
    switch (code) {
    case CODE_PING: return REQUEST_PING;
    case CODE_SEND_MESSAGES:
    case CODE_SEND_ONCE_DIGEST:
    case CODE_SEND_ONCE: return REQUEST_SEND;
    case CODE_POLL_MESSAGES:
    case CODE_POLL_POSITION:
    case CODE_POLL_AND_WAIT: return REQUEST_POLL;
    case CODE_STORE_POSITION:
    case CODE_STORE_CONSUMER_OFFSET: return REQUEST_STORE;
    default: return REQUEST_OTHER;
    }
}

static bool read_head(const uint8_t *head, frame_head *out) {
    uint32_t length = load_u32(head);
    out->code = load_u32(head + 4);
    out->kind = kind_of(out->code);
    out->sends = out->kind == REQUEST_SEND;
    out->positions = out->code == CODE_POLL_POSITION;
    if (length < 4) return false;
    out->length = length - 4;
    out->length_max = frame_limit(out->code);
    out->drained_max = FRAME_CONTROL_MAX;
    out->anonymous_max = FRAME_ANONYMOUS_MAX;
    return true;
}

static uint32_t parse(const frame_head *head, uint8_t *payload, request *out) {
    bool good = true;
    out->kind = head->kind;
    out->by = (producer_batch){0};
    if (head->code == CODE_SEND_ONCE) return request_parse_send_once(payload, head->length, out);
    if (head->code == CODE_SEND_ONCE_DIGEST) return request_parse_send_once_digest(payload, head->length, out);
    if (head->kind == REQUEST_SEND) return send_request_parse(payload, head->length, &out->send);
    if (head->code == CODE_POLL_AND_WAIT) good = request_parse_waiting_poll(payload, head->length, &out->consumer);
    else if (head->code == CODE_POLL_POSITION)
        good = request_parse_poll_position(payload, head->length, &out->consumer);
    else if (head->code == CODE_STORE_POSITION)
        good = request_parse_store_position(payload, head->length, &out->consumer);
    else if (head->kind == REQUEST_POLL) good = request_parse_poll(payload, head->length, &out->consumer);
    else if (head->kind == REQUEST_STORE) good = request_parse_store(payload, head->length, &out->consumer);
    if (!good) out->kind = REQUEST_OTHER;
    return 0;
}

static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }

static size_t put_payload_head(const uint8_t *head, uint8_t *at, uint32_t status, size_t length) {
    (void)head;
    put_u32(at, status);
    put_u32(at + 4, (uint32_t)length);
    return FRAME_HEADER_SIZE;
}

static size_t put_status(const uint8_t *head, uint8_t *at, uint32_t status) {
    return put_payload_head(head, at, status, 0);
}

static size_t put_committed(const uint8_t *head, uint8_t *at, uint64_t offset) {
    (void)offset;
    return put_status(head, at, 0);
}

static size_t put_produced(uint8_t *at, const produced *made) {
    put_payload_head(NULL, at, 0, PRODUCED_SIZE);
    memset(at + FRAME_HEADER_SIZE, 0, 4);
    at[FRAME_HEADER_SIZE] = (uint8_t)made->kind;
    put_u32(at + FRAME_HEADER_SIZE + 4, made->count);
    memcpy(at + FRAME_HEADER_SIZE + 8, &made->first, 8);
    return FRAME_HEADER_SIZE + PRODUCED_SIZE;
}

static void put_poll_head(uint8_t *at, const poll_summary *whole) {
    put_payload_head(NULL, at, 0, POLLED_HEAD_SIZE + whole->total_bytes);
    put_u32(at + 8, whole->partition);
    memcpy(at + 12, &whole->current_offset, 8);
    put_u32(at + 20, (uint32_t)whole->total_count);
}

static size_t put_empty_poll(const uint8_t *head, uint8_t *at) {
    (void)head;
    put_poll_head(at, &(poll_summary){0});
    return FRAME_HEADER_SIZE + POLLED_HEAD_SIZE;
}

const dialect dialect_classic = {.name = "classic",
                                 .number = DIALECT_CLASSIC,
                                 .answer_bytes = FRAME_HEADER_SIZE + POSITION_HEAD_SIZE,
                                 .head_bytes = FRAME_HEADER_SIZE,
                                 .poll_number = DIALECT_CLASSIC,
                                 .poll_head_bytes = FRAME_HEADER_SIZE + POLLED_HEAD_SIZE,
                                 .send_bytes_max = FRAME_SEND_MAX,
                                 .read_head = read_head,
                                 .parse = parse,
                                 .put_status = put_status,
                                 .put_committed = put_committed,
                                 .put_empty_poll = put_empty_poll,
                                 .put_produced = put_produced,
                                 .put_payload_head = put_payload_head,
                                 .put_poll_head = put_poll_head,
                                 .positions = &dialect_positions};
