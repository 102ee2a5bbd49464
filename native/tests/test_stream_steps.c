/* Each stream that translates ends its turn also when what comes brings nothing: one read takes so many bytes of the
 * socket and no more, however long the client goes on. */
#include "check.h"

#include "net/stream_feed.h"
#include "net/stream_for.h"
#include "net/tls_openssl.h"
#include "net/websocket_frames.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define QUEUE_BYTES (4 << 20)

static tls worker;
static websockets doors;

typedef struct flood {
    SSL_CTX *context;
    SSL *ssl; /* NULL: the client speaks plain */
    int fd;
    stream s;
} flood;

static void open_worker(bool with_tls) {
    uint8_t secret[TLS_SECRET_BYTES] = {1};
    const tls_mode modes[TLS_PORTS] = {with_tls ? TLS_REQUIRED : TLS_OFF, with_tls ? TLS_REQUIRED : TLS_OFF};
    char *chain, *key;
    tls_fault fault;
    CHECK_EQUAL(tls_open(&worker, modes), 0);
    CHECK(tls_self_signed(&chain, &key));
    tls_settings settings = {
        .pairs = {{{chain, strlen(chain)}, {key, strlen(key)}}}, .count = 1, .ciphers = "ECDHE+AESGCM"};
    tls_use(&worker, TLS_OF_TCP, tls_context_make(&settings, &fault));
    tls_use(&worker, TLS_OF_WEBSOCKET, tls_context_make(&settings, &fault));
    tls_tickets_open(&worker.tickets, secret, 0);
    const websocket_settings w = {.limits = {.frame_bytes_max = 1u << 30, .message_bytes_max = 1u << 30}};
    CHECK_EQUAL(websockets_open(&doors, &w), 0);
    free(chain);
    free(key);
}

/* What the client writes from now on waits in the socket. */
static flood begin(bool with_tls, bool websocket) {
    int pair[2], queue = QUEUE_BYTES;
    open_worker(with_tls);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fcntl(pair[1], F_SETFL, O_NONBLOCK);
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &queue, sizeof queue);
    flood f = {.fd = pair[1]};
    CHECK(stream_for(websocket ? LISTENER_WEBSOCKET : LISTENER_TCP, pair[0], &worker, &doors, &f.s));
    if (!with_tls) return f;
    f.context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(f.context, TLS1_3_VERSION);
    f.ssl = SSL_new(f.context);
    SSL_set_fd(f.ssl, f.fd);
    SSL_set_connect_state(f.ssl);
    return f;
}

static void end(flood *f) {
    stream_stop(&f->s);
    f->s.calls->close(&f->s, NULL);
    SSL_free(f->ssl);
    SSL_CTX_free(f->context);
    close(f->fd);
    tls_close(&worker);
    websockets_close(&doors);
}

static bool say(flood *f, const void *bytes, size_t length) {
    ERR_clear_error();
    if (f->ssl != NULL) return SSL_write(f->ssl, bytes, (int)length) == (int)length;
    return write(f->fd, bytes, length) == (ssize_t)length;
}

static void bring(flood *f) {
    uint8_t bytes[16384], into[16];
    if (stream_available(&f->s) > 0) { /* opening is a step at a time */
        stream_receive_now(&f->s, into, 0);
        CHECK(stream_keep(&f->s));
        return;
    }
    ssize_t got = recv(f->s.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) return;
    stream_recognize(&f->s, bytes, (uint32_t)got);
    stream_take(&f->s, bytes, (uint32_t)got);
    stream_receive_now(&f->s, into, 0);
    CHECK(stream_keep(&f->s));
}

static void open_it(flood *f, bool websocket) {
    static const char request[] = "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    bool asked = !websocket;
    for (int i = 0; i < 1000 && (f->s.opening || (f->ssl != NULL && !SSL_is_init_finished(f->ssl))); i++) {
        ERR_clear_error();
        if (f->ssl != NULL) SSL_do_handshake(f->ssl);
        if (!asked && (f->ssl == NULL || SSL_is_init_finished(f->ssl))) asked = say(f, request, sizeof request - 1);
        bring(f);
    }
    CHECK(!f->s.opening);
}

