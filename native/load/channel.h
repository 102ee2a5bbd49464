/* What lies between an actor and its socket: TLS, WebSocket, or WebSocket over TLS. A channel is opened while its
 * socket blocks (with timeouts of its own) and is used like send(2) and recv(2), blocking or not. */
#ifndef LOAD_CHANNEL_H
#define LOAD_CHANNEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct channel channel;

typedef struct channel_options {
    bool tls, websocket;
    bool verify;             /* the certificate, for `name` */
    const char *name;        /* of the server */
    const char *ca_file;     /* "": the authorities of this machine */
    const char *certificate; /* of the client, "": none */
    const char *key;
} channel_options;

enum { CHANNEL_FAULT_MAX = 160 };

/* Handshake and upgrade. NULL with a sentence in `fault`; the socket stays with the caller. */
channel *channel_open(int fd, const channel_options *options, char fault[CHANNEL_FAULT_MAX]);
/* Like send and recv: -1 with errno, EAGAIN when the socket would block; 0 of a receive is the end. What was sent may
 * still be kept here: each call pushes it on. */
ssize_t channel_send(channel *c, const uint8_t *bytes, size_t length);
ssize_t channel_receive(channel *c, uint8_t *into, size_t room);
void channel_close(channel *c);

/* Takes the frames of a WebSocket apart, in place, as they come in any pieces. */
typedef struct frame_reader {
    uint64_t left; /* of the frame */
    uint8_t head[10], control[125];
    uint8_t head_have, control_have, opcode;
    bool closed, wrong; /* it said so; it is no frame of a server */
    bool ping;          /* one is whole in `control` */
} frame_reader;

/* Bytes of payload, now at the beginning of `bytes`. `taken`: how many of them were looked at; fewer when a ping has to
 * be answered first. */
size_t frames_take(frame_reader *r, uint8_t *bytes, size_t length, size_t *taken);
/* One masked frame; its length, at most 14 more than that of the payload. */
size_t frame_put(uint8_t *out, uint8_t opcode, const uint8_t *payload, size_t length, uint32_t mask);
#endif
