/* TLS over a socket as a stream. OpenSSL sees neither the socket nor the loop: it reads what `take` has brought, and
 * writes into room that the worker has for the stream whose turn it is.
 *
 * What is sent counts as sent when all of its records are with the kernel: until then the connection keeps it. */
#include "net/stream_tls.h"

#include "base/assert.h"

#include <errno.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLOSE_BYTES_MAX 31u /* of the record that ends a stream */

static bool begin(tls_stream *t) {
    tls_context *c = t->tls->ports[t->port].context;
    t->context = c != NULL ? tls_context_hold(c) : NULL;
    t->ssl = t->context != NULL ? tls_context_begin(t->context, t->tls) : NULL;
    BIO *b = t->ssl != NULL ? tls_bio_new(t) : NULL;
    if (b != NULL) SSL_set_bio(t->ssl, b, b);
    return b != NULL;
}

/* ---- output ---- */

static bool is_open(const stream *s) {
    const tls_stream *t = s->state;
    return t->ssl != NULL && !s->opening && !t->broken && !t->closed;
}

/* Seals a part of it into the worker's room; 0: it cannot. */
static size_t seal(tls_stream *t, const uint8_t *data, size_t length) {
    size_t written = 0;
    ERR_clear_error();
    if (length > TLS_WRITE_BYTES) length = TLS_WRITE_BYTES;
    if (SSL_write_ex(t->ssl, data, length, &written) == 1) return written;
    t->broken = true;
    t->tls->out_length = 0;
    return 0;
}

static ssize_t send_now(stream *s, const void *data, size_t length) {
    tls_stream *t = s->state;
    size_t done = 0;
    errno = EPIPE;
    if (!is_open(s)) return -1;
    if (tls_push_output(t)) { /* the same bytes come again: they are sealed already */
        done = t->owed < length ? t->owed : length;
        t->owed -= done;
    }
    while (done < length && t->out == NULL && t->owed == 0 && !t->broken) {
        size_t part = seal(t, (const uint8_t *)data + done, length - done);
        if (tls_push_output(t)) done += part;
        else t->owed = part;
    }
    errno = t->broken ? EPIPE : EAGAIN;
    return done > 0 ? (ssize_t)done : -1;
}

static void send_later(stream *s, io *i, operation *op, const void *data, size_t length) {
    tls_stream *t = s->state;
    if (is_open(s) && t->out == NULL && t->owed == 0) {
        t->owed = seal(t, data, length);
        if (!t->broken) tls_keep_output(t, 0);
    }
    t->leaving = true;
    if (!t->broken && (t->out != NULL || t->owed > 0)) {
        stream_send(&t->socket, i, op, t->out + t->out_sent, t->out_length - t->out_sent);
        return;
    }
    stream_stop(&t->socket); /* the operation tells */
    stream_send(&t->socket, i, op, "", 1);
}

static bool sent(stream *s, io *i, operation *op, int *result) {
    tls_stream *t = s->state;
    if (*result > 0 && t->out != NULL) t->out_sent += (size_t)*result;
    if (*result <= 0 || t->out == NULL) {
        t->leaving = false;
        return true;
    }
    if (t->out_sent < t->out_length) {
        stream_send(&t->socket, i, op, t->out + t->out_sent, t->out_length - t->out_sent);
        return false;
    }
    tls_free_output(t);
    t->leaving = false;
    *result = 0; /* send_now counts them: it may be that they were asked for in smaller parts */
    return true;
}

/* Nobody waits for it: what a handshake or an alert could not get into the socket. */
static void look(stream *s) {
    tls_stream *t = s->state;
    tls_push_output(t);
}

/* ---- input ---- */

static void take(stream *s, const uint8_t *bytes, uint32_t length) {
    feed_take(&((tls_stream *)s->state)->feed, bytes, length);
}

static bool keep(stream *s) { return feed_keep(&((tls_stream *)s->state)->feed); }

static size_t available(const stream *s) {
    const tls_stream *t = s->state;
    if (t->broken) return 1;
    if (t->ssl == NULL) return 0;
    int pending = SSL_pending(t->ssl);
    bool something = t->feed.length > 0 || pending > 0 || t->ended || t->feed.ended;
    return something ? t->feed.length + t->held + (size_t)pending + 1 : 0;
}

static void break_off(tls_stream *t) {
    t->broken = true;
    t->feed.length = 0;
    ERR_clear_error();
}

static ssize_t open_further(stream *s) {
    tls_stream *t = s->state;
    if (t->broken || t->ssl == NULL) {
        errno = EPROTO;
        return -1;
    }
    ERR_clear_error();
    int result = SSL_do_handshake(t->ssl);
    int why = result == 1 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, result);
    if (why == SSL_ERROR_NONE) {
        s->opening = false;
        t->held = 0;
        t->tls->counters.handshakes++;
        t->tls->counters.resumed += SSL_session_reused(t->ssl) == 1;
    } else if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        t->tls->counters.failed++;
        break_off(t);
    }
    tls_push_output(t);
    errno = t->broken ? EPROTO : EAGAIN;
    return -1;
}

/* As many records as there are, fit, and belong to one turn. One that brings nothing (an update of keys, a ticket)
 * counts as any other: OpenSSL returns after each (SSL_MODE_AUTO_RETRY is off). */
