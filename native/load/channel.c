/* See channel.h. OpenSSL reads and writes the socket itself: a client has no memory to share with others. */
#include "channel.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BINARY = 0x2, PONG = 0xa, HEAD_MAX = 14, ANSWER_MAX = 2048 };

struct channel {
    int fd;
    SSL *ssl;
    bool websocket;
    frame_reader frames;
    uint8_t *out; /* frames that are not sent yet */
    size_t out_sent, out_length, out_room;
    uint8_t *kept; /* what came behind a ping that has to be answered first */
    size_t kept_at, kept_length;
    uint32_t mask;
};

/* ---- the layer below: the socket, or TLS ---- */

static ssize_t result_of(channel *c, int result) {
    if (result > 0) return result;
    int why = SSL_get_error(c->ssl, result);
    if (why == SSL_ERROR_ZERO_RETURN) return 0;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) errno = EAGAIN;
    else if (why != SSL_ERROR_SYSCALL || errno == 0) errno = EPROTO;
    return -1;
}

static int bounded(size_t length) { return length > INT32_MAX ? INT32_MAX : (int)length; }

static ssize_t below_send(channel *c, const uint8_t *bytes, size_t length) {
    if (c->ssl == NULL) return send(c->fd, bytes, length, MSG_NOSIGNAL);
    ERR_clear_error();
    errno = 0;
    return result_of(c, SSL_write(c->ssl, bytes, bounded(length)));
}

static ssize_t below_receive(channel *c, uint8_t *into, size_t room) {
    if (c->ssl == NULL) return recv(c->fd, into, room, 0);
    ERR_clear_error();
    errno = 0;
    return result_of(c, SSL_read(c->ssl, into, bounded(room)));
}

/* ---- opening ---- */

static bool fail(char *fault, const char *what, const char *why) {
    snprintf(fault, CHANNEL_FAULT_MAX, "%s: %.100s", what, why);
    return false;
}

static bool fail_tls(channel *c, char *fault, const char *what) {
    unsigned long error = ERR_peek_error();
    const char *why = ERR_SYSTEM_ERROR(error) ? strerror(ERR_GET_REASON(error)) : ERR_reason_error_string(error);
    long verified = c->ssl == NULL ? X509_V_OK : SSL_get_verify_result(c->ssl);
    if (verified != X509_V_OK && c->ssl != NULL && SSL_get_verify_mode(c->ssl) != SSL_VERIFY_NONE)
        why = X509_verify_cert_error_string(verified);
    return fail(fault, what, why != NULL ? why : "the connection ended");
}

static bool is_address(const char *name) {
    uint8_t bytes[16];
    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
}

static bool name_server(channel *c, const channel_options *o) {
    if (o->name[0] == 0) return !o->verify;
    if (is_address(o->name)) return !o->verify || X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(c->ssl), o->name) == 1;
    return SSL_set_tlsext_host_name(c->ssl, o->name) == 1 && (!o->verify || SSL_set1_host(c->ssl, o->name) == 1);
}

