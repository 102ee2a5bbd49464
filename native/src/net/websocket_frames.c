/* See websocket_frames.h. */
#include "net/websocket_frames.h"

#include <string.h>

static void fail(frame_input *f, uint16_t code) {
    f->closed = f->broken = true;
    f->close_code = code;
}

/* ---- UTF-8 (RFC 3629) ---- */

static bool utf8_begin(utf8_check *u, uint8_t c) {
    *u = (utf8_check){.low = 0x80, .high = 0xbf};
    if (c < 0x80) return true;
    if (c < 0xc2 || c > 0xf4) return false;
    u->left = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (c == 0xe0) u->low = 0xa0;
    if (c == 0xed) u->high = 0x9f; /* no surrogates */
    if (c == 0xf0) u->low = 0x90;
    if (c == 0xf4) u->high = 0x8f;
    return true;
}

static bool utf8_go_on(utf8_check *u, const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (u->left == 0) {
            if (!utf8_begin(u, bytes[i])) return false;
            continue;
        }
        if (bytes[i] < u->low || bytes[i] > u->high) return false;
        *u = (utf8_check){.left = (uint8_t)(u->left - 1), .low = 0x80, .high = 0xbf};
    }
    return true;
}

/* ---- payload ---- */

/* The mask turned to the next byte, twice in a word: what follows is whole words, which compilers turn into vectors. */
static void unmask(uint8_t *restrict out, const uint8_t *restrict in, size_t length, const uint8_t mask[4],
                   uint8_t phase) {
    uint8_t turned[8];
    uint64_t key;
    for (unsigned i = 0; i < 8; i++) turned[i] = mask[(phase + i) & 3];
    memcpy(&key, turned, sizeof key);
    size_t at = 0;
    for (; at + 8 <= length; at += 8) {
        uint64_t word;
        memcpy(&word, in + at, sizeof word);
        word ^= key;
        memcpy(out + at, &word, sizeof word);
    }
    for (; at < length; at++) out[at] = in[at] ^ turned[at & 7];
}

static void take(frame_input *f, uint8_t *out, const uint8_t *in, size_t length) {
    if (f->masked) unmask(out, in, length, f->mask, f->phase);
    else memcpy(out, in, length);
    f->phase = (uint8_t)((f->phase + length) & 3);
    f->left -= length;
}

static bool is_close_code(uint16_t code) {
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) || (code >= 3000 && code <= 4999);
}

static void end_close(frame_input *f) {
    utf8_check reason = {0};
    if (f->control_have == 1) {
        fail(f, CLOSE_PROTOCOL_ERROR);
        return;
    }
    f->closed = true;
    f->close_code = CLOSE_NOTHING_SAID;
    if (f->control_have == 0) return;
    uint16_t code = (uint16_t)(f->control[0] << 8 | f->control[1]);
    if (!is_close_code(code)) fail(f, CLOSE_PROTOCOL_ERROR);
    else if (!utf8_go_on(&reason, f->control + 2, f->control_have - 2u) || reason.left > 0) fail(f, CLOSE_INVALID_TEXT);
    else f->close_code = code;
}

static void end_control(frame_input *f) {
    if (f->opcode == FRAME_CLOSE) end_close(f);
    if (f->opcode != FRAME_PING) return;
    memcpy(f->pong, f->control, f->control_have);
    f->pong_length = f->control_have;
    f->pong_due = true;
}

static void end_frame(frame_input *f) {
    f->in_frame = false;
    f->head_have = 0;
    if (f->opcode >= FRAME_CLOSE) {
        end_control(f);
        return;
    }
    f->in_message = !f->final;
    if (f->final && f->text && f->utf8.left > 0) fail(f, CLOSE_INVALID_TEXT);
}

/* ---- heads ---- */

static uint32_t head_wanted(const frame_input *f) {
    if (f->head_have < 2) return 2;
    uint8_t length = f->head[1] & 0x7f;
    return 2u + (length == 126 ? 2 : length == 127 ? 8 : 0) + ((f->head[1] & 0x80) != 0 ? 4 : 0);
}

/* False: what its first two bytes say is wrong. */
static bool check_first(frame_input *f, const frame_limits *limits) {
    uint8_t opcode = f->head[0] & 15, length = f->head[1] & 0x7f;
    bool final = (f->head[0] & 0x80) != 0, control = opcode >= FRAME_CLOSE;
    if ((f->head[0] & 0x70) != 0) return false; /* no extension was agreed on */
    if ((opcode > FRAME_BINARY && !control) || opcode > FRAME_PONG) return false;
    if ((f->head[1] & 0x80) == 0 && !limits->accept_unmasked) return false;
    if (control) return final && length <= WEBSOCKET_CONTROL_MAX;
    return (opcode == FRAME_CONTINUATION) == f->in_message;
}

