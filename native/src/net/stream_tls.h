/* A stream of TLS, for the two files that are it: stream_tls.c and tls_bio.c. */
#ifndef SHARDD_STREAM_TLS_H
#define SHARDD_STREAM_TLS_H
#include "net/stream_feed.h"
#include "net/tls_openssl.h"

typedef struct tls_stream {
    tls *tls;
    tls_port port;
    tls_context *context; /* of its handshake */
    stream socket;
    SSL *ssl;         /* NULL: nothing has come yet */
    stream_feed feed; /* what OpenSSL has not read */
    uint32_t held;    /* of a record that is not complete, in OpenSSL */
    bool recognized, ended, broken, closed;
    uint8_t *out; /* sealed, and not with the kernel */
    size_t out_length, out_sent;
    size_t owed;  /* bytes that were sealed, and did not count as sent */
    bool leaving; /* an operation sends it */
} tls_stream;

BIO *tls_bio_new(tls_stream *t); /* what OpenSSL takes for a socket: calls of its `tls` */
void tls_keep_output(tls_stream *t, size_t from);
void tls_free_output(tls_stream *t);
bool tls_push_output(tls_stream *t); /* false: something of it waits, or the socket is broken */
#endif
