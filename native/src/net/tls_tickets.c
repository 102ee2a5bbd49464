/* Keys of session tickets. All workers begin with the same secret and derive the same key for each period of time. The
 * secret of a period is made of the one before, which is then forgotten: what was recorded earlier stays closed. */
#include "net/tls_openssl.h"

#include <openssl/core_names.h>
#include <openssl/rand.h>
#include <string.h>
#include <time.h>

static void derive(const uint8_t secret[TLS_SECRET_BYTES], char label, uint8_t out[32]) {
    uint8_t input[TLS_SECRET_BYTES + 1];
    memcpy(input, secret, TLS_SECRET_BYTES);
    input[TLS_SECRET_BYTES] = (uint8_t)label;
    unsigned length = 0;
    if (EVP_Digest(input, sizeof input, out, &length, EVP_sha256(), NULL) != 1) RAND_bytes(out, 32);
    OPENSSL_cleanse(input, sizeof input);
}

static void make_key(const tls_tickets *t, struct tls_ticket_key *key) {
    uint8_t name[32];
    derive(t->secret, 'n', name);
    memcpy(key->name, name, sizeof key->name);
    derive(t->secret, 'c', key->cipher);
    derive(t->secret, 'm', key->mac);
}

void tls_tickets_open(tls_tickets *t, const uint8_t secret[TLS_SECRET_BYTES], int64_t period) {
    memcpy(t->secret, secret, TLS_SECRET_BYTES);
    t->period = period;
    make_key(t, &t->keys[0]);
    t->keys[1] = t->keys[0];
}

void tls_tickets_follow(tls_tickets *t, int64_t now_s) {
    for (; t->period < now_s / TLS_TICKET_PERIOD_S; t->period++) {
        uint8_t next[TLS_SECRET_BYTES];
        derive(t->secret, '+', next);
        memcpy(t->secret, next, sizeof next);
        OPENSSL_cleanse(next, sizeof next);
        t->keys[1] = t->keys[0];
        make_key(t, &t->keys[0]);
    }
}

static bool start(const struct tls_ticket_key *key, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac,
                  int sealing) {
    uint8_t secret[32];
    memcpy(secret, key->mac, sizeof secret);
    OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, secret, sizeof secret),
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, "SHA256", 0),
        OSSL_PARAM_construct_end(),
    };
    bool good = EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), NULL, key->cipher, iv, sealing) == 1 &&
                EVP_MAC_CTX_set_params(mac, parameters) == 1;
    OPENSSL_cleanse(secret, sizeof secret);
    return good;
}

int tls_tickets_seal_or_open(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac,
                             int sealing) {
    tls *worker = SSL_get_app_data(ssl);
    tls_tickets *t = &worker->tickets;
    tls_tickets_follow(t, (int64_t)time(NULL));
    if (sealing) {
        memcpy(name, t->keys[0].name, sizeof t->keys[0].name);
        if (RAND_bytes(iv, EVP_MAX_IV_LENGTH) != 1) return -1;
        return start(&t->keys[0], iv, cipher, mac, 1) ? 1 : -1;
    }
    for (int which = 0; which < 2; which++) {
        if (memcmp(name, t->keys[which].name, sizeof t->keys[which].name) != 0) continue;
        if (!start(&t->keys[which], iv, cipher, mac, 0)) return -1;
        return which == 0 ? 1 : 2; /* 2: and gets a new ticket */
    }
    return 0;
}
