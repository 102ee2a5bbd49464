/* Identifiers of streams, topics and consumers on the wire (docs/protocol/primitives.md#identifier): kind u8, length
 * u8, number or name. */
#ifndef SHARDD_IDENTIFIER_H
#define SHARDD_IDENTIFIER_H
#include <stddef.h>
#include <stdint.h>

enum { IDENTIFIER_NUMERIC = 1, IDENTIFIER_STRING = 2 };

/* Length of the identifier at data[0] including kind and length; 0 when it is malformed (names are UTF-8) or longer
 * than `left`. */
uint32_t identifier_length(const uint8_t *data, size_t left);
#endif
