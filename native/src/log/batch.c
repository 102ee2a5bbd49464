/* SEND_MESSAGES: parse, validate, assign. The order of the checks is part of the wire contract
 * (docs/protocol/messages.md#batch-checks): a request that breaks several rules gets the status of the first one in
 * that order. */
#include "log/batch.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/identifier.h"
#include "base/status.h"

#include <string.h>
#include <sys/random.h>

static void store_u64(uint8_t *data, uint64_t value) { memcpy(data, &value, sizeof value); }

/* ---- metadata ---- */

/* Partitioning and count at data[0]. Surplus metadata bytes behind the count are accepted, as by the reference. */
static uint32_t parse_partitioning(const uint8_t *data, size_t left, send_request *out) {
    if (left < 2 || left - 2 < data[1]) return STATUS_INVALID_COMMAND;
    uint32_t length = data[1];
    out->partitioning = data[0];
    switch (data[0]) {
    case PARTITIONING_BALANCED:
        if (length != 0) return STATUS_INVALID_COMMAND;
        break;
    case PARTITIONING_PARTITION_ID:
        if (length != 4) return STATUS_INVALID_COMMAND;
        out->partition_id = load_u32(data + 2);
        break;
    case PARTITIONING_MESSAGES_KEY: /* length 0 is refused later: a count of 0 goes first */
        out->key = data + 2;
        out->key_length = length;
        break;
    default: return STATUS_INVALID_COMMAND;
    }
    if (left - 2 - length < 4) return STATUS_INVALID_COMMAND;
    out->count = load_u32(data + 2 + length);
    return STATUS_OK;
}

uint32_t send_request_parse(uint8_t *payload, size_t length, send_request *out) {
    *out = (send_request){0};
    if (length < 4) return STATUS_INVALID_COMMAND;
    size_t metadata_length = load_u32(payload);
    if (metadata_length > length - 4) return STATUS_INVALID_COMMAND;
    const uint8_t *metadata = payload + 4;
    out->address = metadata;
    out->stream_length = identifier_length(metadata, metadata_length);
    if (out->stream_length == 0) return STATUS_INVALID_IDENTIFIER;
    size_t left = metadata_length - out->stream_length;
    out->topic_length = identifier_length(metadata + out->stream_length, left);
    if (out->topic_length == 0) return STATUS_INVALID_IDENTIFIER;
    left -= out->topic_length;
    uint32_t status = parse_partitioning(metadata + out->stream_length + out->topic_length, left, out);
    if (status != STATUS_OK) return status;
    if (out->count == 0) return STATUS_INVALID_MESSAGES_COUNT;
    if (out->partitioning == PARTITIONING_MESSAGES_KEY && out->key_length == 0) return STATUS_INVALID_COMMAND;
    uint8_t *batch = payload + 4 + metadata_length;
    size_t batch_length = length - 4 - metadata_length;
    status = batch_check(batch, batch_length, out->count);
    if (status != STATUS_OK) return status;
    out->messages = batch + (size_t)out->count * INDEX_ENTRY_SIZE;
    out->messages_length = (uint64_t)(payload + length - out->messages);
    return STATUS_OK;
}

uint32_t batch_check(const uint8_t *batch, size_t length, uint32_t count) {
    size_t index_length = (size_t)count * INDEX_ENTRY_SIZE;
    if (count == 0) return STATUS_INVALID_MESSAGES_COUNT;
    if (index_length > length) return STATUS_INVALID_COMMAND;
    return batch_validate(batch, count, batch + index_length, length - index_length);
}

/* ---- validation ---- */

typedef struct batch_state { /* what the checks of one message need from the messages before it */
    uint64_t slice_start;
    uint64_t sizes;       /* sum of the sizes that the headers tell */
    uint64_t last_offset; /* highest header offset so far */
    uint64_t reserved;    /* all reserved words, or-ed */
} batch_state;

/* One message against its index entry, in the order of the table. `last` slices end at the end of the body. */
static uint32_t validate_message(const uint8_t *entry, bool last, const uint8_t *messages, uint64_t messages_length,
                                 batch_state *state) {
    if (load_u32(entry) != 0) return STATUS_NON_ZERO_OFFSET;
    if (load_u64(entry + 8) != 0) return STATUS_NON_ZERO_TIMESTAMP;
    uint64_t position = load_u32(entry + 4), end = last ? messages_length : position;
    if (end > messages_length || end < state->slice_start || end - state->slice_start < RECORD_HEADER_SIZE)
        return STATUS_MISSING_INDEX;
    const uint8_t *header = messages + state->slice_start;
    uint32_t user_headers = load_u32(header + 48), payload = load_u32(header + 52);
    uint64_t size = (uint64_t)RECORD_HEADER_SIZE + payload + user_headers;
    if (end - state->slice_start < size) return STATUS_MISSING_INDEX;
    if (payload > PAYLOAD_SIZE_MAX) return STATUS_TOO_BIG_MESSAGE_PAYLOAD;
    if (user_headers > USER_HEADERS_SIZE_MAX) return STATUS_TOO_BIG_USER_HEADERS;
    uint64_t offset = load_u64(header + 24);
    if (offset < state->last_offset) return STATUS_INVALID_OFFSET;
    if (position < state->slice_start) return STATUS_CANNOT_READ_INDEX_POSITION;
    state->last_offset = offset;
    state->reserved |= load_u64(header + 56);
    state->sizes += size;
    state->slice_start = position;
    return STATUS_OK;
}

