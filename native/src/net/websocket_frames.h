/* Frames of WebSocket (RFC 6455, section 5) as bytes come: what binary messages hold becomes one stream of bytes, text
 * is checked and dropped, control frames leave what has to be answered. */
#ifndef SHARDD_WEBSOCKET_FRAMES_H
#define SHARDD_WEBSOCKET_FRAMES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEBSOCKET_CONTROL_MAX 125u /* bytes of a control frame */
#define WEBSOCKET_HEAD_OUT_MAX 10u
#define WEBSOCKET_CONTROL_OUT_MAX (2u + WEBSOCKET_CONTROL_MAX)

typedef enum frame_opcode {
    FRAME_CONTINUATION = 0,
    FRAME_TEXT = 1,
    FRAME_BINARY = 2,
    FRAME_CLOSE = 8,
    FRAME_PING = 9,
    FRAME_PONG = 10,
} frame_opcode;

/* Why a connection ends (section 7.4.1). */
enum {
    CLOSE_NORMAL = 1000,
    CLOSE_GOING_AWAY = 1001,
    CLOSE_PROTOCOL_ERROR = 1002,
    CLOSE_NOTHING_SAID = 1005, /* never on the wire */
    CLOSE_INVALID_TEXT = 1007,
    CLOSE_POLICY,
    CLOSE_TOO_BIG, /* the numbers go on by one */
};

typedef struct frame_limits {
    uint64_t frame_bytes_max, message_bytes_max;
    bool accept_unmasked;
} frame_limits;

typedef struct utf8_check {
    uint8_t left, low, high; /* bytes of a character that are to come, and the bounds of the next one */
} utf8_check;

typedef struct frame_input {
    uint8_t head[14], head_have;
    bool in_frame, final, text; /* of the message */
    bool in_message;
    bool masked;
    uint8_t opcode, mask[4], phase; /* phase: of the mask at the next byte */
    uint64_t left, message_bytes;   /* of the frame; of the message so far */
    utf8_check utf8;
    uint8_t control[WEBSOCKET_CONTROL_MAX], control_have;
    uint8_t pong[WEBSOCKET_CONTROL_MAX], pong_length;
    bool pong_due;       /* for the last PING */
    bool closed;         /* a CLOSE has come, or something that is none of all this: nothing is read any more */
    uint16_t close_code; /* what our own CLOSE says then */
    bool broken;         /* it was no good CLOSE */
} frame_input;

#define FRAMES_PER_DECODE 1024u /* PINGs and empty fragments bring nothing, and take their time */

/* Decodes into `out`, up to its room, as many frames as belong to one call; how many bytes of `in` that took is in
 * `used`. Bytes written. */
size_t frames_decode(frame_input *f, const frame_limits *limits, const uint8_t *in, size_t length, size_t *used,
                     uint8_t *out, size_t room);
/* The head of a binary message of one frame. Its length. */
size_t frame_put_head(uint8_t out[WEBSOCKET_HEAD_OUT_MAX], uint64_t length);
size_t frame_put_control(uint8_t out[WEBSOCKET_CONTROL_OUT_MAX], frame_opcode opcode, const uint8_t *bytes,
                         size_t length);
size_t frame_put_close(uint8_t out[WEBSOCKET_CONTROL_OUT_MAX], uint16_t code);
#endif
