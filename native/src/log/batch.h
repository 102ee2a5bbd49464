/* SEND_MESSAGES requests: parsing, validation with the exact statuses of docs/protocol/messages.md#batch-checks, and
 * assignment. Pure functions over memory; nothing is allocated. */
#ifndef SHARDD_BATCH_H
#define SHARDD_BATCH_H
#include "log/record.h"

enum { PARTITIONING_BALANCED = 1, PARTITIONING_PARTITION_ID = 2, PARTITIONING_MESSAGES_KEY = 3 };

typedef struct send_request {
    const uint8_t *address; /* stream identifier, then topic identifier: raw bytes, the route key */
    uint32_t stream_length; /* bytes of the stream identifier including kind and length */
    uint32_t topic_length;
    uint8_t partitioning;  /* PARTITIONING_* */
    uint32_t partition_id; /* for PARTITION_ID */
    const uint8_t *key;    /* for MESSAGES_KEY */
    uint32_t key_length;
    uint32_t count;    /* messages */
    uint8_t *messages; /* first record, inside the payload */
    uint64_t messages_length;
} send_request;

/* Parses and validates a whole payload (after the frame's code). 0, or the wire status (3, 4, 6, 4009, 4017, 4022,
 * 4031, 4032, 4033, 4036, 4100, 4101, 10011) in the order of docs/protocol/messages.md#batch-checks. */
uint32_t send_request_parse(uint8_t *payload, size_t length, send_request *out);

/* The checks of what stands behind the metadata: `count` index entries, then the records. */
uint32_t batch_check(const uint8_t *batch, size_t length, uint32_t count);

/* Validates count records with their 16-byte index entries alone (the part after the metadata). */
uint32_t batch_validate(const uint8_t *index, uint32_t count, const uint8_t *messages, uint64_t messages_length);

/* Random ids for messages that came with id 0: UUIDv4 bytes in RFC order. Seeded from getrandom; xoshiro256++. */
typedef struct id_source {
    uint64_t state[4];
} id_source;
void id_source_write(id_source *source, uint8_t *id);        /* the next id, 16 bytes, never 0 */
int id_source_seed(id_source *source);                       /* 0 or -1 */
void id_source_seed_fixed(id_source *source, uint64_t seed); /* for tests */

/* Writes offset, timestamp, id (when 0) and checksum into each record in place and fills one index entry each.
 * `relative_offset` and `position` are those of the first record inside the segment. */
void batch_assign(uint8_t *messages, uint64_t messages_length, uint32_t count, uint64_t first_offset,
                  uint64_t timestamp, uint32_t relative_offset, uint32_t position, id_source *ids,
                  index_entry *entries);
/* The same, but each record has a timestamp of its own: `timestamp`, and one more for each that follows. It is the
 * origin timestamp, too, where the sender has said none. */
void batch_assign_distinct(uint8_t *messages, uint32_t count, uint64_t first_offset, uint64_t timestamp,
                           uint32_t relative_offset, uint32_t position, id_source *ids, index_entry *entries);
#endif
