/* What the files that know OpenSSL share. */
#ifndef SHARDD_TLS_OPENSSL_H
#define SHARDD_TLS_OPENSSL_H
#include "net/tls.h"

#include <openssl/ssl.h>

/* Begins a connection as a server; holds nothing of `t` but its tickets. */
SSL *tls_context_begin(tls_context *c, tls *t);
/* For SSL_CTX_set_tlsext_ticket_key_evp_cb. */
int tls_tickets_seal_or_open(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac,
                             int sealing);
/* What OpenSSL takes for a socket, for tls_bio_new. NULL: no memory. */
BIO_METHOD *tls_socket_calls(void);
/* See stream_names. */
char *tls_names(X509 *certificate);
#endif