static bool begin_tls(channel *c, const channel_options *o, char *fault) {
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (context == NULL) return fail_tls(c, fault, "TLS");
    SSL_CTX_set_verify(context, o->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    bool trusts = o->ca_file[0] == 0 ? SSL_CTX_set_default_verify_paths(context) == 1
                                     : SSL_CTX_load_verify_locations(context, o->ca_file, NULL) == 1;
    bool shows = o->certificate[0] == 0 ||
                 (SSL_CTX_use_certificate_chain_file(context, o->certificate) == 1 &&
                  SSL_CTX_use_PrivateKey_file(context, o->key[0] == 0 ? o->certificate : o->key, SSL_FILETYPE_PEM) ==
                      1);
    if (trusts && shows) c->ssl = SSL_new(context);
    SSL_CTX_free(context);
    if (!trusts) return fail_tls(c, fault, o->ca_file);
    if (!shows) return fail_tls(c, fault, o->certificate);
    if (c->ssl == NULL || !name_server(c, o) || SSL_set_fd(c->ssl, c->fd) != 1) return fail_tls(c, fault, "TLS");
    return SSL_connect(c->ssl) == 1 ? true : fail_tls(c, fault, "the TLS handshake failed");
}

static bool upgrade(channel *c, char *fault) {
    /* the nonce of the RFC, and what has to come back for it: nobody caches here, and nobody is authenticated by it */
    static const char request[] =
        "GET / HTTP/1.1\r\nHost: shardd-bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    char answer[ANSWER_MAX] = "";
    size_t have = 0;
    if (below_send(c, (const uint8_t *)request, sizeof request - 1) != (ssize_t)sizeof request - 1)
        return fail(fault, "the WebSocket upgrade failed", strerror(errno));
    while (strstr(answer, "\r\n\r\n") == NULL) {
        if (have == sizeof answer - 1 || below_receive(c, (uint8_t *)answer + have, 1) != 1)
            return fail(fault, "the WebSocket upgrade failed", "there is no whole answer");
        have++;
    }
    if (strncmp(answer, "HTTP/1.1 101 ", 13) == 0 && strstr(answer, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=") != NULL)
        return true;
    *strchr(answer, '\r') = 0;
    return fail(fault, "the WebSocket upgrade was refused", answer);
}

channel *channel_open(int fd, const channel_options *options, char fault[CHANNEL_FAULT_MAX]) {
    channel *c = calloc(1, sizeof *c);
    if (c == NULL) {
        fail(fault, "a connection", "the client has no memory left");
        return NULL;
    }
    c->fd = fd;
    c->websocket = options->websocket;
    c->mask = 0x9e3779b9u ^ (uint32_t)fd;
    if ((options->tls && !begin_tls(c, options, fault)) || (options->websocket && !upgrade(c, fault))) {
        channel_close(c);
        return NULL;
    }
    return c;
}

void channel_close(channel *c) {
    if (c == NULL) return;
    SSL_free(c->ssl);
    free(c->out);
    free(c->kept);
    free(c);
}

/* ---- WebSocket ---- */

/* False: the socket would block, or is broken (errno). */
static bool push(channel *c) {
    while (c->out_sent < c->out_length) {
        ssize_t n = below_send(c, c->out + c->out_sent, c->out_length - c->out_sent);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        c->out_sent += (size_t)n;
    }
    c->out_sent = c->out_length = 0;
    return true;
}

static bool append(channel *c, uint8_t opcode, const uint8_t *payload, size_t length) {
    size_t wanted = c->out_length + HEAD_MAX + length;
    if (wanted > c->out_room) {
        uint8_t *larger = realloc(c->out, wanted);
        errno = ENOMEM;
        if (larger == NULL) return false;
        c->out = larger;
        c->out_room = wanted;
    }
    c->mask = c->mask * 1664525u + 1013904223u;
    c->out_length += frame_put(c->out + c->out_length, opcode, payload, length, c->mask);
    return true;
}

ssize_t channel_send(channel *c, const uint8_t *bytes, size_t length) {
    if (!c->websocket) return below_send(c, bytes, length);
    if (!push(c)) return -1;
    if (!append(c, BINARY, bytes, length)) return -1;
    return push(c) || errno == EAGAIN ? (ssize_t)length : -1;
}

/* From the socket, or from what was kept. */
static ssize_t come(channel *c, uint8_t *into, size_t room) {
    if (c->kept == NULL) return below_receive(c, into, room);
    size_t left = c->kept_length - c->kept_at, part = left < room ? left : room;
    memcpy(into, c->kept + c->kept_at, part);
    c->kept_at += part;
    if (c->kept_at == c->kept_length) {
        free(c->kept);
        c->kept = NULL;
    }
    return (ssize_t)part;
}

/* What a ping stands before is kept until it is answered. */
static bool answer_ping(channel *c, const uint8_t *behind, size_t length) {
    if (length > 0) {
        size_t older = c->kept == NULL ? 0 : c->kept_length - c->kept_at;
        uint8_t *all = malloc(length + older);
        errno = ENOMEM;
        if (all == NULL) return false;
        memcpy(all, behind, length);
        if (older > 0) memcpy(all + length, c->kept + c->kept_at, older);
        free(c->kept);
        c->kept = all;
        c->kept_at = 0;
        c->kept_length = length + older;
    }
    c->frames.ping = false;
    return append(c, PONG, c->frames.control, c->frames.control_have);
}

ssize_t channel_receive(channel *c, uint8_t *into, size_t room) {
    if (!c->websocket) return below_receive(c, into, room);
    for (;;) {
        if (c->out_length > 0 && !push(c) && errno != EAGAIN) return -1;
        if (c->frames.closed) return 0;
        ssize_t n = come(c, into, room);
        if (n <= 0) return n;
        size_t taken, kept = frames_take(&c->frames, into, (size_t)n, &taken);
        errno = EPROTO;
        if (c->frames.wrong) return -1;
        if (c->frames.ping && !answer_ping(c, into + taken, (size_t)n - taken)) return -1;
        if (kept > 0) return (ssize_t)kept;
    }
}
