/* The head that a proxy puts in front of a connection, or of a datagram, to tell whose it is: PROXY protocol, version 2
 * (https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt). Pure: no socket, no memory, no state.
 *
 *   offset  bytes
 *   0       12     signature, which no dialect of ours and no TLS begins with
 *   12      1      version (2) and command: 0 LOCAL, the proxy speaks for itself; 1 PROXY
 *   13      1      family (0 unspecified, 1 IPv4, 2 IPv6, 3 Unix) and transport (0 unspecified, 1 stream, 2 datagram)
 *   14      2      length of what follows, big-endian
 *   16      ...    source and destination addresses, their ports, then TLVs, which are skipped */
#ifndef SHARDD_PROXY_HEADER_H
#define SHARDD_PROXY_HEADER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROXY_SIGNATURE_BYTES 12u
#define PROXY_FIXED_BYTES 16u
#define PROXY_ADDRESSES_MAX 36u      /* two addresses of IPv6 and their ports */
#define PROXY_HEADER_BYTES_MAX 1024u /* with its TLVs: a longer header is refused */
#define PROXY_READ_BYTES_MAX (PROXY_FIXED_BYTES + PROXY_ADDRESSES_MAX)

typedef enum proxy_transport { PROXY_UNSPECIFIED, PROXY_STREAM, PROXY_DATAGRAM } proxy_transport;

typedef struct proxy_header {
    uint32_t read_bytes;   /* of the header that say everything here: at most PROXY_READ_BYTES_MAX */
    uint32_t length;       /* of the whole header: what is behind `read_bytes` is skipped */
    uint32_t source_bytes; /* 4: IPv4, 16: IPv6; 0: no address is told, the connection's own one counts */
    uint8_t source[16];
    uint16_t source_port;
    proxy_transport transport; /* of the connection that the proxy has; unspecified where no address is told */
} proxy_header;

typedef enum proxy_result {
    PROXY_MORE,  /* `read_bytes` of it are needed to go on */
    PROXY_WHOLE, /* `out` is filled in */
    PROXY_WRONG, /* these bytes do not begin a header that is served */
} proxy_result;

/* Judges the first `length` bytes of a connection. A wrong byte is found as soon as it is there. */
proxy_result proxy_header_read(const uint8_t *bytes, size_t length, proxy_header *out);
#endif
