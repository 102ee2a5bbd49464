/* See decode.h. */
#include "log/decode.h"

#include "base/bytes.h"
#include "log/record.h"

#include <string.h>

typedef struct header_entry {
    const uint8_t *key, *value;
    uint32_t key_length, value_length;
} header_entry;

static const uint8_t *record_at(const uint8_t *data, uint64_t position) { return data + (position & ~DECODE_BAD_BIT); }

static const uint8_t *headers_of(const uint8_t *record) { return record + RECORD_HEADER_SIZE + load_u32(record + 52); }

/* The entry at `*at`; moves behind it. False when no whole entry is left. */
static bool next_header(const uint8_t **at, const uint8_t *end, header_entry *entry) {
    const uint8_t *p = *at;
    if (end - p < 5) return false;
    entry->key_length = load_u32(p + 1);
    entry->key = p + 5;
    if ((uint64_t)(end - entry->key) < (uint64_t)entry->key_length + 5) return false;
    p = entry->key + entry->key_length;
    entry->value_length = load_u32(p + 1);
    entry->value = p + 5;
    if ((uint64_t)(end - entry->value) < entry->value_length) return false;
    *at = entry->value + entry->value_length;
    return true;
}

static bool headers_parse(const uint8_t *at, const uint8_t *end) {
    header_entry entry;
    while (at < end)
        if (!next_header(&at, end, &entry)) return false;
    return true;
}

/* First header with the name of the key. */
static bool find_key(const uint8_t *record, const decode_request *request, header_entry *entry) {
    const uint8_t *at = headers_of(record), *end = at + load_u32(record + 48);
    while (at < end && next_header(&at, end, entry))
        if (entry->key_length == request->key_name_length &&
            memcmp(entry->key, request->key_name, entry->key_length) == 0)
            return true;
    return false;
}

static void count_record(const uint8_t *record, const decode_request *request, decode_batch *out) {
    header_entry entry;
    uint32_t headers = load_u32(record + 48);
    out->value_bytes += load_u32(record + 52);
    out->headers_bytes += headers;
    if (headers == 0) return;
    if (request->key_name != NULL && find_key(record, request, &entry)) {
        out->key_rows++;
        out->key_bytes += entry.value_length;
    }
    const uint8_t *at = headers_of(record), *end = at + headers;
    if (!request->count_headers || !headers_parse(at, end)) return;
    while (at < end && next_header(&at, end, &entry)) {
        out->header_entries++;
        out->header_key_bytes += entry.key_length;
        out->header_value_bytes += entry.value_length;
    }
}

void decode_index(const uint8_t *data, size_t length, const decode_request *request, uint64_t *positions,
                  decode_batch *out) {
    *out = (decode_batch){.next_offset = request->from_offset};
    uint64_t at = 0;
    while (at < length && out->rows < request->rows_max && out->next_offset < request->to_offset) {
        const uint8_t *record = data + at;
        out->fault_offset = out->next_offset;
        if (length - at < RECORD_HEADER_SIZE) {
            out->fault = DECODE_TRUNCATED;
            return;
        }
        uint64_t size = record_size(record), offset = load_u64(record + 24);
        if (size == 0) {
            out->fault = DECODE_BAD_LENGTH;
            return;
        }
        bool passed_over = out->rows == 0 && offset < request->from_offset;
        if (!passed_over && request->gaps && offset > out->next_offset && size <= length - at &&
            record_checksum(record, size) == load_u64(record)) { /* a flipped offset is not a gap */
            out->next_offset = offset < request->to_offset ? offset : request->to_offset;
            if (offset >= request->to_offset) return;
        }
        if (!passed_over && offset != out->next_offset) {
            out->fault = DECODE_GAP;
            out->fault_offset = offset;
            return;
        }
        if (size > length - at) {
            out->fault = DECODE_TRUNCATED;
            return;
        }
        if (passed_over && request->verify != DECODE_VERIFY_NO && record_checksum(record, size) != load_u64(record)) {
            out->fault = DECODE_BAD_CHECKSUM; /* its length may be wrong, too, and lead into a payload */
            out->fault_offset = offset;
            return;
        }
        if (!passed_over) {
            uint64_t bytes = out->value_bytes + out->headers_bytes + size - RECORD_HEADER_SIZE;
            if (out->rows > 0 && bytes > request->bytes_max) return;
            bool bad = request->verify != DECODE_VERIFY_NO && record_checksum(record, size) != load_u64(record);
            if (bad && request->verify == DECODE_VERIFY_STOP) {
                out->fault = DECODE_BAD_CHECKSUM;
                return;
            }
            out->bad_checksums += bad;
            positions[out->rows++] = at | (bad ? DECODE_BAD_BIT : 0);
            count_record(record, request, out);
            out->next_offset++;
        }
        at += size;
        out->consumed = at;
    }
}

