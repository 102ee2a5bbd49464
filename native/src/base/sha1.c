/* See sha1.h. */
#include "base/sha1.h"

#include "base/assert.h"

#include <string.h>

static uint32_t rotated(uint32_t x, unsigned by) { return x << by | x >> (32 - by); }

static void take_block(uint32_t h[5], const uint8_t *block) {
    uint32_t w[80];
    for (size_t i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (unsigned i = 16; i < 80; i++) w[i] = rotated(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (unsigned i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 || i >= 60 ? b ^ c ^ d : (b & c) | (b & d) | (c & d);
        uint32_t k = i < 20 ? 0x5a827999 : i < 40 ? 0x6ed9eba1 : i < 60 ? 0x8f1bbcdc : 0xca62c1d6;
        uint32_t next = rotated(a, 5) + f + e + k + w[i];
        e = d;
        d = c;
        c = rotated(b, 30);
        b = a;
        a = next;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
}

void sha1(const uint8_t *text, size_t length, uint8_t out[SHA1_BYTES]) {
    ASSERT_ALWAYS(length <= SHA1_TEXT_BYTES_MAX);
    uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    uint8_t blocks[128] = {0};
    size_t size = length < 56 ? 64 : 128;
    memcpy(blocks, text, length);
    blocks[length] = 0x80;
    blocks[size - 2] = (uint8_t)(length * 8 >> 8);
    blocks[size - 1] = (uint8_t)(length * 8);
    for (size_t at = 0; at < size; at += 64) take_block(h, blocks + at);
    for (unsigned i = 0; i < SHA1_BYTES; i++) out[i] = (uint8_t)(h[i / 4] >> (24 - i % 4 * 8));
}
