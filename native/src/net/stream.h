/* The stream under a connection: bytes in, bytes out, closing. Sockets are one implementation (stream_socket.c).
 *
 * What may wait is an `operation` of the connection: it completes by conn_on_receive and conn_on_send, never inside of
 * the call that starts it, and at most one of each direction is under way.
 *
 * A stream may translate: what its operations receive and send is then not what the client says and hears. It does so
 * when it is the connection's turn (conn/translated.c), not when the bytes come. Such a stream may lie over another. */
#ifndef SHARDD_STREAM_H
#define SHARDD_STREAM_H
#include "io/io.h"

#include <sys/socket.h>
#include <sys/types.h>

typedef struct stream stream;

/* Who is at the other end of a Unix socket, where addresses of networks have theirs. */
typedef struct local_peer {
    sa_family_t family; /* AF_UNIX */
    uint32_t uid;       /* of the process that connected */
    uint64_t socket;    /* a number that no other open socket of this host has */
} local_peer;
_Static_assert(sizeof(local_peer) <= sizeof(struct sockaddr_storage), "it stands for one");

typedef struct stream_calls {
    /* Into a buffer of the set, which is taken only when there is something (conn_on_receive with its id). */
    void (*receive_provided)(stream *s, io *i, operation *op, buffer_set set);
    void (*receive)(stream *s, io *i, operation *op, void *data, uint32_t length);
    ssize_t (*receive_now)(stream *s, void *data, size_t length); /* what is there; 0: the end; -1 and errno */
    void (*send)(stream *s, io *i, operation *op, const void *data, size_t length);
    ssize_t (*send_now)(stream *s, const void *data, size_t length); /* what fits; -1 and errno */
    bool (*has_ended)(stream *s); /* the client has ended its half, and nothing of it is left */
    void (*end_output)(stream *s);
    void (*stop)(stream *s);                                     /* both directions: operations under way complete */
    void (*close)(stream *s, io *i);                             /* NULL: that is closed already */
    bool (*peer)(const stream *s, struct sockaddr_storage *out); /* a local_peer for a Unix socket */
    /* Of a stream that may be one of several kinds, with its first bytes: it becomes one of them. NULL: it is. */
    void (*recognize)(stream *s, const uint8_t *bytes, uint32_t length);
    /* Of streams that translate; NULL: this one does not, and the rest is NULL, too. `receive` is never called then. */
    void (*take)(stream *s, const uint8_t *bytes, uint32_t length); /* receive_now reads these alone, until `keep` */
    bool (*keep)(stream *s);              /* the bytes of `take` go: what is not read is copied. False: no memory */
    size_t (*available)(const stream *s); /* at most so much can be read without the socket; 0: nothing */
    /* A send is over. False: it goes on with the same operation; else `result` counts bytes of the connection. */
    bool (*sent)(stream *s, io *i, operation *op, int *result);
    void (*look)(stream *s); /* now and then: what the stream itself has to say may not have fitted into the socket */
    /* Who the client is by its certificate: lines such as "CN:name", "DNS:host"; malloc'ed, NULL: it has shown none. */
    char *(*names)(const stream *s);
} stream_calls;

struct stream {
    const stream_calls *calls;
    int fd;       /* of a socket */
    void *state;  /* of another implementation */
    bool movable; /* the descriptor can go to another worker; otherwise requests are forwarded for ever */
    bool opening; /* both sides agree on how to go on: expensive, and its turn is among those who do the same */
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
static inline bool stream_translates(const stream *s) { return s->calls->take != NULL; }
static inline void stream_recognize(stream *s, const uint8_t *bytes, uint32_t length) {
    if (s->calls->recognize != NULL) s->calls->recognize(s, bytes, length);
}
static inline void stream_take(stream *s, const uint8_t *bytes, uint32_t length) { s->calls->take(s, bytes, length); }
static inline bool stream_keep(stream *s) { return s->calls->keep(s); }
static inline size_t stream_available(const stream *s) { return s->calls->available(s); }
static inline bool stream_sent(stream *s, io *i, operation *op, int *result) {
    return s->calls->sent == NULL || s->calls->sent(s, i, op, result);
}
static inline void stream_look(stream *s) {
    if (s->calls->look != NULL) s->calls->look(s);
}
static inline char *stream_names(const stream *s) { return s->calls->names != NULL ? s->calls->names(s) : NULL; }
static inline bool stream_peer(const stream *s, struct sockaddr_storage *out) { return s->calls->peer(s, out); }
#endif
