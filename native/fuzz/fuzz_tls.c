/* libFuzzer: any bytes where records of TLS are expected, before, inside and after a handshake, in any pieces. The
 * stream breaks off or goes on, and leaves nothing behind in the room that all streams share. */
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/tls_openssl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static tls worker;
static SSL_CTX *client;

static void open_all(void) {
    uint8_t secret[TLS_SECRET_BYTES] = {1};
    char *chain, *key;
    tls_fault fault;
    const tls_mode modes[TLS_PORTS] = {[TLS_OF_TCP] = TLS_BOTH};
    if (tls_open(&worker, modes) != 0 || !tls_self_signed(&chain, &key)) abort();
    tls_settings settings = {
        .pairs = {{{chain, strlen(chain)}, {key, strlen(key)}}}, .count = 1, .ciphers = "ECDHE+AESGCM"};
    tls_use(&worker, TLS_OF_TCP, tls_context_make(&settings, &fault));
    tls_tickets_open(&worker.tickets, secret, 0);
    client = SSL_CTX_new(TLS_client_method());
    if (worker.ports[TLS_OF_TCP].context == NULL || client == NULL) abort();
    free(chain);
    free(key);
}

/* As a connection would: all that can be read of what came. */
static void give(stream *s, const uint8_t *bytes, size_t length) {
    uint8_t into[512], *exact = malloc(length > 0 ? length : 1);
    memcpy(exact, bytes, length);
    if (length > 0) stream_recognize(s, exact, (uint32_t)length);
    if (length > 0 && stream_translates(s)) {
        stream_take(s, exact, (uint32_t)length);
        for (int i = 0; i < 1000 && stream_available(s) > 0; i++)
            if (stream_receive_now(s, into, sizeof into) <= 0 && !s->opening) break;
        if (!stream_keep(s)) abort();
    }
    free(exact);
}

static void shake_hands(stream *s, int fd, SSL *ssl, unsigned steps) {
    uint8_t bytes[16384];
    SSL_set_fd(ssl, fd);
    SSL_set_connect_state(ssl);
    for (unsigned i = 0; i < steps; i++) {
        ERR_clear_error();
        SSL_do_handshake(ssl);
        ssize_t got = recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got > 0 && stream_available(s) == 0) give(s, bytes, (size_t)got);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int pair[2];
    stream s;
    if (worker.ports[TLS_OF_TCP].context == NULL) open_all();
    if (size < 2 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) return 0;
    if (!stream_tls(&s, &worker, TLS_OF_TCP, pair[0])) abort();
    SSL *ssl = SSL_new(client);
    unsigned steps = data[0] & 3; /* none, the first flight, all of it */
    size_t piece = 1u + data[1] * 16u;
    if (steps > 0) shake_hands(&s, pair[1], ssl, steps == 1 ? 1 : 6);
    for (size_t at = 2; at < size; at += piece) {
        size_t part = size - at < piece ? size - at : piece;
        if (stream_translates(&s) && stream_available(&s) > 0) break; /* it is broken */
        give(&s, data + at, part);
        if (!stream_translates(&s)) break; /* plain */
    }
    uint8_t answer[64] = {0};
    stream_send_now(&s, answer, sizeof answer);
    if (worker.out_length != 0) abort();
    stream_stop(&s);
    s.calls->close(&s, NULL);
    SSL_free(ssl);
    close(pair[1]);
    return 0;
}
