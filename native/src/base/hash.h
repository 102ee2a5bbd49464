/* Hashes that decide placement (docs/protocol/records.md#placement, docs/protocol/primitives.md#hashes). */
#ifndef SHARDD_HASH_H
#define SHARDD_HASH_H
#include <stddef.h>
#include <stdint.h>
uint32_t hash_murmur3_u64(uint64_t value);         /* murmur3_x86_32 of the 8 LE bytes, seed 0 */
uint32_t hash_owner(uint64_t ns, uint32_t shards); /* (murmur3 >> 16) % shards */
uint32_t hash_place(uint64_t ns); /* in the table of one shard, where the hash of the owner has equal bits */
uint64_t hash_name(const void *data, size_t length);  /* XXH3-64, never 0: tells consumer names of one id apart */
uint32_t hash_xxh32(const void *data, size_t length); /* seed 0: keys, consumer names, client ids */
#endif
