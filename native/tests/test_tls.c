/* TLS as a stream: OpenSSL's client over a pair of sockets, records cut anywhere, sockets that take little, and bytes
 * that are none. */
#include "check.h"

#include "net/tls_openssl.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct peer_client {
    SSL_CTX *context;
    SSL *ssl;
    int fd;
    stream s;
} peer_client;

static tls worker;

static tls_context *self_made(tls_clients clients, const char *ca) {
    char *chain, *key;
    CHECK(tls_self_signed(&chain, &key));
    tls_settings settings = {.pairs = {{{chain, strlen(chain)}, {key, strlen(key)}}},
                             .count = 1,
                             .clients = clients,
                             .clients_ca = {ca, ca != NULL ? strlen(ca) : 0},
                             .ciphers = "ECDHE+AESGCM"};
    tls_fault fault;
    tls_context *made = tls_context_make(&settings, &fault);
    CHECK(made != NULL);
    free(chain);
    free(key);
    return made;
}

static void open_worker(tls_mode mode) {
    uint8_t secret[TLS_SECRET_BYTES] = {1};
    const tls_mode modes[TLS_PORTS] = {[TLS_OF_TCP] = mode};
    CHECK_EQUAL(tls_open(&worker, modes), 0);
    tls_use(&worker, TLS_OF_TCP, self_made(TLS_CLIENTS_OFF, NULL));
    /* of now, as a supervisor says it: from period 0 a handshake would derive the keys of half a million hours */
    tls_tickets_open(&worker.tickets, secret, (int64_t)time(NULL) / TLS_TICKET_PERIOD_S);
}

static peer_client connect_to(tls_mode mode, int version) {
    int pair[2];
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fcntl(pair[1], F_SETFL, O_NONBLOCK);
    peer_client p = {.fd = pair[1], .context = SSL_CTX_new(TLS_client_method())};
    SSL_CTX_set_min_proto_version(p.context, version);
    SSL_CTX_set_max_proto_version(p.context, version);
    p.ssl = SSL_new(p.context);
    SSL_set_fd(p.ssl, p.fd);
    SSL_set_connect_state(p.ssl);
    open_worker(mode);
    CHECK(stream_tls(&p.s, &worker, TLS_OF_TCP, pair[0]));
    return p;
}

static void end(peer_client *p) {
    stream_stop(&p->s);
    p->s.calls->close(&p->s, NULL);
    SSL_free(p->ssl);
    SSL_CTX_free(p->context);
    close(p->fd);
    tls_close(&worker);
    CHECK_EQUAL(worker.out_length, 0);
}

/* What the socket has, at most `step` bytes of it, as an operation would bring it; then what can be read of it. */
static ssize_t bring(peer_client *p, uint8_t *into, size_t room, size_t step) {
    if (stream_available(&p->s) > 0) return stream_receive_now(&p->s, into, room);
    uint8_t bytes[16384];
    ssize_t got = recv(p->s.fd, bytes, step < sizeof bytes ? step : sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
        uint8_t *exact = malloc((size_t)got); /* whoever reads beyond it is found */
        memcpy(exact, bytes, (size_t)got);
        stream_recognize(&p->s, exact, (uint32_t)got);
        stream_take(&p->s, exact, (uint32_t)got);
        ssize_t result = stream_receive_now(&p->s, into, room);
        CHECK(stream_keep(&p->s));
        free(exact);
        return result;
    }
    return -1;
}

static void shake_hands(peer_client *p, size_t step) {
    for (int i = 0; i < 100000 && (p->s.opening || !SSL_is_init_finished(p->ssl)); i++) {
        ERR_clear_error();
        SSL_do_handshake(p->ssl);
        bring(p, NULL, 0, step);
    }
    CHECK(SSL_is_init_finished(p->ssl));
    CHECK(!p->s.opening);
}

