/* WebSocket for the load client: one request in one masked message; frames around the answers are taken off. */
#include "load.h"

#include <string.h>
#include <sys/socket.h>

bool websocket_upgrade(int fd) {
    static const char request[] = "GET / HTTP/1.1\r\nHost: load\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    char answer[256] = "";
    size_t have = 0;
    if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) != sizeof request - 1) return false;
    while (have < sizeof answer - 1 && strstr(answer, "\r\n\r\n") == NULL) {
        if (recv(fd, answer + have, 1, 0) != 1) return false;
        have++;
    }
    return strncmp(answer, "HTTP/1.1 101 ", 13) == 0;
}

size_t websocket_wrap(uint8_t *out, const uint8_t *bytes, uint32_t length, uint32_t mask) {
    uint64_t twice = (uint64_t)mask << 32 | mask, word;
    size_t head = 2, at = 0;
    out[0] = 0x82;
    if (length < 126) {
        out[1] = (uint8_t)(0x80 | length);
    } else {
        uint32_t bytes_of_length = length <= UINT16_MAX ? 2 : 8;
        out[1] = bytes_of_length == 2 ? 0x80 | 126 : 0x80 | 127;
        for (uint32_t i = 0; i < bytes_of_length; i++)
            out[head++] = (uint8_t)((uint64_t)length >> (8 * (bytes_of_length - 1 - i)));
    }
    memcpy(out + head, &mask, 4);
    head += 4;
    for (; at + 8 <= length; at += 8) {
        memcpy(&word, bytes + at, 8);
        word ^= twice;
        memcpy(out + head + at, &word, 8);
    }
    for (; at < length; at++) out[head + at] = bytes[at] ^ (uint8_t)(mask >> (8 * (at % 4)));
    return head + length;
}

size_t websocket_strip(websocket_reader *r, uint8_t *bytes, size_t length) {
    size_t at = 0, kept = 0;
    while (at < length) {
        if (r->left > 0) {
            size_t part = length - at < r->left ? length - at : (size_t)r->left;
            memmove(bytes + kept, bytes + at, part);
            kept += part;
            at += part;
            r->left -= part;
            continue;
        }
        r->head[r->have++] = bytes[at++];
        uint32_t extra = r->have < 2 ? 0 : r->head[1] == 126 ? 2 : r->head[1] == 127 ? 8 : 0;
        if (r->have < 2 || r->have < 2 + extra) continue;
        for (uint32_t i = 0; i < extra; i++) r->left = r->left << 8 | r->head[2 + i];
        if (extra == 0) r->left = r->head[1];
        r->have = 0;
    }
    return kept;
}
