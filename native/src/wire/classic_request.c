/* See classic_request.h. */
#include "wire/classic_request.h"

#include "base/bytes.h"
#include "base/hash.h"
#include "base/identifier.h"
#include "base/status.h"
#include "log/partition.h"

#include <string.h>

#define PRODUCER_HEAD_BYTES 20u
#define PRODUCER_HEAD_DIGEST_BYTES 28u
#define POSITION_HEAD_BYTES 12u

typedef struct reader {
    const uint8_t *at, *end;
} reader;

/* Length of a well-formed identifier at the reader (which moves behind it), 0 otherwise. */
static uint32_t take_identifier(reader *r) {
    uint32_t length = identifier_length(r->at, (size_t)(r->end - r->at));
    r->at += length;
    return length;
}

/* Consumer, stream, topic, partition: the common head of both requests. */
static bool parse_head(reader *r, consumer_request *out) {
    if (r->end == r->at || (*r->at != CONSUMER_PLAIN && *r->at != CONSUMER_GROUP)) return false;
    out->kind = *r->at++;
    const uint8_t *consumer = r->at;
    uint32_t consumer_length = take_identifier(r);
    if (consumer_length == 0) return false;
    bool numeric = consumer[0] == IDENTIFIER_NUMERIC;
    out->consumer_id = numeric ? load_u32(consumer + 2) : hash_xxh32(consumer + 2, consumer[1]);
    out->name = numeric ? 0 : hash_name(consumer + 2, consumer[1]);
    out->address = r->at;
    out->stream_length = take_identifier(r);
    out->topic_length = out->stream_length != 0 ? take_identifier(r) : 0;
    if (out->topic_length == 0 || r->end - r->at < 5) return false;
    out->member_key = consumer;
    out->member_key_length = (uint32_t)(r->at - consumer);
    out->partition_given = r->at[0] == 1;
    out->partition_id = out->partition_given ? load_u32(r->at + 1) : 0;
    r->at += 5;
    return true;
}

bool request_parse_poll(const uint8_t *payload, size_t length, consumer_request *out) {
    reader r = {payload, payload + length};
    memset(out, 0, sizeof *out);
    if (!parse_head(&r, out) || r.end - r.at < 14) return false;
    out->strategy = r.at[0];
    out->value = load_u64(r.at + 1);
    out->count = load_u32(r.at + 9);
    out->auto_commit = r.at[13] != 0;
    return out->strategy >= 1 && out->strategy <= 5;
}

bool request_parse_waiting_poll(const uint8_t *payload, size_t length, consumer_request *out) {
    if (length < 4 || !request_parse_poll(payload, length - 4, out)) return false;
    uint32_t poll_length = (uint32_t)(out->address - payload) + out->stream_length + out->topic_length + 19;
    out->wait_ms = load_u32(payload + poll_length);
    out->kept_length = poll_length + 4;
    return out->wait_ms <= POLL_WAIT_MAX_MS;
}

bool request_parse_poll_position(const uint8_t *payload, size_t length, consumer_request *out) {
    if (length < 4 || !request_parse_waiting_poll(payload, length - 4, out)) return false;
    out->bytes_max = load_u32(payload + out->kept_length);
    out->own_name = true;
    out->kept_length += 4;
    return true;
}

static uint32_t parse_once(uint8_t *payload, size_t length, uint32_t head, request *out) {
    if (length < head || load_u64(payload) == 0) return STATUS_INVALID_COMMAND;
    out->by = (producer_batch){.producer = load_u64(payload), .sequence = load_u64(payload + 8)};
    out->by.epoch = load_u32(payload + 16);
    if (out->by.sequence == UINT64_MAX || out->by.epoch == UINT32_MAX) return STATUS_INVALID_COMMAND;
    if (head == PRODUCER_HEAD_DIGEST_BYTES) out->by.digest = load_u64(payload + PRODUCER_HEAD_BYTES);
    uint32_t status = send_request_parse(payload + head, length - head, &out->send);
    if (status != 0) return status;
    if (out->send.partitioning != PARTITIONING_PARTITION_ID) return STATUS_INVALID_COMMAND;
    return out->send.messages_length <= APPEND_LARGE_BYTES ? 0 : (uint32_t)STATUS_INVALID_MESSAGES_SIZE;
}

uint32_t request_parse_send_once(uint8_t *payload, size_t length, request *out) {
    return parse_once(payload, length, PRODUCER_HEAD_BYTES, out);
}

uint32_t request_parse_send_once_digest(uint8_t *payload, size_t length, request *out) {
    return parse_once(payload, length, PRODUCER_HEAD_DIGEST_BYTES, out);
}

bool request_parse_store(const uint8_t *payload, size_t length, consumer_request *out) {
    reader r = {payload, payload + length};
    memset(out, 0, sizeof *out);
    if (!parse_head(&r, out) || r.end - r.at < 8) return false;
    out->value = load_u64(r.at);
    return true;
}

bool request_parse_store_position(const uint8_t *payload, size_t length, consumer_request *out) {
    if (length < POSITION_HEAD_BYTES ||
        !request_parse_store(payload + POSITION_HEAD_BYTES, length - POSITION_HEAD_BYTES, out))
        return false;
    out->positioned = out->own_name = true;
    out->history = load_u64(payload);
    out->epoch = load_u32(payload + 8);
    return true;
}
