#include "log/encode.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "log/record.h"

#define SEND_MESSAGES 101u
#define SEND_ONCE_DIGEST 0x53440015u
#define HEADER_HEAD_SIZE 5u /* kind and length */
#define HEADER_BYTES_MAX 255u
#define KIND_RAW 1u
#define KIND_STRING 2u

static void store_u32(uint8_t *out, uint32_t value) { memcpy(out, &value, sizeof value); }
static void store_u64(uint8_t *out, uint64_t value) { memcpy(out, &value, sizeof value); }

/* ---- sizes, and whether they are possible ---- */

static bool fits(const encode_bytes *column, uint32_t row) {
    if ((uint64_t)row + 1 >= column->offset_count) return false;
    int32_t begin = column->offsets[row], end = column->offsets[row + 1];
    return begin >= 0 && begin <= end && (uint64_t)end <= column->data_length;
}

static uint32_t length_of(const encode_bytes *column, uint32_t row) {
    return (uint32_t)(column->offsets[row + 1] - column->offsets[row]);
}

static const uint8_t *data_of(const encode_bytes *column, uint32_t row) { return column->data + column->offsets[row]; }

static encode_fault header_size(uint64_t key_length, uint64_t value_length, uint64_t *size) {
    if (key_length == 0 || key_length > HEADER_BYTES_MAX) return ENCODE_BAD_HEADER;
    if (value_length > HEADER_BYTES_MAX) return ENCODE_BAD_HEADER;
    *size += (uint64_t)2 * HEADER_HEAD_SIZE + key_length + value_length;
    return *size > USER_HEADERS_SIZE_MAX ? ENCODE_LARGE_HEADERS : ENCODE_OK;
}

static bool key_is_header(const encode_rows *rows, uint32_t row) {
    return rows->keys.offsets != NULL && rows->key_name_length != 0 && length_of(&rows->keys, row) != 0;
}

/* All user headers of a row. */
static encode_fault headers_size(const encode_rows *rows, uint32_t row, uint64_t *size) {
    *size = 0;
    if (rows->headers_raw.offsets != NULL) {
        if (!fits(&rows->headers_raw, row)) return ENCODE_BAD_BUFFERS;
        *size += length_of(&rows->headers_raw, row);
    }
    if (rows->keys.offsets != NULL && !fits(&rows->keys, row)) return ENCODE_BAD_BUFFERS;
    encode_fault fault = ENCODE_OK;
    if (key_is_header(rows, row)) fault = header_size(rows->key_name_length, length_of(&rows->keys, row), size);
    if (rows->entries.offsets != NULL) {
        if (!fits(&rows->entries, row)) return ENCODE_BAD_BUFFERS;
        uint32_t end = (uint32_t)rows->entries.offsets[row + 1];
        for (uint32_t i = (uint32_t)rows->entries.offsets[row]; i < end && fault == ENCODE_OK; i++) {
            if (!fits(&rows->entry_keys, i) || !fits(&rows->entry_values, i)) return ENCODE_BAD_BUFFERS;
            fault = header_size(length_of(&rows->entry_keys, i), length_of(&rows->entry_values, i), size);
        }
    }
    if (fault == ENCODE_OK && *size > USER_HEADERS_SIZE_MAX) return ENCODE_LARGE_HEADERS;
    return fault;
}

static encode_fault row_size(const encode_rows *rows, uint32_t row, uint64_t *size) {
    if (!fits(&rows->values, row)) return ENCODE_BAD_BUFFERS;
    if (length_of(&rows->values, row) > PAYLOAD_SIZE_MAX) return ENCODE_LARGE_VALUE;
    if (rows->ids.offsets != NULL) {
        if (!fits(&rows->ids, row)) return ENCODE_BAD_BUFFERS;
        if (length_of(&rows->ids, row) != 16) return ENCODE_BAD_ID;
    }
    uint64_t headers;
    encode_fault fault = headers_size(rows, row, &headers);
    *size = RECORD_HEADER_SIZE + length_of(&rows->values, row) + headers;
    return fault;
}

static bool wanted(const encode_rows *rows, uint32_t row, int32_t partition) {
    return rows->partitions == NULL || rows->partitions[row] == partition;
}

void encode_measure(const encode_rows *rows, int32_t partition, uint32_t from, uint64_t bytes_max, uint32_t head_length,
                    encode_frame_size *out) {
    *out = (encode_frame_size){.next_row = from};
    for (uint32_t row = from; row < rows->rows; row++) {
        if (wanted(rows, row, partition)) {
            uint64_t size;
            out->fault = row_size(rows, row, &size);
            out->fault_row = row;
            if (out->fault != ENCODE_OK) return;
            if (out->rows != 0 && out->record_bytes + size > bytes_max) break;
            out->rows++;
            out->record_bytes += size;
        }
        out->next_row = row + 1;
    }
    /* length, code, head of a SEND_ONCE_DIGEST, length of the metadata, metadata with the count, index */
    out->bytes = 4 + 4 + (rows->once != NULL ? ENCODE_ONCE_BYTES + ENCODE_DIGEST_BYTES : 0) + 4 +
                 (uint64_t)head_length + 4 + (uint64_t)INDEX_ENTRY_SIZE * out->rows + out->record_bytes;
}

/* ---- bytes ---- */

static uint8_t *write_bytes(uint8_t *out, const uint8_t *data, uint64_t length) {
    if (length != 0) memcpy(out, data, length);
    return out + length;
}

static uint8_t *write_header_part(uint8_t *out, uint8_t kind, const uint8_t *data, uint32_t length) {
    *out = kind;
    store_u32(out + 1, length);
    return write_bytes(out + HEADER_HEAD_SIZE, data, length);
}

