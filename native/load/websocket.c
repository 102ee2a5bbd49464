/* Frames of a WebSocket, as a client has them (RFC 6455). */
#include <string.h>

#include "channel.h"

enum { FINAL = 0x80, MASKED = 0x80, CONTROL = 0x8, CLOSE = 0x8, PING = 0x9, SHORT_MAX = 125 };

size_t frame_put(uint8_t *out, uint8_t opcode, const uint8_t *payload, size_t length, uint32_t mask) {
    uint64_t twice = (uint64_t)mask << 32 | mask, word;
    size_t head = 2, at = 0, extra = length <= SHORT_MAX ? 0 : length <= UINT16_MAX ? 2 : 8;
    out[0] = (uint8_t)(FINAL | opcode);
    out[1] = (uint8_t)(MASKED | (extra == 0 ? length : extra == 2 ? 126 : 127));
    for (size_t i = 0; i < extra; i++) out[head++] = (uint8_t)((uint64_t)length >> (8 * (extra - 1 - i)));
    memcpy(out + head, &mask, sizeof mask);
    head += sizeof mask;
    for (; at + 8 <= length; at += 8) {
        memcpy(&word, payload + at, 8);
        word ^= twice;
        memcpy(out + head + at, &word, 8);
    }
    for (; at < length; at++) out[head + at] = payload[at] ^ (uint8_t)(mask >> (8 * (at % 4)));
    return head + length;
}

/* One more byte of a head. */
static void take_head(frame_reader *r, uint8_t byte) {
    r->head[r->head_have++] = byte;
    if (r->head_have < 2) return;
    uint8_t extra = r->head[1] == 126 ? 2 : r->head[1] == 127 ? 8 : 0;
    if (r->head_have < 2 + extra) return;
    r->head_have = 0;
    r->opcode = r->head[0] & 0x0f;
    r->left = extra == 0 ? r->head[1] : 0;
    for (uint8_t i = 0; i < extra; i++) r->left = r->left << 8 | r->head[2 + i];
    bool control = (r->opcode & CONTROL) != 0;
    if (control) r->control_have = 0;
    r->wrong |= (r->head[1] & MASKED) != 0 || (r->head[0] & 0x70) != 0 || (control && r->left > SHORT_MAX);
    if (control && r->left == 0) {
        r->closed |= r->opcode == CLOSE;
        r->ping = r->opcode == PING;
    }
}

static void take_control(frame_reader *r, const uint8_t *bytes, size_t length) {
    memcpy(r->control + r->control_have, bytes, length);
    r->control_have = (uint8_t)(r->control_have + length);
    if (r->left != 0) return;
    r->closed |= r->opcode == CLOSE;
    r->ping = r->opcode == PING;
}

size_t frames_take(frame_reader *r, uint8_t *bytes, size_t length, size_t *taken) {
    size_t at = 0, kept = 0;
    while (at < length && !r->wrong && !r->closed && !r->ping) {
        if (r->left == 0) {
            take_head(r, bytes[at++]);
            continue;
        }
        size_t part = length - at < r->left ? length - at : (size_t)r->left;
        r->left -= part;
        if ((r->opcode & CONTROL) != 0) {
            take_control(r, bytes + at, part);
        } else {
            memmove(bytes + kept, bytes + at, part);
            kept += part;
        }
        at += part;
    }
    *taken = at;
    return kept;
}