static void test_a_handshake_may_come_byte_by_byte(void) {
    for (int version = TLS1_2_VERSION; version <= TLS1_3_VERSION; version++) {
        for (size_t step = 1; step <= 16384; step *= 128) {
            peer_client p = connect_to(TLS_REQUIRED, version);
            shake_hands(&p, step);
            CHECK_EQUAL(worker.counters.handshakes, 1);
            end(&p);
        }
    }
}

static void test_what_is_read_is_what_was_written_however_it_is_cut(void) {
    static uint8_t sent[100000], seen[100000];
    for (size_t i = 0; i < sizeof sent; i++) sent[i] = (uint8_t)(i * 31 + i / 255);
    for (size_t room = 70; room <= 70000; room *= 30) {
        peer_client p = connect_to(TLS_REQUIRED, TLS1_3_VERSION);
        shake_hands(&p, SIZE_MAX);
        size_t out = 0, in = 0;
        for (int i = 0; i < 10000000 && in < sizeof sent; i++) {
            size_t part = 1 + (size_t)i * 7919 % 20000;
            if (part > sizeof sent - out) part = sizeof sent - out;
            int wrote = part > 0 ? SSL_write(p.ssl, sent + out, (int)part) : 0;
            if (wrote > 0) out += (size_t)wrote;
            size_t want = room < sizeof seen - in ? room : sizeof seen - in;
            ssize_t got = bring(&p, seen + in, want, 1 + (size_t)i * 104729 % 16384);
            if (got > 0) in += (size_t)got;
            CHECK(got != 0);
        }
        CHECK_EQUAL(in, sizeof sent);
        CHECK(memcmp(sent, seen, sizeof sent) == 0);
        end(&p);
    }
}

