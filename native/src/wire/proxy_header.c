/* See proxy_header.h. */
#include "wire/proxy_header.h"

#include <string.h>

enum { COMMAND_LOCAL = 0x20, COMMAND_PROXY = 0x21 }; /* version 2 in front of each */
enum { FAMILY_UNSPECIFIED, FAMILY_IPV4, FAMILY_IPV6, FAMILY_UNIX, FAMILIES };

/* What an address of the family has; 0: it is not used. */
static const uint8_t address_bytes[FAMILIES] = {[FAMILY_IPV4] = 4, [FAMILY_IPV6] = 16};

static uint32_t big_endian_16(const uint8_t *bytes) { return (uint32_t)bytes[0] << 8 | bytes[1]; }

static proxy_result read_fixed(const uint8_t *bytes, proxy_header *out) {
    uint32_t command = bytes[12], family = bytes[13] >> 4, transport = bytes[13] & 15u;
    if (command != COMMAND_LOCAL && command != COMMAND_PROXY) return PROXY_WRONG;
    if (family >= FAMILIES || transport > PROXY_DATAGRAM) return PROXY_WRONG;
    out->length = PROXY_FIXED_BYTES + big_endian_16(bytes + 14);
    if (out->length > PROXY_HEADER_BYTES_MAX) return PROXY_WRONG;
    /* an address counts only with both its family and its transport: otherwise the connection's own one does */
    bool tells = command == COMMAND_PROXY && transport != PROXY_UNSPECIFIED;
    out->source_bytes = tells ? address_bytes[family] : 0;
    if (out->source_bytes > 0) out->transport = (proxy_transport)transport;
    out->read_bytes = PROXY_FIXED_BYTES + (out->source_bytes > 0 ? 2 * (out->source_bytes + 2) : 0);
    return out->length < out->read_bytes ? PROXY_WRONG : PROXY_WHOLE;
}

proxy_result proxy_header_read(const uint8_t *bytes, size_t length, proxy_header *out) {
    static const uint8_t signature[PROXY_SIGNATURE_BYTES] = {13, 10, 13, 10, 0, 13, 10, 81, 85, 73, 84, 10};
    size_t known = length < PROXY_SIGNATURE_BYTES ? length : PROXY_SIGNATURE_BYTES;
    *out = (proxy_header){.read_bytes = PROXY_FIXED_BYTES};
    if (known > 0 && memcmp(bytes, signature, known) != 0) return PROXY_WRONG;
    if (length > PROXY_SIGNATURE_BYTES && bytes[12] >> 4 != COMMAND_PROXY >> 4) return PROXY_WRONG;
    if (length < PROXY_FIXED_BYTES) return PROXY_MORE;
    if (read_fixed(bytes, out) != PROXY_WHOLE) return PROXY_WRONG;
    if (length < out->read_bytes) return PROXY_MORE;
    if (out->source_bytes == 0) return PROXY_WHOLE;
    memcpy(out->source, bytes + PROXY_FIXED_BYTES, out->source_bytes);
    size_t ports_at = PROXY_FIXED_BYTES + 2 * (size_t)out->source_bytes;
    out->source_port = (uint16_t)big_endian_16(bytes + ports_at);
    return PROXY_WHOLE;
}
