/* <start offset>.blocks: the plain log of a sealed segment, compressed in blocks (docs/formats.md#blocks).
 *
 *     head, 64 bytes; a table with one entry of 32 bytes for each block; the blocks
 *
 * Block i holds the bytes [i * BLOCK_PLAIN_BYTES, ...) of the plain log, all of them but the last one as many. So which
 * block has a byte, where its entry is and how large it is when unpacked follow from the length of the log alone, which
 * the manifest has: no size that is read decides how much memory is taken. The head only says what the file is.
 * Made by Python (shardd/log/blocks.py), never changed. */
#ifndef SHARDD_BLOCKS_H
#define SHARDD_BLOCKS_H
#include "log/codec.h"

#define BLOCK_PLAIN_BYTES 65536u
#define BLOCKS_HEAD_SIZE 64u
#define BLOCKS_ENTRY_SIZE 32u

typedef struct blocks_entry {
    uint64_t position, checksum; /* in the file; XXH3-64 of the plain bytes */
    uint32_t stored, plain;      /* bytes */
    uint8_t codec;               /* 0: stored as it is */
} blocks_entry;

static inline uint64_t blocks_count(uint64_t plain_bytes) {
    return (plain_bytes + BLOCK_PLAIN_BYTES - 1) / BLOCK_PLAIN_BYTES;
}
static inline uint64_t blocks_entry_position(uint64_t block) { return BLOCKS_HEAD_SIZE + block * BLOCKS_ENTRY_SIZE; }
/* Of block `block` of a log of so many bytes. */
static inline uint32_t blocks_plain_size(uint64_t plain_bytes, uint64_t block) {
    uint64_t left = plain_bytes - block * BLOCK_PLAIN_BYTES;
    return left < BLOCK_PLAIN_BYTES ? (uint32_t)left : BLOCK_PLAIN_BYTES;
}
/* False: not the whole entry of this block of a log of so many bytes. */
bool blocks_decode_entry(const uint8_t *data, uint64_t plain_bytes, uint64_t block, blocks_entry *out);
/* The plain bytes of a block, `e->plain` of them, from the `e->stored` that are stored. False: it is damaged. */
bool blocks_unpack(const blocks_entry *e, const uint8_t *stored, uint8_t *out);
#endif
