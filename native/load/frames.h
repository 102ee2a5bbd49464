/* Requests of the classic wire (docs/protocol) that load clients send: bench/native/load.c, and the actors. */
#ifndef LOAD_FRAMES_H
#define LOAD_FRAMES_H
#include <stdbool.h>
#include <stdint.h>

enum { KEY_BYTES = 8, SEND_HEAD_MAX = 64, POLL_FRAME_MAX = 64, POLL_OFFSET_FROM_END = 13, STORE_OFFSET_FROM_END = 8 };

typedef enum partitioning { TO_PARTITION, TO_BALANCED, TO_KEY } partitioning;
/* of actors: a partition that the client draws */
enum { TO_RANDOM = TO_KEY + 1, PARTITIONINGS };

typedef struct frame_target {
    uint32_t stream, topic, partition;
    partitioning partitioning;
    bool member;    /* polls for a consumer group, with auto-commit */
    bool names;     /* a member that polls the partition which it names (0.9) */
    bool commits;   /* polls as a consumer with auto-commit */
    uint32_t group; /* of a member */
} frame_target;

/* SEND_MESSAGES up to the number of messages; its length. `behind_bytes`: index and records. A key is zero: it has the
 * KEY_BYTES before the last four. */
uint32_t frame_send_head(uint8_t *at, const frame_target *target, uint32_t count, uint64_t behind_bytes);
/* Index entries and heads of `count` messages whose payloads are all `payload_bytes` long; the end of all. The payloads
 * are left as they are. */
uint8_t *frame_messages(uint8_t *at, uint32_t count, uint32_t payload_bytes);
/* POLL_MESSAGES for `count` from an offset, or from the group's next one (`next`); its length. The offset is
 * POLL_OFFSET_FROM_END bytes before the end. */
uint32_t frame_poll(uint8_t *at, const frame_target *target, bool next, uint32_t count);
/* STORE_CONSUMER_OFFSET of consumer 1, at most POLL_FRAME_MAX bytes; its length. The offset is STORE_OFFSET_FROM_END
 * bytes before the end. */
uint32_t frame_store(uint8_t *at, const frame_target *target);
#endif
