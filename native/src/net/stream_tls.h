/* A stream of TLS, for the two files that are it: stream_tls.c and tls_bio.c. */
#ifndef SHARDD_STREAM_TLS_H
#define SHARDD_STREAM_TLS_H
#include "net/tls_openssl.h"

typedef struct tls_stream {
    tls *tls;
    tls_context *context; /* of its handshake */
    stream socket;
    SSL *ssl; /* NULL: nothing has come yet */
    const uint8_t *fed;
    uint32_t fed_length; /* bytes of the socket that OpenSSL has not read */
    uint8_t *kept;       /* those of them that outlive the turn */
    uint32_t held;       /* of a record that is not complete, in OpenSSL */
    bool borrowed;       /* `fed` is not in `kept` */
    bool recognized, taking, ended, broken, closed;
    uint8_t *out;                      /* sealed, and not with the kernel */
    size_t out_length, out_sent, owed; /* what of the connection's it holds */
} tls_stream;

BIO *tls_bio_new(tls_stream *t); /* what OpenSSL takes for a socket: calls of its `tls` */
void tls_keep_output(tls_stream *t, size_t from);
void tls_free_output(tls_stream *t);
bool tls_push_output(tls_stream *t); /* false: something of it waits, or the socket is broken */
bool tls_keep_fed(tls_stream *t);
#endif