/* In as few bytes as it needs; UINT64_MAX: it is not. */
static uint64_t length_of(const uint8_t *head) {
    uint8_t length = head[1] & 0x7f;
    uint64_t value = 0;
    if (length < 126) return length;
    for (uint32_t i = 0; i < (length == 126 ? 2u : 8u); i++) value = value << 8 | head[2 + i];
    if (length == 126) return value >= 126 ? value : UINT64_MAX;
    return value > UINT16_MAX && value <= INT64_MAX ? value : UINT64_MAX;
}

static void begin_frame(frame_input *f, const frame_limits *limits) {
    f->masked = (f->head[1] & 0x80) != 0;
    uint64_t length = length_of(f->head);
    if (length == UINT64_MAX) {
        fail(f, CLOSE_PROTOCOL_ERROR);
        return;
    }
    f->opcode = f->head[0] & 15;
    f->left = length;
    f->phase = 0;
    f->in_frame = true;
    if (f->masked) memcpy(f->mask, f->head + f->head_have - 4, 4);
    if (f->opcode >= FRAME_CLOSE) {
        f->control_have = 0;
        return;
    }
    f->final = (f->head[0] & 0x80) != 0;
    if (f->opcode != FRAME_CONTINUATION) {
        f->text = f->opcode == FRAME_TEXT;
        f->utf8 = (utf8_check){0};
        f->message_bytes = 0;
    }
    if (length > limits->frame_bytes_max || length > limits->message_bytes_max - f->message_bytes)
        fail(f, CLOSE_TOO_BIG);
    f->message_bytes += length;
}

/* Bytes of `in` that it took. */
static size_t take_head(frame_input *f, const frame_limits *limits, const uint8_t *in, size_t length) {
    size_t used = 0;
    while (f->head_have < head_wanted(f) && used < length) {
        f->head[f->head_have++] = in[used++];
        if (f->head_have == 2 && !check_first(f, limits)) {
            fail(f, CLOSE_PROTOCOL_ERROR);
            return used;
        }
    }
    if (f->head_have >= 2 && f->head_have == head_wanted(f)) begin_frame(f, limits);
    return used;
}

/* What goes nowhere. Bytes of `in` that it took. */
static size_t take_aside(frame_input *f, const uint8_t *in, size_t length) {
    uint8_t text[512];
    if (length > f->left) length = (size_t)f->left;
    if (f->opcode >= FRAME_CLOSE) {
        take(f, f->control + f->control_have, in, length);
        f->control_have = (uint8_t)(f->control_have + length);
        return length;
    }
    if (length > sizeof text) length = sizeof text;
    take(f, text, in, length);
    if (!utf8_go_on(&f->utf8, text, length)) fail(f, CLOSE_INVALID_TEXT);
    return length;
}

size_t frames_decode(frame_input *f, const frame_limits *limits, const uint8_t *in, size_t length, size_t *used,
                     uint8_t *out, size_t room) {
    size_t at = 0, written = 0;
    unsigned ended = 0;
    while (!f->closed) {
        if (f->in_frame && f->left == 0) {
            end_frame(f);
            ended++;
            continue;
        }
        if (ended >= FRAMES_PER_DECODE) break;
        if (at == length) break;
        if (!f->in_frame) {
            at += take_head(f, limits, in + at, length - at);
        } else if (f->opcode >= FRAME_CLOSE || f->text) {
            at += take_aside(f, in + at, length - at);
        } else {
            size_t part = length - at < room - written ? length - at : room - written;
            if (part > f->left) part = (size_t)f->left;
            if (part == 0) break;
            take(f, out + written, in + at, part);
            at += part;
            written += part;
        }
    }
    *used = at;
    return written;
}

/* ---- ours ---- */

size_t frame_put_head(uint8_t out[WEBSOCKET_HEAD_OUT_MAX], uint64_t length) {
    out[0] = 0x80 | FRAME_BINARY;
    if (length < 126) {
        out[1] = (uint8_t)length;
        return 2;
    }
    uint32_t bytes = length <= UINT16_MAX ? 2 : 8;
    out[1] = bytes == 2 ? 126 : 127;
    for (uint32_t i = 0; i < bytes; i++) out[2 + i] = (uint8_t)(length >> (8 * (bytes - 1 - i)));
    return 2 + bytes;
}

size_t frame_put_control(uint8_t out[WEBSOCKET_CONTROL_OUT_MAX], frame_opcode opcode, const uint8_t *bytes,
                         size_t length) {
    out[0] = (uint8_t)(0x80 | opcode);
    out[1] = (uint8_t)length;
    if (length > 0) memcpy(out + 2, bytes, length);
    return 2 + length;
}

size_t frame_put_close(uint8_t out[WEBSOCKET_CONTROL_OUT_MAX], uint16_t code) {
    uint8_t said[2] = {(uint8_t)(code >> 8), (uint8_t)code};
    return frame_put_control(out, FRAME_CLOSE, said, code == CLOSE_NOTHING_SAID ? 0 : 2);
}