static size_t read_records(tls_stream *t, uint8_t *data, size_t length) {
    size_t got = 0;
    for (unsigned steps = 0; got < length && steps < TLS_RECORDS_PER_READ && !t->broken; steps++) {
        size_t part = 0;
        ERR_clear_error();
        if (SSL_read_ex(t->ssl, data + got, length - got, &part) == 1) {
            got += part;
            t->held = 0;
            continue;
        }
        int why = SSL_get_error(t->ssl, 0);
        if (why == SSL_ERROR_WANT_READ && t->feed.length > 0) continue;
        if (why == SSL_ERROR_WANT_READ && feed_refill(&t->feed, &t->socket, t->tls->in, length - got)) continue;
        if (why == SSL_ERROR_ZERO_RETURN) t->ended = true;
        else if (why == SSL_ERROR_WANT_WRITE ? t->owed == 0 && !t->leaving : why != SSL_ERROR_WANT_READ)
            break_off(t); /* or it has us speak (updates of keys) and does not read: else each turn would try again */
        break;
    }
    return got;
}

static ssize_t receive_now(stream *s, void *data, size_t length) {
    tls_stream *t = s->state;
    if (s->opening || t->ssl == NULL) return open_further(s);
    size_t got = read_records(t, data, length);
    if (t->feed.broken) t->broken = true;
    if (!feed_settle(&t->feed)) t->broken = true;
    tls_push_output(t);
    if (got > 0) return (ssize_t)got;
    errno = t->broken ? EPROTO : EAGAIN;
    return (t->ended || t->feed.ended) && !t->broken ? 0 : -1;
}

static void receive_provided(stream *s, io *i, operation *op, buffer_set set) {
    stream_receive_provided(&((tls_stream *)s->state)->socket, i, op, set);
}

/* Ended, but for the record that says so: nobody reads it while a request is in work. */
static bool has_ended(stream *s) {
    tls_stream *t = s->state;
    uint8_t bytes[CLOSE_BYTES_MAX + 1];
    struct pollfd ends = {.fd = s->fd, .events = POLLRDHUP};
    if (t->ended || t->feed.ended || t->broken || stream_has_ended(&t->socket)) return true;
    if (poll(&ends, 1, 0) < 1 || (ends.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) return false;
    return recv(s->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT) <= (ssize_t)CLOSE_BYTES_MAX;
}

/* ---- its end ---- */

static void say_end(stream *s) {
    tls_stream *t = s->state;
    if (!is_open(s) || t->out != NULL || t->leaving) return;
    t->closed = true;
    ERR_clear_error();
    SSL_shutdown(t->ssl);
    ERR_clear_error();
    tls_push_output(t);
}

static void end_output(stream *s) {
    say_end(s);
    stream_end_output(&((tls_stream *)s->state)->socket);
}

static void stop(stream *s) {
    say_end(s);
    stream_stop(&((tls_stream *)s->state)->socket);
}

static void close_it(stream *s, io *i) {
    tls_stream *t = s->state;
    stream_close(&t->socket, i);
    SSL_free(t->ssl);
    tls_context_let_go(t->context);
    free(t->feed.kept);
    free(t->out);
    free(t);
}

static bool peer(const stream *s, struct sockaddr_storage *out) {
    return stream_peer(&((const tls_stream *)s->state)->socket, out);
}

/* ---- what it is ---- */

static char *names(const stream *s) {
    const tls_stream *t = s->state;
    X509 *shown = t->ssl != NULL ? SSL_get1_peer_certificate(t->ssl) : NULL;
    bool good = shown != NULL && SSL_get_verify_result(t->ssl) == X509_V_OK;
    char *found = good ? tls_names(shown) : NULL;
    X509_free(shown);
    return found;
}

/* A record of a handshake: 22, 3, 1 to 4. A frame that begins so is longer than a first one may be. */
static bool is_hello(const uint8_t *bytes, uint32_t length) {
    return bytes[0] == 22 && (length < 2 || bytes[1] == 3) && (length < 3 || bytes[2] <= 4);
}

static void recognize(stream *s, const uint8_t *bytes, uint32_t length);

static const stream_calls calls = {.receive_provided = receive_provided,
                                   .receive_now = receive_now,
                                   .send = send_later,
                                   .send_now = send_now,
                                   .has_ended = has_ended,
                                   .end_output = end_output,
                                   .stop = stop,
                                   .close = close_it,
                                   .peer = peer,
                                   .recognize = recognize,
                                   .take = take,
                                   .keep = keep,
                                   .available = available,
                                   .sent = sent,
                                   .look = look,
                                   .names = names};

static void recognize(stream *s, const uint8_t *bytes, uint32_t length) {
    tls_stream *t = s->state;
    if (t->recognized) return;
    bool hello = is_hello(bytes, length);
    t->tls->counters.plain += !hello;
    if (!hello && t->tls->ports[t->port].mode == TLS_BOTH) {
        *s = t->socket;
        free(t);
        return;
    }
    t->recognized = s->opening = true;
    if (!hello || !begin(t)) t->broken = true;
}

bool stream_tls(stream *out, tls *t, tls_port port, int fd) {
    tls_stream *state = calloc(1, sizeof *state);
    if (state == NULL) {
        close(fd);
        return false;
    }
    state->tls = t;
    state->port = port;
    state->socket = stream_socket(fd);
    *out = (stream){.calls = &calls, .fd = fd, .state = state, .opening = t->ports[port].mode == TLS_REQUIRED};
    return true;
}
