/* SHA-1 of a short text (RFC 3174), for the answer to a WebSocket handshake and for nothing that has to be safe. */
#ifndef SHARDD_SHA1_H
#define SHARDD_SHA1_H
#include <stddef.h>
#include <stdint.h>

#define SHA1_BYTES 20u
#define SHA1_TEXT_BYTES_MAX 119u

void sha1(const uint8_t *text, size_t length, uint8_t out[SHA1_BYTES]);
#endif
