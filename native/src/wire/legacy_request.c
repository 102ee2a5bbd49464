/* See legacy_request.h. */
#include "wire/legacy_request.h"

#include "base/bytes.h"
#include "base/hash.h"
#include "base/identifier.h"
#include "base/status.h"
#include "wire/record_forms.h"

#include <string.h>

enum { POLL_TAIL = 18, STORE_TAIL = 12, WIDENED_HEADER = 64, SENT_HEADER = 56 };

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static size_t left(const reader *r) { return (size_t)(r->end - r->at); }

/* An identifier, written anew with the id that it has here: its length, 0: it is malformed. */
static uint32_t take_identifier(reader *r, uint8_t *out, uint32_t first_id) {
    uint32_t length = identifier_length(r->at, left(r));
    memcpy(out, r->at, length);
    if (length > 0 && r->at[0] == IDENTIFIER_NUMERIC) {
        uint32_t own = load_u32(r->at + 2) - first_id;
        memcpy(out + 2, &own, 4);
    }
    r->at += length;
    return length;
}

/* Consumer: kind and identifier, or (before 0.0.92) kind and number. What is written: the key of a seat. */
static uint32_t take_consumer(reader *r, bool numbered, uint8_t *out, consumer_request *q) {
    if (left(r) < 5 || (*r->at != CONSUMER_PLAIN && *r->at != CONSUMER_GROUP)) return 0;
    q->kind = *r->at++;
    if (numbered) {
        q->consumer_id = load_u32(r->at);
        memcpy(out, r->at, 4);
        r->at += 4;
        return 4;
    }
    uint32_t length = take_identifier(r, out, q->kind == CONSUMER_GROUP ? 1 : 0);
    if (length == 0) return 0;
    bool numeric = out[0] == IDENTIFIER_NUMERIC;
    q->consumer_id = numeric ? load_u32(out + 2) : hash_xxh32(out + 2, out[1]);
    q->name = numeric ? 0 : hash_name(out + 2, out[1]);
    return length;
}

/* Consumer, stream, topic, partition: with exactly `tail` bytes behind the topic, or at least so many. */
static bool parse_head(reader *r, uint32_t tail, bool numbered, bool surplus, request *out) {
    consumer_request *q = &out->consumer;
    uint8_t *written = out->written;
    memset(q, 0, sizeof *q);
    uint32_t consumer = take_consumer(r, numbered, written, q);
    if (consumer == 0) return false;
    q->member_key = written;
    q->address = written + consumer;
    q->stream_length = take_identifier(r, written + consumer, 1);
    if (q->stream_length == 0) return false;
    q->topic_length = take_identifier(r, written + consumer + q->stream_length, 1);
    if (q->topic_length == 0 || left(r) < tail || (left(r) > tail && !surplus)) return false;
    q->member_key_length = consumer + q->stream_length + q->topic_length;
    uint32_t partition = load_u32(r->at);
    q->partition_given = partition != 0;
    q->partition_id = partition != 0 ? partition - 1 : 0;
    r->at += 4;
    return true;
}

/* An identifier of a consumer first: a number alone fits it by accident at most, and then the rest does not. Bytes
 * behind the end are not looked at, when nothing else fits. */
static bool parse_either(const uint8_t *payload, size_t length, uint32_t tail, reader *r, request *out) {
    for (int form = 0; form < 4; form++) {
        *r = (reader){payload, payload + length};
        if (parse_head(r, tail, form % 2 != 0, form >= 2, out)) return true;
    }
    return false;
}

bool legacy_parse_poll(const uint8_t *payload, size_t length, request *out) {
    reader r;
    if (!parse_either(payload, length, POLL_TAIL, &r, out)) return false;
    consumer_request *q = &out->consumer;
    q->strategy = r.at[0];
    q->value = load_u64(r.at + 1);
    q->count = load_u32(r.at + 9);
    q->auto_commit = r.at[13] == 1;
    return q->strategy >= 1 && q->strategy <= 5;
}

bool legacy_parse_store(const uint8_t *payload, size_t length, request *out) {
    reader r;
    if (!parse_either(payload, length, STORE_TAIL, &r, out)) return false;
    out->consumer.value = load_u64(r.at);
    return true;
}

/* As in batch.c, with ids as they are here. */
static uint32_t parse_partitioning(reader *r, uint32_t first_id, send_request *out) {
    if (left(r) < 2 || left(r) - 2 < r->at[1]) return STATUS_INVALID_COMMAND;
    const uint8_t *at = r->at;
    uint32_t length = at[1];
    out->partitioning = at[0];
    if (at[0] == PARTITIONING_PARTITION_ID && length == 4) out->partition_id = load_u32(at + 2) - first_id;
    else if (at[0] == PARTITIONING_MESSAGES_KEY && length > 0) out->key = at + 2;
    else if (at[0] != PARTITIONING_BALANCED || length != 0) return STATUS_INVALID_COMMAND;
    out->key_length = length;
    r->at += 2 + length;
    if (left(r) < 4) return STATUS_INVALID_COMMAND;
    out->count = load_u32(r->at);
    return STATUS_OK;
}

/* A first record whose slice fits the stored header: it is a classic client after all. */
static bool is_classic(const uint8_t *batch, size_t length, uint32_t count) {
    size_t index = (size_t)count * INDEX_ENTRY_SIZE;
    if (index > length || length - index < WIDENED_HEADER) return false;
    const uint8_t *first = batch + index;
    uint64_t body = (uint64_t)load_u32(first + 48) + load_u32(first + 52), slice = load_u32(batch + 4);
    return slice == WIDENED_HEADER + body;
}

uint32_t legacy_parse_send(uint8_t *payload, size_t length, uint32_t first_id, bool widened, request *out) {
    send_request *s = &out->send;
    *s = (send_request){0};
    if (length < 4 || load_u32(payload) > length - 4) return STATUS_INVALID_COMMAND;
    size_t metadata_length = load_u32(payload);
    reader r = {payload + 4, payload + 4 + metadata_length};
    s->address = out->written;
    s->stream_length = take_identifier(&r, out->written, first_id);
    if (s->stream_length == 0) return STATUS_INVALID_IDENTIFIER;
    s->topic_length = take_identifier(&r, out->written + s->stream_length, first_id);
    if (s->topic_length == 0) return STATUS_INVALID_IDENTIFIER;
    uint32_t status = parse_partitioning(&r, first_id, s);
    if (status != STATUS_OK) return status;
    if (s->count == 0) return STATUS_INVALID_MESSAGES_COUNT;
    uint8_t *batch = payload + 4 + metadata_length;
    size_t batch_length = length - 4 - metadata_length;
    if (!widened && is_classic(batch, batch_length, s->count)) {
        out->kind = REQUEST_OTHER;
        return STATUS_OK;
    }
    s->messages = widened ? batch + (size_t)s->count * (INDEX_ENTRY_SIZE - (WIDENED_HEADER - SENT_HEADER))
                          : sent_records_widen(batch, batch_length, s->count, &status);
    if (s->messages == NULL) out->kind = REQUEST_OTHER;
    else s->messages_length = (uint64_t)(payload + length - s->messages);
    return status;
}