static uint8_t *write_headers(const encode_rows *rows, uint32_t row, uint8_t *out) {
    if (rows->headers_raw.offsets != NULL)
        out = write_bytes(out, data_of(&rows->headers_raw, row), length_of(&rows->headers_raw, row));
    if (key_is_header(rows, row)) {
        out = write_header_part(out, KIND_STRING, rows->key_name, rows->key_name_length);
        out = write_header_part(out, KIND_RAW, data_of(&rows->keys, row), length_of(&rows->keys, row));
    }
    if (rows->entries.offsets == NULL) return out;
    uint32_t end = (uint32_t)rows->entries.offsets[row + 1];
    for (uint32_t i = (uint32_t)rows->entries.offsets[row]; i < end; i++) {
        out = write_header_part(out, KIND_STRING, data_of(&rows->entry_keys, i), length_of(&rows->entry_keys, i));
        out = write_header_part(out, KIND_RAW, data_of(&rows->entry_values, i), length_of(&rows->entry_values, i));
    }
    return out;
}

static void id_of(const uint8_t *seed, uint64_t position, uint64_t *low, uint64_t *high) {
    uint8_t named[24];
    memcpy(named, seed, 16);
    store_u64(named + 16, position);
    XXH128_hash_t hash = XXH3_128bits(named, sizeof named);
    *low = hash.low64;
    *high = hash.high64;
}

void encode_ids(const uint8_t *seed, uint64_t position, uint32_t rows, uint8_t *out) {
    for (uint32_t row = 0; row < rows; row++, out += 16) {
        uint64_t low, high;
        id_of(seed, position + row, &low, &high);
        store_u64(out, __builtin_bswap64(high));
        store_u64(out + 8, __builtin_bswap64(low));
    }
}

static void write_id(const encode_rows *rows, uint32_t row, uint8_t *out) {
    if (rows->ids.offsets != NULL) {
        const uint8_t *id = data_of(&rows->ids, row);
        for (int i = 0; i < 16; i++) out[i] = id[15 - i];
    } else if (rows->seed != NULL) {
        uint64_t low, high;
        id_of(rows->seed, rows->position + row, &low, &high);
        store_u64(out, low);
        store_u64(out + 8, high);
    } else {
        memset(out, 0, 16);
    }
}

/* Checksum, offset and timestamp are the server's. */
static uint8_t *write_record(const encode_rows *rows, uint32_t row, uint8_t *out) {
    memset(out, 0, RECORD_HEADER_SIZE);
    write_id(rows, row, out + 8);
    if (rows->origins != NULL) store_u64(out + 40, rows->origins[row]);
    uint32_t payload = length_of(&rows->values, row);
    store_u32(out + 52, payload);
    uint8_t *headers = write_bytes(out + RECORD_HEADER_SIZE, data_of(&rows->values, row), payload);
    uint8_t *end = write_headers(rows, row, headers);
    store_u32(out + 48, (uint32_t)(end - headers));
    return end;
}

void encode_frame(const encode_rows *rows, int32_t partition, uint32_t from, const uint8_t *head, uint32_t head_length,
                  const encode_frame_size *size, uint8_t *out) {
    store_u32(out, (uint32_t)(size->bytes - 4));
    store_u32(out + 4, rows->once != NULL ? SEND_ONCE_DIGEST : SEND_MESSAGES);
    out += 8;
    uint8_t *digest = out + ENCODE_ONCE_BYTES;
    if (rows->once != NULL) out = write_bytes(out, rows->once, ENCODE_ONCE_BYTES) + ENCODE_DIGEST_BYTES;
    store_u32(out, head_length + 4);
    uint8_t *index = write_bytes(out + 4, head, head_length);
    store_u32(index, size->rows);
    index += 4;
    uint8_t *first = index + (uint64_t)INDEX_ENTRY_SIZE * size->rows, *at = first;
    for (uint32_t row = from; row < size->next_row; row++) {
        if (!wanted(rows, row, partition)) continue;
        at = write_record(rows, row, at);
        memset(index, 0, INDEX_ENTRY_SIZE);
        store_u32(index + 4, (uint32_t)(at - first));
        index += INDEX_ENTRY_SIZE;
    }
    if (rows->once == NULL) return;
    uint64_t made = XXH3_64bits(first, (size_t)(at - first));
    store_u64(digest, made != 0 ? made : 1); /* 0 says that there is no digest */
}

encode_fault encode_digests(const encode_rows *rows, uint8_t *out, uint32_t *fault_row) {
    uint8_t headers[USER_HEADERS_SIZE_MAX];
    for (uint32_t row = 0; row < rows->rows; row++) {
        uint64_t size;
        encode_fault fault = row_size(rows, row, &size);
        *fault_row = row;
        if (fault != ENCODE_OK) return fault;
        size_t length = (size_t)(write_headers(rows, row, headers) - headers);
        uint64_t seed = XXH3_64bits(headers, length);
        store_u64(out + (size_t)row * ENCODE_DIGEST_BYTES,
                  XXH3_64bits_withSeed(data_of(&rows->values, row), length_of(&rows->values, row), seed));
    }
    return ENCODE_OK;
}

bool encode_partitions(const encode_bytes *keys, uint32_t rows, uint32_t partitions, int32_t otherwise, int32_t *out) {
    for (uint32_t row = 0; row < rows; row++) {
        if (!fits(keys, row)) return false;
        uint32_t length = length_of(keys, row);
        out[row] = length == 0 ? otherwise : (int32_t)(XXH32(data_of(keys, row), length, 0) % partitions);
    }
    return true;
}
