/* Headers of proxies, as tests send them. */
#ifndef SHARDD_TEST_PROXY_HEADERS_H
#define SHARDD_TEST_PROXY_HEADERS_H
#include <arpa/inet.h>
#include <string.h>

#include "wire/proxy_header.h"

enum { LOCAL = 0x20, PROXY = 0x21 };
enum { NOTHING = 0x00, TCP4 = 0x11, UDP4 = 0x12, TCP6 = 0x21, UDP6 = 0x22, UNIX_STREAM = 0x31 };

static const uint8_t PROXY_SIGNATURE[] = "\r\n\r\n\0\r\nQUIT\n";

/* `rest` bytes of a TLV behind the addresses. Returns its length. */
static inline size_t put_header(uint8_t out[PROXY_HEADER_BYTES_MAX + 64], uint8_t command, uint8_t kind,
                                const char *source, uint16_t port, size_t rest) {
    size_t bytes = kind >> 4 == 1 ? 4 : kind >> 4 == 2 ? 16 : kind >> 4 == 3 ? 108 : 0;
    size_t length = 2 * bytes + (bytes == 4 || bytes == 16 ? 4 : 0);
    memset(out, 0, PROXY_FIXED_BYTES + length + rest);
    memcpy(out, PROXY_SIGNATURE, PROXY_SIGNATURE_BYTES);
    out[12] = command;
    out[13] = kind;
    out[14] = (uint8_t)((length + rest) >> 8);
    out[15] = (uint8_t)(length + rest);
    if (bytes == 4 || bytes == 16) {
        inet_pton(bytes == 4 ? AF_INET : AF_INET6, source, out + PROXY_FIXED_BYTES);
        out[PROXY_FIXED_BYTES + 2 * bytes] = (uint8_t)(port >> 8);
        out[PROXY_FIXED_BYTES + 2 * bytes + 1] = (uint8_t)port;
    }
    if (rest >= 3) { /* PP2_TYPE_NOOP */
        uint8_t *tlv = out + PROXY_FIXED_BYTES + length;
        tlv[0] = 4;
        tlv[1] = (uint8_t)((rest - 3) >> 8);
        tlv[2] = (uint8_t)(rest - 3);
    }
    return PROXY_FIXED_BYTES + length + rest;
}
#endif