static int waiting(const flood *f) {
    int count = 0;
    CHECK_EQUAL(ioctl(f->s.fd, FIONREAD, &count), 0);
    return count;
}

/* One read of the stream: how many bytes of the socket it takes. Then the rest: each read takes no more. */
static void check_each_read_ends(flood *f, int most) {
    static uint8_t into[262144];
    int before = waiting(f), left = before;
    CHECK(before > 3 * most);
    unsigned reads = 0;
    for (; (left > 0 || stream_available(&f->s) > 0) && reads < 1000000; reads++) {
        ssize_t got = stream_receive_now(&f->s, into, sizeof into);
        CHECK(got > 0 || errno == EAGAIN);
        int now = waiting(f);
        CHECK(left - now <= most);
        left = now;
    }
    CHECK_EQUAL(left, 0);
    CHECK(reads > 3);
}

static void put_key_updates(flood *f) {
    for (int i = 0; i < 20000; i++) {
        ERR_clear_error();
        if (SSL_key_update(f->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 || SSL_do_handshake(f->ssl) != 1) break;
    }
}

static void put_single_bytes(flood *f) {
    for (int i = 0; i < 20000 && say(f, "x", 1); i++) {
    }
}

static void put_frames(flood *f, uint8_t first) {
    static uint8_t frames[600000]; /* empty ones, each masked */
    for (size_t at = 0; at < sizeof frames; at += 6) memcpy(frames + at, (uint8_t[6]){first, 0x80}, 6);
    size_t sent = 0;
    while (sent < sizeof frames) {
        size_t part = sizeof frames - sent < 12000 ? sizeof frames - sent : 12000;
        if (!say(f, frames + sent, part)) break;
        sent += part;
    }
}

static void test_updates_of_keys_end_a_read_of_tls(void) {
    flood f = begin(true, false);
    open_it(&f, false);
    put_key_updates(&f);
    check_each_read_ends(&f, FEED_ROOM_BYTES);
    end(&f);
}

/* OpenSSL has opened so many of them and not one more. */
static void test_a_read_of_tls_opens_so_many_records(void) {
    flood f = begin(true, false);
    static uint8_t into[262144];
    open_it(&f, false);
    put_single_bytes(&f);
    ssize_t got = stream_receive_now(&f.s, into, sizeof into);
    CHECK(got > 0 && got <= (ssize_t)TLS_RECORDS_PER_READ);
    end(&f);
}

static void test_updates_of_keys_end_a_read_of_a_websocket_over_tls(void) {
    flood f = begin(true, true);
    open_it(&f, true);
    put_key_updates(&f);
    check_each_read_ends(&f, FEED_ROOM_BYTES);
    end(&f);
}

static void test_frames_that_bring_nothing_end_a_read_of_a_websocket(void) {
    static const uint8_t firsts[] = {0x80 | FRAME_PING, 0x80 | FRAME_PONG, 0x80 | FRAME_BINARY, 0x80 | FRAME_TEXT};
    for (int with_tls = 0; with_tls < 2; with_tls++) {
        for (size_t i = 0; i < sizeof firsts; i++) {
            flood f = begin(with_tls, true);
            open_it(&f, true);
            put_frames(&f, firsts[i]);
            check_each_read_ends(&f, (1 + with_tls) * (int)FEED_ROOM_BYTES); /* each stream fills a room */
            end(&f);
        }
    }
}

/* A read decodes so many frames: what is left of 64 KiB of them is still there. */
static void test_a_read_of_a_websocket_decodes_so_many_frames(void) {
    flood f = begin(false, true);
    static uint8_t into[262144];
    open_it(&f, true);
    put_frames(&f, 0x80 | FRAME_PING);
    stream_receive_now(&f.s, into, sizeof into);
    CHECK(stream_available(&f.s) > FEED_ROOM_BYTES - 6 * (FRAMES_PER_DECODE + 1));
    end(&f);
}

int main(void) {
    RUN(test_updates_of_keys_end_a_read_of_tls);
    RUN(test_a_read_of_tls_opens_so_many_records);
    RUN(test_updates_of_keys_end_a_read_of_a_websocket_over_tls);
    RUN(test_frames_that_bring_nothing_end_a_read_of_a_websocket);
    RUN(test_a_read_of_a_websocket_decodes_so_many_frames);
    return check_report();
}
