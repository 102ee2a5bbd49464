/* Certificates, who may show which, and what both sides may agree on. */
#include "net/stream_feed.h"
#include "net/tls_openssl.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RSA_BITS_MAX 4096 /* a signature with more takes longer than a step of the loop may */
#define CHAIN_BYTES_MAX 32768u
/* The first one is as safe here as the second, and never slower (docs/adr/0050-tls-in-the-engine.md). */
#define SUITES_13 "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"

struct tls_context {
    uint32_t count, holders;
    SSL_CTX *pairs[TLS_PAIRS_MAX];
    X509 *leaves[TLS_PAIRS_MAX]; /* of the chains */
};

/* Nobody is asked for a password at a terminal. */
static int no_password(char *buffer, int size, int writing, void *context) {
    (void)buffer, (void)size, (void)writing, (void)context;
    return -1;
}

static BIO *reading(const tls_text *text) { return BIO_new_mem_buf(text->bytes, (int)text->length); }

/* NULL or why not. */
static const char *use_chain(SSL_CTX *ctx, const tls_text *text, X509 **leaf) {
    if (text->length > CHAIN_BYTES_MAX) return "the chain of certificates is longer than 32 KiB";
    BIO *from = reading(text);
    X509 *first = from != NULL ? PEM_read_bio_X509(from, NULL, no_password, NULL) : NULL;
    const char *why = NULL;
    if (first == NULL) why = "it holds no certificate in PEM form";
    else if (SSL_CTX_use_certificate(ctx, first) != 1) why = "its key is too weak or of a kind that is not served";
    while (why == NULL) {
        X509 *next = PEM_read_bio_X509(from, NULL, no_password, NULL);
        if (next == NULL) break;
        if (SSL_CTX_add0_chain_cert(ctx, next) == 1) continue;
        X509_free(next);
        why = "a certificate of its chain is too weak";
    }
    *leaf = first;
    BIO_free(from);
    return why;
}

static const char *use_key(SSL_CTX *ctx, const tls_text *text) {
    BIO *from = reading(text);
    EVP_PKEY *key = from != NULL ? PEM_read_bio_PrivateKey(from, NULL, no_password, NULL) : NULL;
    BIO_free(from);
    if (key == NULL) return "its key file holds no private key in PEM form without a password";
    const char *why = NULL;
    if (EVP_PKEY_get_base_id(key) == EVP_PKEY_RSA && EVP_PKEY_get_bits(key) > RSA_BITS_MAX)
        why = "its RSA key has more than 4096 bits";
    else if (SSL_CTX_use_PrivateKey(ctx, key) != 1 || SSL_CTX_check_private_key(ctx) != 1)
        why = "its private key belongs to another certificate";
    EVP_PKEY_free(key);
    return why;
}

/* A session goes on only where the same clients are let in. */
static bool set_session_context(SSL_CTX *ctx, const tls_settings *s) {
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint8_t mode = (uint8_t)s->clients;
    bool good = md != NULL && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 && EVP_DigestUpdate(md, &mode, 1) == 1 &&
                EVP_DigestUpdate(md, s->clients_ca.bytes, s->clients_ca.length) == 1 &&
                EVP_DigestFinal_ex(md, digest, &length) == 1;
    EVP_MD_CTX_free(md);
    return good && SSL_CTX_set_session_id_context(ctx, digest, length) == 1;
}

static const char *use_clients(SSL_CTX *ctx, const tls_settings *s) {
    if (!set_session_context(ctx, s)) return "there is no memory for it";
    if (s->clients == TLS_CLIENTS_OFF) return NULL;
    BIO *from = reading(&s->clients_ca);
    uint32_t count = 0;
    for (;; count++) {
        X509 *ca = from != NULL ? PEM_read_bio_X509(from, NULL, no_password, NULL) : NULL;
        if (ca == NULL) break;
        bool good = X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), ca) == 1 && SSL_CTX_add_client_CA(ctx, ca) == 1;
        X509_free(ca);
        if (!good) break;
    }
    BIO_free(from);
    if (count == 0) return "tcp.tls.client_ca_file holds no certificate in PEM form";
    int required = s->clients == TLS_CLIENTS_REQUIRED ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0;
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | required, NULL);
    SSL_CTX_set_verify_depth(ctx, 4);
    return NULL;
}

/* The first pair whose certificate has the name. */
static int on_server_name(SSL *ssl, int *alert, void *argument) {
    (void)alert;
    const tls_context *c = argument;
    const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
    for (uint32_t i = 0; name != NULL && i < c->count; i++) {
        if (X509_check_host(c->leaves[i], name, strlen(name), 0, NULL) != 1) continue;
        if (SSL_get_SSL_CTX(ssl) != c->pairs[i]) SSL_set_SSL_CTX(ssl, c->pairs[i]);
        break;
    }
    return SSL_TLSEXT_ERR_OK;
}

