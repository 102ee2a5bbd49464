/* The digest of a log that will never change: XXH3-128, seed 0, canonical (big-endian) bytes. */
#ifndef SHARDD_DIGEST_H
#define SHARDD_DIGEST_H
#include <stdint.h>

#define DIGEST_SIZE 16u

/* Of the first `length` bytes of an open file. 0, or -1 with errno (ENODATA: it is shorter). */
int digest_file(int fd, uint64_t length, uint8_t out[DIGEST_SIZE]);
#endif
