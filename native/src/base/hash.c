/* Placement hashes: murmur3_x86_32 over one u64 (docs/protocol/records.md#placement) and xxh32. */
#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static uint32_t rotate_left(uint32_t value, int bits) { return value << bits | value >> (32 - bits); }

static uint32_t murmur3_block(uint32_t hash, uint32_t block) {
    block = rotate_left(block * 0xcc9e2d51u, 15) * 0x1b873593u;
    return rotate_left(hash ^ block, 13) * 5u + 0xe6546b64u;
}

uint32_t hash_murmur3_u64(uint64_t value) {
    uint32_t hash = murmur3_block(murmur3_block(0, (uint32_t)value), (uint32_t)(value >> 32));
    hash ^= 8; /* length */
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

uint32_t hash_owner(uint64_t ns, uint32_t shards) { return (hash_murmur3_u64(ns) >> 16) % shards; }

uint32_t hash_place(uint64_t ns) {
    ns *= 0x9e3779b97f4a7c15u;
    ns ^= ns >> 29;
    ns *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(ns >> 32);
}

uint64_t hash_name(const void *data, size_t length) {
    uint64_t hash = XXH3_64bits(data, length);
    return hash != 0 ? hash : 1;
}

uint32_t hash_xxh32(const void *data, size_t length) { return XXH32(data, length, 0); }