static const char *set_up(SSL_CTX *ctx, const tls_settings *s) {
    uint64_t options = SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                       SSL_OP_PRIORITIZE_CHACHA;
    SSL_CTX_set_options(ctx, options);
    /* An idle connection has no buffers. What is written is not at the same place when it is tried again. */
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_clear_mode(ctx, SSL_MODE_AUTO_RETRY); /* a record that brings nothing ends a call: read_records counts */
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_timeout(ctx, TLS_TICKET_PERIOD_S);
    SSL_CTX_set_num_tickets(ctx, 1);
    SSL_CTX_set_tlsext_ticket_key_evp_cb(ctx, tls_tickets_seal_or_open);
    SSL_CTX_set_min_proto_version(ctx, s->only_13 ? TLS1_3_VERSION : TLS1_2_VERSION);
    if (SSL_CTX_set_ciphersuites(ctx, SUITES_13) != 1) return "there is no memory for it";
    if (SSL_CTX_set_cipher_list(ctx, s->ciphers) != 1) return "tcp.tls.ciphers names no cipher that is served";
    return NULL;
}

static const char *make_pair(tls_context *c, uint32_t i, const tls_settings *s) {
    SSL_CTX *ctx = c->pairs[i] = SSL_CTX_new(TLS_server_method());
    const char *why = ctx == NULL ? "there is no memory for it" : set_up(ctx, s);
    if (why == NULL) why = use_chain(ctx, &s->pairs[i].chain, &c->leaves[i]);
    if (why == NULL) why = use_key(ctx, &s->pairs[i].key);
    if (why == NULL) why = use_clients(ctx, s);
    if (why == NULL) SSL_CTX_set_tlsext_servername_callback(ctx, on_server_name);
    if (why == NULL) SSL_CTX_set_tlsext_servername_arg(ctx, c);
    return why;
}

tls_context *tls_context_make(const tls_settings *s, tls_fault *fault) {
    *fault = (tls_fault){.why = "there is no memory for it", .pair = TLS_PAIRS_MAX};
    tls_context *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    c->holders = 1;
    for (uint32_t i = 0; i < s->count && i < TLS_PAIRS_MAX; i++) {
        c->count = i + 1;
        const char *why = make_pair(c, i, s);
        if (why == NULL) continue;
        bool of_all = strncmp(why, "tcp.tls", 7) == 0;
        *fault = (tls_fault){.why = why, .pair = of_all ? TLS_PAIRS_MAX : i};
        ERR_clear_error();
        tls_context_let_go(c);
        return NULL;
    }
    ERR_clear_error();
    return c;
}

tls_context *tls_context_hold(tls_context *c) {
    c->holders++;
    return c;
}

void tls_context_let_go(tls_context *c) {
    if (c == NULL || --c->holders > 0) return;
    for (uint32_t i = 0; i < c->count; i++) {
        SSL_CTX_free(c->pairs[i]);
        X509_free(c->leaves[i]);
    }
    free(c);
}

int64_t tls_context_not_after_s(const tls_context *c, uint32_t pair) {
    struct tm when;
    if (ASN1_TIME_to_tm(X509_get0_notAfter(c->leaves[pair]), &when) != 1) return 0;
    return (int64_t)timegm(&when);
}

SSL *tls_context_begin(tls_context *c, tls *t) {
    SSL *ssl = c->count > 0 ? SSL_new(c->pairs[0]) : NULL;
    if (ssl == NULL) return NULL;
    SSL_set_app_data(ssl, t);
    SSL_set_accept_state(ssl);
    return ssl;
}

int tls_open(tls *t, const tls_mode modes[TLS_PORTS]) {
    bool any = false;
    *t = (tls){0};
    for (tls_port port = 0; port < TLS_PORTS; port++) {
        t->ports[port].mode = modes[port];
        any = any || modes[port] != TLS_OFF;
    }
    if (!any) return 0;
    t->in = malloc(FEED_ROOM_BYTES);
    t->out = malloc(TLS_ROOM_BYTES);
    t->socket_calls = tls_socket_calls();
    return t->in != NULL && t->out != NULL && t->socket_calls != NULL ? 0 : -ENOMEM;
}

void tls_close(tls *t) {
    for (tls_port port = 0; port < TLS_PORTS; port++) tls_context_let_go(t->ports[port].context);
    OPENSSL_cleanse(&t->tickets, sizeof t->tickets);
    BIO_meth_free(t->socket_calls);
    free(t->in);
    free(t->out);
    *t = (tls){0};
}

void tls_use(tls *t, tls_port port, tls_context *c) {
    tls_context_let_go(t->ports[port].context);
    t->ports[port].context = c;
}
