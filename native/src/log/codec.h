/* The algorithms by which blocks of a log are compressed: libraries of the distribution, called for one block at a
 * time. Whatever is claimed about a size is an argument of the caller; nothing here believes what the bytes say. */
#ifndef SHARDD_CODEC_H
#define SHARDD_CODEC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum codec { CODEC_GZIP = 1, CODEC_LZ4 = 2, CODEC_ZSTD = 3 } codec; /* in files (log/blocks.h) */

static inline bool codec_is_known(uint32_t number) { return number >= CODEC_GZIP && number <= CODEC_ZSTD; }
/* Packs `size` bytes into at most `room`; how many that are. 0: they do not fit, or there is no memory. */
size_t codec_pack(codec which, int level, const uint8_t *plain, size_t size, uint8_t *out, size_t room);
/* Exactly `size` bytes. False: these are not the packed form of so many. */
bool codec_unpack(codec which, const uint8_t *packed, size_t length, uint8_t *out, size_t size);
#endif
