/* A block of a compressed log: whatever entry and stored bytes say, exactly the plain bytes come out, or nothing. */
#include "log/blocks.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < BLOCKS_ENTRY_SIZE + 4) return 0;
    blocks_entry e;
    uint64_t plain_bytes = load_u32(data + BLOCKS_ENTRY_SIZE);
    if (plain_bytes > 0) blocks_decode_entry(data, plain_bytes, (plain_bytes - 1) / BLOCK_PLAIN_BYTES, &e);
    const uint8_t *packed = data + BLOCKS_ENTRY_SIZE + 4;
    size_t length = size - BLOCKS_ENTRY_SIZE - 4;
    e = (blocks_entry){.stored = (uint32_t)length, .plain = 1 + data[0] * 257u, .codec = 1 + data[1] % 3};
    uint8_t *out = malloc(e.plain), *stored = malloc(length + 1); /* of the exact sizes: the sanitizer sees the rest */
    if (out == NULL || stored == NULL) abort();
    stored = realloc(stored, length > 0 ? length : 1);
    memcpy(stored, packed, length);
    blocks_unpack(&e, stored, out);
    codec which = (codec)e.codec;
    uint8_t *again = malloc(length + 1);
    size_t packed_size = length > 0 ? codec_pack(which, 1, stored, length, again, length) : 0;
    uint8_t *back = malloc(length + 1);
    if (packed_size > 0 &&
        (!codec_unpack(which, again, packed_size, back, length) || memcmp(back, stored, length) != 0))
        abort();
    free(back);
    free(again);
    free(stored);
    free(out);
    return 0;
}
