/* CRC-32 (IEEE 802.3, as zlib computes it). */
#ifndef SHARDD_CRC32_H
#define SHARDD_CRC32_H
#include <stddef.h>
#include <stdint.h>

uint32_t crc32_of(const uint8_t *data, size_t length);
#endif