/* send_now until it fits no more, then as the operation of a connection would. */
static void test_what_is_sent_arrives_through_a_narrow_socket(void) {
    static uint8_t sent[600000], seen[600000];
    for (size_t i = 0; i < sizeof sent; i++) sent[i] = (uint8_t)(i * 13 + i / 256);
    peer_client p = connect_to(TLS_REQUIRED, TLS1_3_VERSION);
    int small = 4096;
    setsockopt(p.s.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    shake_hands(&p, SIZE_MAX);
    size_t out = 0, in = 0;
    unsigned refused = 0;
    for (int i = 0; i < 1000000 && in < sizeof sent; i++) {
        if (out < sizeof sent) {
            ssize_t taken = stream_send_now(&p.s, sent + out, sizeof sent - out);
            CHECK(taken > 0 || errno == EAGAIN);
            refused += taken < 0;
            if (taken > 0) out += (size_t)taken;
        } else {
            stream_look(&p.s);
        }
        int got = SSL_read(p.ssl, seen + in, 3000);
        if (got > 0) in += (size_t)got;
        CHECK(in <= out + TLS_WRITE_BYTES);
    }
    CHECK(refused > 0);
    CHECK_EQUAL(in, sizeof sent);
    CHECK_EQUAL(out, sizeof sent);
    CHECK(memcmp(sent, seen, sizeof sent) == 0);
    end(&p);
}

static void test_bytes_that_are_no_records_break_this_stream_alone(void) {
    peer_client good = connect_to(TLS_REQUIRED, TLS1_3_VERSION);
    shake_hands(&good, SIZE_MAX);
    uint8_t into[64];
    static const uint8_t rubbish[] = {23, 3,  3,  0,  20, 1,  2,  3,  4,  5,  6,  7, 8,
                                      9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    CHECK_EQUAL(write(good.fd, rubbish, sizeof rubbish), sizeof rubbish);
    CHECK_EQUAL(bring(&good, into, sizeof into, SIZE_MAX), -1);
    CHECK_EQUAL(errno, EPROTO);
    CHECK_EQUAL(stream_send_now(&good.s, into, 4), -1);
    end(&good);
}

static void test_a_socket_may_speak_plain_where_both_are_served(void) {
    peer_client p = connect_to(TLS_BOTH, TLS1_3_VERSION);
    static const uint8_t ping[8] = {4, 0, 0, 0, 1};
    CHECK(!p.s.opening && !p.s.movable);
    stream_recognize(&p.s, ping, sizeof ping);
    CHECK(!stream_translates(&p.s) && p.s.movable);
    CHECK_EQUAL(worker.counters.plain, 1);
    end(&p);
}

static void test_a_plain_client_is_broken_off_where_tls_is_required(void) {
    peer_client p = connect_to(TLS_REQUIRED, TLS1_3_VERSION);
    uint8_t into[8];
    CHECK_EQUAL(write(p.fd, "\4\0\0\0\1\0\0\0", 8), 8);
    CHECK_EQUAL(bring(&p, into, sizeof into, SIZE_MAX), -1);
    CHECK_EQUAL(errno, EPROTO);
    end(&p);
}

static void test_the_end_of_a_client_is_seen(void) {
    peer_client p = connect_to(TLS_REQUIRED, TLS1_3_VERSION);
    uint8_t into[8];
    shake_hands(&p, SIZE_MAX);
    CHECK(!p.s.calls->has_ended(&p.s));
    SSL_shutdown(p.ssl);
    shutdown(p.fd, SHUT_WR);
    CHECK(p.s.calls->has_ended(&p.s));
    CHECK_EQUAL(bring(&p, into, sizeof into, SIZE_MAX), 0);
    end(&p);
}

/* Each answer to an update of keys waits for the socket: nothing is tried for ever, and nothing piles up. */
static void test_a_client_that_has_us_speak_and_does_not_read_is_broken_off(void) {
    peer_client p = connect_to(TLS_REQUIRED, TLS1_3_VERSION);
    int small = 4096;
    setsockopt(p.s.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    shake_hands(&p, SIZE_MAX);
    uint8_t into[64];
    unsigned asked = 0;
    bool broken = false;
    for (; asked < 20000 && !broken; asked++) {
        if (SSL_key_update(p.ssl, SSL_KEY_UPDATE_REQUESTED) == 1) SSL_do_handshake(p.ssl);
        broken = bring(&p, into, sizeof into, SIZE_MAX) < 0 && errno == EPROTO;
    }
    CHECK(asked > 10 && broken);
    end(&p);
}

static void test_keys_of_tickets_follow_the_time_and_are_the_same_everywhere(void) {
    uint8_t secret[TLS_SECRET_BYTES] = {7};
    tls_tickets one, two;
    tls_tickets_open(&one, secret, 100);
    tls_tickets_open(&two, secret, 100);
    struct tls_ticket_key first = one.keys[0];
    tls_tickets_follow(&one, 101 * TLS_TICKET_PERIOD_S);
    CHECK(memcmp(&one.keys[1], &first, sizeof first) == 0);
    CHECK(memcmp(&one.keys[0], &first, sizeof first) != 0);
    tls_tickets_follow(&one, 103 * TLS_TICKET_PERIOD_S + 5);
    for (int64_t now_s = 100 * TLS_TICKET_PERIOD_S; now_s <= 103 * TLS_TICKET_PERIOD_S; now_s += 100)
        tls_tickets_follow(&two, now_s);
    CHECK(memcmp(&one, &two, sizeof one) == 0);
    tls_tickets_follow(&one, 0); /* a clock that goes back */
    CHECK(memcmp(&one, &two, sizeof one) == 0);
}

int main(void) {
    RUN(test_a_handshake_may_come_byte_by_byte);
    RUN(test_what_is_read_is_what_was_written_however_it_is_cut);
    RUN(test_what_is_sent_arrives_through_a_narrow_socket);
    RUN(test_bytes_that_are_no_records_break_this_stream_alone);
    RUN(test_a_socket_may_speak_plain_where_both_are_served);
    RUN(test_a_plain_client_is_broken_off_where_tls_is_required);
    RUN(test_the_end_of_a_client_is_seen);
    RUN(test_a_client_that_has_us_speak_and_does_not_read_is_broken_off);
    RUN(test_keys_of_tickets_follow_the_time_and_are_the_same_everywhere);
    return check_report();
}
