/* See trusted.h. */
#include "net/trusted.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES_MAX 64u

static bool parse_line(const char *line, trusted_network *out) {
    char text[LINE_BYTES_MAX];
    strcpy(text, line); /* it is shorter: trusted_parse */
    char *slash = strchr(text, '/'), *end = NULL;
    if (slash == NULL) return false;
    *slash = 0;
    unsigned long bits = strtoul(slash + 1, &end, 10);
    if (end == slash + 1 || *end != 0) return false;
    out->address_bytes = inet_pton(AF_INET, text, out->address) == 1    ? 4
                         : inet_pton(AF_INET6, text, out->address) == 1 ? 16
                                                                        : 0;
    out->bits = (uint8_t)bits;
    return out->address_bytes > 0 && bits <= out->address_bytes * 8ul;
}

bool trusted_parse(trusted_networks *t, const char *lines) {
    *t = (trusted_networks){0};
    while (*lines != 0) {
        char line[LINE_BYTES_MAX];
        const char *end = strchr(lines, '\n');
        if (end == NULL || end - lines >= (ptrdiff_t)sizeof line || t->count == TRUSTED_NETWORKS_MAX) return false;
        memcpy(line, lines, (size_t)(end - lines));
        line[end - lines] = 0;
        if (!parse_line(line, &t->of[t->count++])) return false;
        lines = end + 1;
    }
    return true;
}

static bool is_in(const trusted_network *n, const uint8_t *address, uint32_t bytes) {
    uint32_t whole = n->bits / 8, rest = n->bits % 8;
    if (n->address_bytes != bytes || memcmp(n->address, address, whole) != 0) return false;
    return rest == 0 || ((n->address[whole] ^ address[whole]) >> (8 - rest)) == 0;
}

bool trusted_has(const trusted_networks *t, const struct sockaddr_storage *peer) {
    const uint8_t *address;
    uint32_t bytes = 4;
    if (peer->ss_family == AF_INET) {
        address = (const uint8_t *)&((const struct sockaddr_in *)(const void *)peer)->sin_addr;
    } else if (peer->ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(v6);
        address = v6->s6_addr + (mapped ? 12 : 0);
        if (!mapped) bytes = 16;
    } else {
        return false;
    }
    for (uint32_t i = 0; i < t->count; i++)
        if (is_in(&t->of[i], address, bytes)) return true;
    return false;
}
