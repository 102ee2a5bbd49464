/* Batches of Apache Iggy 0.9, and records as they are stored: one becomes the other. Pure functions over memory.
 *
 * batch    256 bytes: 0 u64 partition, 8 u64 first offset, 16 u64 timestamp, 24 u64 smallest origin timestamp,
 *          32 u64 length with these, 40 u64 checksum, 48 u32 frames, zeros
 * frame    48 bytes: 0 u64 checksum of the rest, 8 id, 24 u32 offset and 28 u32 origin timestamp behind those of the
 *          batch, 32 u32 length of the user headers, 36 u32 of the payload, 40 u64 0; then payload, user headers
 * record   64 bytes (log/record.h); then payload, user headers */
#ifndef SHARDD_IGGY09_BATCH_H
#define SHARDD_IGGY09_BATCH_H
#include "base/checksum.h"
#include "core/caller.h"
#include "log/batch.h"

#define IGGY09_BATCH_HEAD 256u
#define IGGY09_FRAME_HEAD 48u
#define IGGY09_POLLED_HEAD 16u

/* ---- a SEND: u32 length of the metadata, metadata as in a classic one, batch ---- */

typedef struct iggy09_send {
    uint32_t metadata_bytes, count; /* with their length */
    uint64_t records_bytes;         /* what they become */
} iggy09_send;

/* What stands before the frames. 0, or the status that refuses it. */
uint32_t iggy09_send_read(const uint8_t *payload, size_t length, iggy09_send *out);

typedef struct iggy09_digest { /* of a batch: 44 bytes of its head, then the checksums of its frames */
    uint8_t pending[CHECKSUM_SHORT_MAX];
    uint32_t length;
    bool flushed;       /* into the state, which is not made before */
    XXH3_state_t state; /* aligned as it wants to be */
} iggy09_digest;

typedef struct iggy09_unpacking { /* frames become records, one after the other */
    const uint8_t *frame, *end;
    uint8_t *to;
    uint64_t origin, checksum;
    uint32_t next, count;
    bool wrong_checksum; /* of a frame; told when nothing worse is found */
    iggy09_digest digest;
} iggy09_unpacking;

/* Metadata, then the records, go to `to`: that many bytes. It may overlap the payload if both end at the same byte. */
void iggy09_unpack_begin(iggy09_unpacking *u, const uint8_t *payload, size_t length, const iggy09_send *s, uint8_t *to);
/* About so many bytes more, one frame at least. True: that was the end, and `status` says what is wrong or 0. */
bool iggy09_unpack_part(iggy09_unpacking *u, size_t bytes, uint32_t *status);
/* Of what was unpacked. */
uint32_t iggy09_send_request(uint8_t *unpacked, size_t length, send_request *out);

/* ---- what was polled ---- */

/* Bytes of the batches that these whole records become; 0: they are no whole records. `alone`: each in a batch of its
 * own, otherwise as many together as may be. */
size_t iggy09_batches_bytes(const uint8_t *records, size_t length, bool alone);
#define IGGY09_PART_BYTES ((128u << 10) - IGGY09_PART_HEAD) /* of a batch of several; the head of an answer fits, too */
#define IGGY09_PART_HEAD 512u
#define IGGY09_PACKED_MAX(records) (5ull * (records)) /* bytes of the batches that records become, at most */
#define IGGY09_DIRECT_BYTES (24u << 10)               /* a larger frame is sent from where its record lies */

typedef struct iggy09_packing { /* records become batches, part by part */
    const uint8_t *at, *end;
    uint32_t partition;
    bool alone;
} iggy09_packing;

typedef struct iggy09_part {
    size_t length;         /* bytes that were written; what follows them ... */
    const uint8_t *direct; /* ... is there */
    size_t direct_length;
} iggy09_part;

/* As much as there is room for, one batch at least in IGGY09_PART_BYTES. False: they are no whole records any more
 * (somebody writes on them). */
bool iggy09_pack(iggy09_packing *p, uint8_t *to, size_t room, iggy09_part *out);
/* Of an answer of single ones, by what is known before it is read. */
uint64_t iggy09_batches_alone(const poll_summary *whole);
void iggy09_put_polled(uint8_t *at, const poll_summary *whole);
#endif
