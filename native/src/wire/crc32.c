/* See crc32.h. Eight bytes at a time, by eight tables. */
#include "wire/crc32.h"

#include "base/bytes.h"

#include <pthread.h>

#define CRC32_POLYNOMIAL 0xEDB88320u

static uint32_t tables[8][256];
static pthread_once_t tables_made = PTHREAD_ONCE_INIT;

static void make_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ ((value & 1) != 0 ? CRC32_POLYNOMIAL : 0);
        tables[0][i] = value;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++) tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xff];
}

uint32_t crc32_of(const uint8_t *data, size_t length) {
    uint32_t crc = UINT32_MAX;
    pthread_once(&tables_made, make_tables);
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low = load_u32(data) ^ crc, high = load_u32(data + 4);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
              tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^ tables[1][high >> 16 & 0xff] ^
              tables[0][high >> 24];
    }
    for (; length > 0; data++, length--) crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xff];
    return ~crc;
}
