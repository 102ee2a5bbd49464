/* Blocks of user headers with and without a kind for each key (docs/protocol/primitives.md#user-headers,
 * docs/protocol/legacy.md#messages). Stored blocks have it; clients before 0.7 know keys that are text alone. */
#ifndef SHARDD_USER_HEADERS_H
#define SHARDD_USER_HEADERS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Stored -> without kinds; entries whose key is no text are left out. `out` has room for `length`. Bytes written; 0
 * for a block that is none. */
size_t user_headers_strip(const uint8_t *block, size_t length, uint8_t *out);
/* How long a block without kinds is when it is stored. False: it is no block. */
bool user_headers_measure(const uint8_t *block, size_t length, size_t *stored);
void user_headers_extend(const uint8_t *block, size_t length, uint8_t *out); /* a measured one */
#endif
