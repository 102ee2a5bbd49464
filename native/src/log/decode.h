/* Stored records (record.h) -> Arrow column buffers. No state, no allocation of its own, no files.
 *
 * One batch is made in two steps: decode_index walks the records, judges them and notes where they lie; then one
 * function for each wanted column fills buffers whose sizes are known exactly. Buffers follow the Arrow columnar
 * format: 32-bit offsets (rows + 1), bitmaps with the lowest bit first.
 *
 * User headers (docs/protocol/primitives.md#user-headers): key kind, key length u32, key, value kind, value length u32,
 * value; again until the block ends. A block that does not parse to its end has no entries. */
#ifndef SHARDD_DECODE_H
#define SHARDD_DECODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DECODE_BYTES_MAX 0x7fffffffu /* payload and headers of one batch: Arrow's offsets are signed */

typedef enum decode_fault {
    DECODE_OK = 0,       /* a limit, or the end of the data at a record border */
    DECODE_TRUNCATED,    /* the data ends inside the next record */
    DECODE_BAD_LENGTH,   /* impossible lengths: no record here */
    DECODE_GAP,          /* the next record has a higher offset than expected (fault_offset), or a lower one again */
    DECODE_BAD_CHECKSUM, /* only with DECODE_VERIFY_STOP */
} decode_fault;

typedef enum decode_verify { DECODE_VERIFY_NO = 0, DECODE_VERIFY_STOP = 1, DECODE_VERIFY_REPORT = 2 } decode_verify;

typedef struct decode_request {
    uint64_t from_offset; /* records below it are passed over */
    uint64_t to_offset;   /* exclusive */
    bool gaps;            /* offsets may skip: what is not there was removed, and explained */
    uint32_t rows_max;    /* room in `positions` */
    uint64_t bytes_max;   /* payload + user headers; a batch has one record at least, <= DECODE_BYTES_MAX */
    decode_verify verify;
    const uint8_t *key_name; /* user header whose value is the key; NULL: none */
    uint32_t key_name_length;
    bool count_headers; /* header_* below are wanted */
} decode_request;

typedef struct decode_batch {
    uint32_t rows;
    uint64_t consumed;    /* bytes up to the end of the last row, or of what was passed over */
    uint64_t next_offset; /* offset expected behind the last row */
    decode_fault fault;
    uint64_t fault_offset;  /* of the record at fault; what was found there for DECODE_GAP */
    uint64_t bad_checksums; /* DECODE_VERIFY_REPORT */
    uint64_t value_bytes, headers_bytes;
    uint64_t key_rows, key_bytes;                                  /* rows that have the key header */
    uint64_t header_entries, header_key_bytes, header_value_bytes; /* with count_headers */
} decode_batch;

/* positions[i]: byte of record i. Bit 63 is set for a record with a wrong checksum (DECODE_VERIFY_REPORT). */
#define DECODE_BAD_BIT ((uint64_t)1 << 63)

void decode_index(const uint8_t *data, size_t length, const decode_request *request, uint64_t *positions,
                  decode_batch *out);

/* ---- columns; `rows` and `positions` as decode_index left them ---- */
/* Any u64 field of the record header: checksum 0, offset 24, timestamp 32, origin timestamp 40. */
void decode_u64(const uint8_t *data, const uint64_t *positions, uint32_t rows, uint32_t field, uint64_t *out);
/* 16 bytes each, most significant byte first. */
void decode_ids(const uint8_t *data, const uint64_t *positions, uint32_t rows, int32_t *offsets, uint8_t *out);
void decode_values(const uint8_t *data, const uint64_t *positions, uint32_t rows, int32_t *offsets, uint8_t *out);
void decode_headers_raw(const uint8_t *data, const uint64_t *positions, uint32_t rows, int32_t *offsets, uint8_t *out);
void decode_keys(const uint8_t *data, const uint64_t *positions, uint32_t rows, const decode_request *request,
                 uint8_t *validity, int32_t *offsets, uint8_t *out);
/* list<struct<key: string, value: binary>>: list offsets (rows + 1), key and value offsets (entries + 1) and bytes. */
void decode_headers(const uint8_t *data, const uint64_t *positions, uint32_t rows, int32_t *list_offsets,
                    int32_t *key_offsets, uint8_t *keys, int32_t *value_offsets, uint8_t *values);
void decode_checksum_ok(const uint64_t *positions, uint32_t rows, uint8_t *bitmap);
#endif
