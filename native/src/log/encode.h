/* Arrow column buffers -> frames of SEND_MESSAGES (docs/protocol/messages.md#batch), or of SEND_ONCE_DIGEST, which
 * is one behind a head (docs/extensions.md#producers): the other direction of decode.h. No state, no allocation, no
 * files.
 *
 * A frame is made in two steps: encode_measure chooses the rows of one partition that go into it and says how large it
 * is, encode_frame writes it. Offsets, lengths and sizes are checked by the first. */
#ifndef SHARDD_ENCODE_H
#define SHARDD_ENCODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENCODE_ONCE_BYTES 20u /* producer, number of the batch, epoch; in the frame a digest of its records follows */
#define ENCODE_DIGEST_BYTES 8u

/* A column of bytes: 32-bit offsets (rows + 1) into data. `offsets` NULL: the column is not there. */
typedef struct encode_bytes {
    const int32_t *offsets;
    const uint8_t *data;
    uint64_t offset_count, data_length;
} encode_bytes;

typedef struct encode_rows {
    uint32_t rows;
    encode_bytes values;
    encode_bytes headers_raw; /* user headers as they are on the wire */
    encode_bytes keys;        /* become the user header `key_name`, unless that is empty; an empty key: none */
    const uint8_t *key_name;
    uint32_t key_name_length;
    encode_bytes entries; /* `data` is not used: which entries of the next two are headers of a row */
    encode_bytes entry_keys, entry_values;
    encode_bytes ids;          /* 16 bytes, most significant first; all zero: the server makes one */
    const uint8_t *seed;       /* 16 bytes from which ids are made, with the position of a row; NULL: not */
    uint64_t position;         /* of row 0 */
    const uint64_t *origins;   /* microseconds; NULL: 0 */
    const int32_t *partitions; /* NULL: all rows go to the same one */
    const uint8_t *once;       /* ENCODE_ONCE_BYTES, the head of a SEND_ONCE_DIGEST; NULL: SEND_MESSAGES */
} encode_rows;

typedef enum encode_fault {
    ENCODE_OK = 0,
    ENCODE_BAD_BUFFERS,   /* offsets that fall or lie outside of their data */
    ENCODE_LARGE_VALUE,   /* more than PAYLOAD_SIZE_MAX */
    ENCODE_LARGE_HEADERS, /* more than USER_HEADERS_SIZE_MAX in all */
    ENCODE_BAD_HEADER,    /* a key without bytes, or a key or value with more than 255 */
    ENCODE_BAD_ID,        /* not 16 bytes */
} encode_fault;

typedef struct encode_frame_size {
    uint32_t rows;     /* in the frame */
    uint32_t next_row; /* behind the last one looked at */
    uint64_t record_bytes, bytes;
    encode_fault fault;
    uint32_t fault_row;
} encode_frame_size;

/* The rows of `partition` (any when there are no partitions) from `from` on, up to `bytes_max` of records; one at
 * least. `head_length`: of stream, topic and partitioning. */
void encode_measure(const encode_rows *rows, int32_t partition, uint32_t from, uint64_t bytes_max, uint32_t head_length,
                    encode_frame_size *out);
/* Writes `size->bytes` bytes. */
void encode_frame(const encode_rows *rows, int32_t partition, uint32_t from, const uint8_t *head, uint32_t head_length,
                  const encode_frame_size *size, uint8_t *out);
/* The ids of rows from `position` on that are made from a seed: 16 bytes each, most significant first. */
void encode_ids(const uint8_t *seed, uint64_t position, uint32_t rows, uint8_t *out);
/* A digest of each row: its value and its user headers as they are sent. Offsets and sizes are checked. `out`: 8 bytes
 * for each row. `fault_row` is set with a fault. */
encode_fault encode_digests(const encode_rows *rows, uint8_t *out, uint32_t *fault_row);
/* The partition of each key, as the server chooses it; `otherwise` for an empty one. False: bad offsets. */
bool encode_partitions(const encode_bytes *keys, uint32_t rows, uint32_t partitions, int32_t otherwise, int32_t *out);
#endif
