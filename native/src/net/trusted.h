/* Networks whose hosts may speak for other addresses: proxies of this server (docs/configuration.md#proxies). */
#ifndef SHARDD_TRUSTED_H
#define SHARDD_TRUSTED_H
#include <stdbool.h>
#include <stdint.h>

#include <sys/socket.h>

#define TRUSTED_NETWORKS_MAX 64u

typedef struct trusted_network {
    uint8_t address_bytes, bits; /* 4 or 16; how many bits of it count */
    uint8_t address[16];
} trusted_network;

typedef struct trusted_networks {
    uint32_t count;
    trusted_network of[TRUSTED_NETWORKS_MAX];
} trusted_networks;

/* `lines`: one network each, "10.0.0.0/8\n"; "" names none. False: a line is not a network, or too many. */
bool trusted_parse(trusted_networks *t, const char *lines);
/* A host of IPv4 counts as that also when it comes by a socket of IPv6. A Unix socket is never trusted. */
bool trusted_has(const trusted_networks *t, const struct sockaddr_storage *peer);
#endif
