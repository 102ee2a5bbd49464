/* The stream under a connection: bytes in, bytes out, closing. Sockets are one implementation (stream_socket.c).
 *
 * What may wait is an `operation` of the connection: it completes by conn_on_receive and conn_on_send, never inside of
 * the call that starts it, and at most one of each direction is under way. */
#ifndef SHARDD_STREAM_H
#define SHARDD_STREAM_H
#include "io/io.h"

#include <sys/socket.h>
#include <sys/types.h>

typedef struct stream stream;

typedef struct stream_calls {
    /* Into a buffer of the set, which is taken only when there is something (conn_on_receive with its id). */
    void (*receive_provided)(stream *s, io *i, operation *op, buffer_set set);
    void (*receive)(stream *s, io *i, operation *op, void *data, uint32_t length);
    ssize_t (*receive_now)(stream *s, void *data, size_t length); /* what is there; 0: the end; -1 and errno */
    void (*send)(stream *s, io *i, operation *op, const void *data, size_t length);
    ssize_t (*send_now)(stream *s, const void *data, size_t length); /* what fits; -1 and errno */
    bool (*has_ended)(stream *s); /* the client has ended its half, and nothing of it is left */
    void (*end_output)(stream *s);
    void (*stop)(stream *s);         /* both directions: operations under way complete */
    void (*close)(stream *s, io *i); /* NULL: that is closed already */
    bool (*peer)(const stream *s, struct sockaddr_storage *out);
} stream_calls;

struct stream {
    const stream_calls *calls;
    int fd;       /* of a socket */
    void *state;  /* of another implementation */
    bool movable; /* the descriptor can go to another worker; otherwise requests are forwarded for ever */
};

stream stream_socket(int fd);

static inline void stream_receive_provided(stream *s, io *i, operation *op, buffer_set set) {
    s->calls->receive_provided(s, i, op, set);
}
static inline void stream_receive(stream *s, io *i, operation *op, void *data, uint32_t length) {
    s->calls->receive(s, i, op, data, length);
}
static inline ssize_t stream_receive_now(stream *s, void *data, size_t length) {
    return s->calls->receive_now(s, data, length);
}
static inline void stream_send(stream *s, io *i, operation *op, const void *data, size_t length) {
    s->calls->send(s, i, op, data, length);
}
static inline ssize_t stream_send_now(stream *s, const void *data, size_t length) {
    return s->calls->send_now(s, data, length);
}
static inline bool stream_has_ended(stream *s) { return s->calls->has_ended(s); }
static inline void stream_end_output(stream *s) { s->calls->end_output(s); }
static inline void stream_stop(stream *s) { s->calls->stop(s); }
static inline void stream_close(stream *s, io *i) { s->calls->close(s, i); }
static inline bool stream_peer(const stream *s, struct sockaddr_storage *out) { return s->calls->peer(s, out); }
#endif
