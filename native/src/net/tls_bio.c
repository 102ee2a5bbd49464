/* Between OpenSSL and the socket of a stream: what it reads was received, what it writes is sent or waits. */
#include "net/stream_tls.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- what OpenSSL takes for a socket ---- */

static int bio_read(BIO *b, char *data, int length) {
    tls_stream *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    stream_feed *f = &t->feed;
    if (f->length == 0) {
        BIO_set_retry_read(b);
        return -1;
    }
    uint32_t part = (uint32_t)length < f->length ? (uint32_t)length : f->length;
    memcpy(data, f->bytes, part);
    feed_skip(f, part);
    t->held += part;
    return (int)part;
}

static int bio_write(BIO *b, const char *data, int length) {
    const tls_stream *t = BIO_get_data(b);
    tls *w = t->tls;
    BIO_clear_retry_flags(b);
    if (t->out != NULL || t->leaving || TLS_ROOM_BYTES - w->out_length < (size_t)length) {
        BIO_set_retry_write(b);
        return -1;
    }
    memcpy(w->out + w->out_length, data, (size_t)length);
    w->out_length += (size_t)length;
    return length;
}

static long bio_control(BIO *b, int command, long number, void *pointer) {
    (void)b, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD *tls_socket_calls(void) {
    BIO_METHOD *made = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "stream");
    if (made == NULL) return NULL;
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
}

BIO *tls_bio_new(tls_stream *t) {
    BIO *b = BIO_new(t->tls->socket_calls);
    if (b == NULL) return NULL;
    BIO_set_data(b, t);
    BIO_set_init(b, 1);
    return b;
}

/* ---- what waits ---- */

/* What OpenSSL has written and the kernel does not take waits in memory of its own. */
void tls_keep_output(tls_stream *t, size_t from) {
    tls *w = t->tls;
    ASSERT(t->out == NULL);
    t->out = malloc(w->out_length - from);
    if (t->out != NULL) memcpy(t->out, w->out + from, w->out_length - from);
    else t->broken = true;
    t->out_length = w->out_length - from;
    t->out_sent = 0;
    w->out_length = 0;
}

void tls_free_output(tls_stream *t) {
    free(t->out);
    t->out = NULL;
    t->out_length = t->out_sent = 0;
}

bool tls_push_output(tls_stream *t) {
    if (t->leaving) return false;
    if (t->out != NULL) {
        ssize_t sent = stream_send_now(&t->socket, t->out + t->out_sent, t->out_length - t->out_sent);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) t->broken = true;
        if (sent > 0) t->out_sent += (size_t)sent;
        if (t->out_sent < t->out_length) return false;
        tls_free_output(t);
    }
    tls *w = t->tls;
    if (w->out_length == 0) return true;
    ssize_t sent = stream_send_now(&t->socket, w->out, w->out_length);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) t->broken = true;
    if (sent == (ssize_t)w->out_length) {
        w->out_length = 0;
        return true;
    }
    tls_keep_output(t, sent > 0 ? (size_t)sent : 0);
    return false;
}
