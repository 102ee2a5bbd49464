/* Record and index formats (docs/formats.md#log, docs/formats.md#index). All integers little-endian.
 *
 *   .log: records back to back, no file header
 *   offset size field
 *   0      8    checksum   XXH3-64, seed 0, over bytes 8..end of the record
 *   8      16   id         u128; never 0 in a stored record
 *   24     8    offset     absolute, dense within a partition but for what is explained (docs/formats.md)
 *   32     8    timestamp  microseconds, server clock, never falls within a partition
 *   40     8    origin_timestamp  microseconds, client clock
 *   48     4    user_headers_length
 *   52     4    payload_length
 *   56     8    reserved   0
 *   64     p    payload
 *   64+p   h    user headers
 *
 *   .index: 16 bytes per record; entry k of a dense segment is that of the offset start + k
 *   0      4    relative offset = record offset - segment start offset
 *   4      4    position: END of the record in the .log (cumulative)
 *   8      8    timestamp
 *
 * Zero bytes are never a record: the checksum of 56 zero bytes is not zero.
 */
#ifndef SHARDD_RECORD_H
#define SHARDD_RECORD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_HEADER_SIZE 64u
#define INDEX_ENTRY_SIZE 16u
#define PAYLOAD_SIZE_MAX 64000000u
#define USER_HEADERS_SIZE_MAX 100000u

typedef struct index_entry {
    uint32_t relative_offset;
    uint32_t end_position;
    uint64_t timestamp;
} index_entry;
_Static_assert(sizeof(index_entry) == INDEX_ENTRY_SIZE, "on-disk size");

typedef enum record_fault {
    RECORD_OK = 0,        /* ended exactly at a record border */
    RECORD_TRUNCATED,     /* the last record is cut (includes fewer than 64 bytes left) */
    RECORD_BAD_LENGTH,    /* a length field above the limits */
    RECORD_BAD_OFFSET,    /* not the expected next offset */
    RECORD_BAD_TIMESTAMP, /* timestamp falls */
    RECORD_BAD_CHECKSUM,
} record_fault;

typedef struct record_scan {
    uint64_t valid_bytes;     /* bytes of whole, valid records from the start of the data */
    uint64_t count;           /* valid records */
    uint64_t next_offset;     /* offset after the last valid record */
    uint64_t first_timestamp; /* 0 when count == 0 */
    uint64_t last_timestamp;
    record_fault fault; /* why the scan stopped */
} record_scan;

/* Size of the record that starts at `data` from its length fields (no checks but the limits); 0 = impossible. */
uint64_t record_size(const uint8_t *data);
/* Checksum that a whole record of `size` bytes must carry. */
uint64_t record_checksum(const uint8_t *data, size_t size);
/* Verifies records back to back: dense offsets from `expected_offset`, timestamps not below
 * `minimum_timestamp`, lengths, checksums. Fills `entries` (may be NULL; room for `entries_max`; scanning stops with
 * RECORD_OK when it is full) with index entries relative to `segment_start_offset`, end positions starting at
 * `base_position`. Returns the fault. */
record_fault record_scan_buffer(const uint8_t *data, size_t length, uint64_t expected_offset,
                                uint64_t minimum_timestamp, uint64_t segment_start_offset, uint64_t base_position,
                                index_entry *entries, size_t entries_max, record_scan *out);
/* The same for a segment whose offsets may skip: each is above the one before and below `end_offset`. */
record_fault record_scan_sparse(const uint8_t *data, size_t length, uint64_t expected_offset, uint64_t end_offset,
                                uint64_t minimum_timestamp, uint64_t segment_start_offset, uint64_t base_position,
                                index_entry *entries, size_t entries_max, record_scan *out);
typedef struct record_good {     /* the good records that a window begins with */
    uint64_t bytes, next_offset; /* `next_offset`: behind the last of them */
} record_good;
/* Fast check for the read path: exactly `count` records fill `length` bytes, offsets ascend from `first_offset` to
 * below `end_offset` (hence dense when that is first_offset + count), checksums right. Returns how many records from
 * the start are good (== count when all are). */
uint32_t record_verify(const uint8_t *data, size_t length, uint64_t first_offset, uint64_t end_offset, uint32_t count,
                       record_good *out);

/* Scans an open .log file from byte `from_position` (a record border) to its end in windows of 1 MiB
 * (growing for larger records) with pread. Every entry found is written to `index_fd` (-1: not) at
 * 16 * (expected_offset - segment_start_offset) onwards. 0, or -1 with errno on an I/O error. */
int record_scan_file(int log_fd, uint64_t from_position, uint64_t segment_start_offset, uint64_t expected_offset,
                     uint64_t minimum_timestamp, int index_fd, record_scan *out);
typedef struct record_found {
    bool found;
    uint64_t position, offset; /* position UINT64_MAX: the search was given up, there may be one */
} record_found;

typedef struct record_wanted {
    uint64_t from_position, end_position;     /* where it may start; the end exclusive */
    uint64_t at_least_offset, at_most_offset; /* at most 2^32 - 1 apart: an index has no more */
    uint64_t minimum_timestamp;
} record_wanted;

/* The first valid record (right checksum, plausible lengths, as wanted) that starts at any byte of the range: tells
 * damage inside the history from a torn tail. */
int record_find_later(int log_fd, const record_wanted *wanted, record_found *out);
#endif