void decode_u64(const uint8_t *data, const uint64_t *positions, uint32_t rows, uint32_t field, uint64_t *out) {
    for (uint32_t i = 0; i < rows; i++) out[i] = load_u64(record_at(data, positions[i]) + field);
}

void decode_ids(const uint8_t *data, const uint64_t *positions, uint32_t rows, int32_t *offsets, uint8_t *out) {
    for (uint32_t i = 0; i < rows; i++) {
        const uint8_t *id = record_at(data, positions[i]) + 8;
        offsets[i] = (int32_t)(16 * i);
        uint64_t high = __builtin_bswap64(load_u64(id + 8)), low = __builtin_bswap64(load_u64(id));
        memcpy(out + 16 * (size_t)i, &high, 8);
        memcpy(out + 16 * (size_t)i + 8, &low, 8);
    }
    offsets[rows] = (int32_t)(16 * rows);
}

void decode_values(const uint8_t *data, const uint64_t *positions, uint32_t rows, int32_t *offsets, uint8_t *out) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < rows; i++) {
        const uint8_t *record = record_at(data, positions[i]);
        uint32_t length = load_u32(record + 52);
        offsets[i] = (int32_t)end;
        memcpy(out + end, record + RECORD_HEADER_SIZE, length);
        end += length;
    }
    offsets[rows] = (int32_t)end;
}

void decode_headers_raw(const uint8_t *data, const uint64_t *positions, uint32_t rows, int32_t *offsets, uint8_t *out) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < rows; i++) {
        const uint8_t *record = record_at(data, positions[i]);
        uint32_t length = load_u32(record + 48);
        offsets[i] = (int32_t)end;
        memcpy(out + end, headers_of(record), length);
        end += length;
    }
    offsets[rows] = (int32_t)end;
}

void decode_keys(const uint8_t *data, const uint64_t *positions, uint32_t rows, const decode_request *request,
                 uint8_t *validity, int32_t *offsets, uint8_t *out) {
    uint32_t end = 0;
    memset(validity, 0, (rows + 7u) / 8u);
    for (uint32_t i = 0; i < rows; i++) {
        header_entry entry;
        offsets[i] = (int32_t)end;
        if (!find_key(record_at(data, positions[i]), request, &entry)) continue;
        validity[i / 8] |= (uint8_t)(1u << (i % 8));
        memcpy(out + end, entry.value, entry.value_length);
        end += entry.value_length;
    }
    offsets[rows] = (int32_t)end;
}

void decode_headers(const uint8_t *data, const uint64_t *positions, uint32_t rows, int32_t *list_offsets,
                    int32_t *key_offsets, uint8_t *keys, int32_t *value_offsets, uint8_t *values) {
    uint32_t entries = 0, keys_end = 0, values_end = 0;
    for (uint32_t i = 0; i < rows; i++) {
        const uint8_t *record = record_at(data, positions[i]), *at = headers_of(record);
        const uint8_t *end = at + load_u32(record + 48);
        header_entry entry;
        list_offsets[i] = (int32_t)entries;
        if (!headers_parse(at, end)) continue;
        while (at < end && next_header(&at, end, &entry)) {
            key_offsets[entries] = (int32_t)keys_end;
            value_offsets[entries] = (int32_t)values_end;
            memcpy(keys + keys_end, entry.key, entry.key_length);
            memcpy(values + values_end, entry.value, entry.value_length);
            keys_end += entry.key_length;
            values_end += entry.value_length;
            entries++;
        }
    }
    list_offsets[rows] = (int32_t)entries;
    key_offsets[entries] = (int32_t)keys_end;
    value_offsets[entries] = (int32_t)values_end;
}

void decode_checksum_ok(const uint64_t *positions, uint32_t rows, uint8_t *bitmap) {
    memset(bitmap, 0, (rows + 7u) / 8u);
    for (uint32_t i = 0; i < rows; i++)
        if ((positions[i] & DECODE_BAD_BIT) == 0) bitmap[i / 8] |= (uint8_t)(1u << (i % 8));
}
