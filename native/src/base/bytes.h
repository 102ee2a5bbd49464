/* Unaligned little-endian integers in memory (the formats and the machines that we build for are little-endian). */
#ifndef SHARDD_BYTES_H
#define SHARDD_BYTES_H
#include <stdint.h>
#include <string.h>

static inline uint32_t load_u32(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline uint64_t load_u64(const uint8_t *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}
#endif
