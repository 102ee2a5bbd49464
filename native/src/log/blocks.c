/* What the table of a .blocks file says, and whether it can be so. */
#include "log/blocks.h"

#include "base/bytes.h"
#include "base/checksum.h"

#include <string.h>

bool blocks_decode_entry(const uint8_t *data, uint64_t plain_bytes, uint64_t block, blocks_entry *out) {
    if (load_u64(data + 24) != XXH3_64bits_withSeed(data, 24, block)) return false;
    *out = (blocks_entry){.position = load_u64(data),
                          .stored = load_u32(data + 8),
                          .codec = data[12],
                          .plain = blocks_plain_size(plain_bytes, block),
                          .checksum = load_u64(data + 16)};
    bool packed = codec_is_known(out->codec) && out->stored > 0 && out->stored < out->plain;
    return packed || (out->codec == 0 && out->stored == out->plain);
}

bool blocks_unpack(const blocks_entry *e, const uint8_t *stored, uint8_t *out) {
    if (e->codec == 0) memcpy(out, stored, e->plain);
    else if (!codec_unpack((codec)e->codec, stored, e->stored, out, e->plain)) return false;
    return checksum_64(out, e->plain) == e->checksum;
}