/* Slices that are each long enough and sum up to the body are each exactly as long as their record, so that the records
 * can be walked by their own lengths afterwards. */
uint32_t batch_validate(const uint8_t *index, uint32_t count, const uint8_t *messages, uint64_t messages_length) {
    if (count == 0 || messages_length == 0) return STATUS_INVALID_MESSAGES_COUNT;
    batch_state state = {0};
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *entry = index + (size_t)i * INDEX_ENTRY_SIZE;
        uint32_t status = validate_message(entry, i + 1 == count, messages, messages_length, &state);
        if (status != STATUS_OK) return status;
    }
    if (state.sizes != messages_length) return STATUS_INVALID_MESSAGES_SIZE;
    if (state.slice_start != messages_length) /* the last position, which the reference does not compare */
        return STATUS_MISSING_INDEX;
    return state.reserved != 0 ? STATUS_INVALID_RESERVED_FIELD : STATUS_OK;
}

/* ---- ids ---- */

/* xoshiro256++ 1.0 (Blackman, Vigna): not for secrets, ids need only be unique. */
static uint64_t id_source_next(id_source *source) {
    uint64_t *s = source->state;
    uint64_t sum = s[0] + s[3], result = (sum << 23 | sum >> 41) + s[0], shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = s[3] << 45 | s[3] >> 19;
    return result;
}

int id_source_seed(id_source *source) {
    /* The state must not be all zero. Reads up to 256 bytes from getrandom are never short once the pool is ready. */
    do {
        if (getrandom(source->state, sizeof source->state, 0) != (ssize_t)sizeof source->state) return -1;
    } while ((source->state[0] | source->state[1] | source->state[2] | source->state[3]) == 0);
    return 0;
}

/* The four state words are four successive outputs of splitmix64 that starts from `seed`:
 *   seed += 0x9e3779b97f4a7c15; z = seed; z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
 *   z = (z ^ z >> 27) * 0x94d049bb133111eb; output z ^ z >> 31 */
void id_source_seed_fixed(id_source *source, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15u;
        uint64_t z = seed;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        source->state[i] = z ^ z >> 31;
    }
}

/* An id = two outputs of xoshiro256++, each written little-endian (the first to bytes 0..7, the second to 8..15),
 * then the marks of UUIDv4 in RFC 9562 order: high half of byte 6 = 4, top bits of byte 8 = 10 (never 0 therefore). */
void id_source_write(id_source *source, uint8_t *id) {
    store_u64(id, id_source_next(source));
    store_u64(id + 8, id_source_next(source));
    id[6] = (uint8_t)((id[6] & 0x0f) | 0x40);
    id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
}

/* ---- assignment ---- */

void batch_assign(uint8_t *messages, uint64_t messages_length, uint32_t count, uint64_t first_offset,
                  uint64_t timestamp, uint32_t relative_offset, uint32_t position, id_source *ids,
                  index_entry *entries) {
    (void)messages_length; /* the sum of the record sizes, as batch_validate has found */
    for (uint32_t i = 0; i < count; i++) {
        size_t size = (size_t)RECORD_HEADER_SIZE + load_u32(messages + 48) + load_u32(messages + 52);
        if ((load_u64(messages + 8) | load_u64(messages + 16)) == 0) id_source_write(ids, messages + 8);
        store_u64(messages + 24, first_offset + i);
        store_u64(messages + 32, timestamp);
        /* Right after the change, while the record is in the cache. */
        store_u64(messages, checksum_64(messages + 8, size - 8));
        position += (uint32_t)size;
        entries[i] = (index_entry){relative_offset + i, position, timestamp};
        messages += size;
    }
}

void batch_assign_distinct(uint8_t *messages, uint32_t count, uint64_t first_offset, uint64_t timestamp,
                           uint32_t relative_offset, uint32_t position, id_source *ids, index_entry *entries) {
    for (uint32_t i = 0; i < count; i++) {
        size_t size = (size_t)RECORD_HEADER_SIZE + load_u32(messages + 48) + load_u32(messages + 52);
        if (load_u64(messages + 40) == 0) store_u64(messages + 40, timestamp + i);
        batch_assign(messages, size, 1, first_offset + i, timestamp + i, relative_offset + i, position, ids,
                     entries + i);
        position += (uint32_t)size;
        messages += size;
    }
}
