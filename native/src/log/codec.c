/* gzip (raw deflate: the head and checksum of a .gz would only repeat what the table of blocks has), lz4 and zstd. */
#include "log/codec.h"

#include <limits.h>
#include <lz4.h>
#include <lz4hc.h>
#include <zlib.h>
#include <zstd.h>

#define DEFLATE_WINDOW (-15) /* negative: without a head */
#define DEFLATE_MEMORY 8
#define LZ4_FAST 1 /* the level below those of the slow way (shardd/config/codecs.py has all levels) */

static size_t pack_gzip(int level, const uint8_t *plain, size_t size, uint8_t *out, size_t room) {
    z_stream z = {.next_in = (uint8_t *)(uintptr_t)plain, .avail_in = (uInt)size, .next_out = out};
    z.avail_out = (uInt)room;
    if (deflateInit2(&z, level, Z_DEFLATED, DEFLATE_WINDOW, DEFLATE_MEMORY, Z_DEFAULT_STRATEGY) != Z_OK) return 0;
    int result = deflate(&z, Z_FINISH);
    size_t length = z.total_out;
    deflateEnd(&z);
    return result == Z_STREAM_END ? length : 0;
}

static bool unpack_gzip(const uint8_t *packed, size_t length, uint8_t *out, size_t size) {
    z_stream z = {.next_in = (uint8_t *)(uintptr_t)packed, .avail_in = (uInt)length, .next_out = out};
    z.avail_out = (uInt)size;
    if (inflateInit2(&z, DEFLATE_WINDOW) != Z_OK) return false;
    int result = inflate(&z, Z_FINISH);
    bool whole = result == Z_STREAM_END && z.total_out == size && z.avail_in == 0;
    inflateEnd(&z);
    return whole;
}

static size_t pack_lz4(int level, const uint8_t *plain, size_t size, uint8_t *out, size_t room) {
    const char *from = (const char *)plain;
    int length = level > LZ4_FAST ? LZ4_compress_HC(from, (char *)out, (int)size, (int)room, level)
                                  : LZ4_compress_default(from, (char *)out, (int)size, (int)room);
    return length > 0 ? (size_t)length : 0;
}

size_t codec_pack(codec which, int level, const uint8_t *plain, size_t size, uint8_t *out, size_t room) {
    if (size > INT_MAX || room > INT_MAX) return 0;
    switch (which) {
    case CODEC_GZIP: return pack_gzip(level, plain, size, out, room);
    case CODEC_LZ4: return pack_lz4(level, plain, size, out, room);
    default: {
        size_t length = ZSTD_compress(out, room, plain, size, level);
        return ZSTD_isError(length) ? 0 : length;
    }
    }
}

bool codec_unpack(codec which, const uint8_t *packed, size_t length, uint8_t *out, size_t size) {
    if (length > INT_MAX || size > INT_MAX) return false;
    switch (which) {
    case CODEC_GZIP: return unpack_gzip(packed, length, out, size);
    case CODEC_LZ4: return LZ4_decompress_safe((const char *)packed, (char *)out, (int)length, (int)size) == (int)size;
    default: return ZSTD_decompress(out, size, packed, length) == size;
    }
}
