/* A certificate for those who only try, and the names in those of clients. */
#include "net/tls_openssl.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SELF_SIGNED_DAYS 365
#define NAME_BYTES_MAX 255u
#define NAMES_MAX 16

static bool add_extension(X509 *x, int what, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, x, x, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, what, value);
    bool good = extension != NULL && X509_add_ext(x, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return good;
}

static bool fill(X509 *x, EVP_PKEY *key) {
    uint64_t serial;
    if (RAND_bytes((unsigned char *)&serial, sizeof serial) != 1) return false;
    X509_NAME *name = X509_get_subject_name(x);
    return X509_set_version(x, 2) == 1 && ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1) == 1 &&
           X509_gmtime_adj(X509_getm_notBefore(x), -3600) != NULL &&
           X509_time_adj_ex(X509_getm_notAfter(x), SELF_SIGNED_DAYS, 0, NULL) != NULL && X509_set_pubkey(x, key) == 1 &&
           X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1, 0) == 1 &&
           X509_set_issuer_name(x, name) == 1 &&
           add_extension(x, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1,IP:::1") &&
           add_extension(x, NID_basic_constraints, "critical,CA:TRUE") && X509_sign(x, key, EVP_sha256()) > 0;
}

static char *text_of(BIO *bio) {
    char *bytes = NULL;
    long length = BIO_get_mem_data(bio, &bytes);
    return length > 0 ? strndup(bytes, (size_t)length) : NULL;
}

bool tls_self_signed(char **chain, char **key) {
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    BIO *of_chain = BIO_new(BIO_s_mem()), *of_key = BIO_new(BIO_s_mem());
    *chain = *key = NULL;
    bool good = pair != NULL && x != NULL && of_chain != NULL && of_key != NULL && fill(x, pair) &&
                PEM_write_bio_X509(of_chain, x) == 1 &&
                PEM_write_bio_PKCS8PrivateKey(of_key, pair, NULL, NULL, 0, NULL, NULL) == 1;
    if (good) {
        *chain = text_of(of_chain);
        *key = text_of(of_key);
    }
    BIO_free(of_chain);
    BIO_free(of_key);
    X509_free(x);
    EVP_PKEY_free(pair);
    ERR_clear_error();
    return *chain != NULL && *key != NULL;
}

/* One line, when it is a name that can be written so. */
static void add_name(FILE *out, const char *kind, const unsigned char *name, int length) {
    if (length <= 0 || (size_t)length > NAME_BYTES_MAX) return;
    for (int i = 0; i < length; i++)
        if (name[i] < ' ' || name[i] == 127) return;
    fprintf(out, "%s:%.*s\n", kind, length, (const char *)name);
}

static void add_alternative(FILE *out, const GENERAL_NAME *name) {
    int type;
    const ASN1_STRING *value = GENERAL_NAME_get0_value(name, &type);
    const char *kind = type == GEN_DNS ? "DNS" : type == GEN_EMAIL ? "email" : type == GEN_URI ? "URI" : NULL;
    if (kind != NULL) add_name(out, kind, ASN1_STRING_get0_data(value), ASN1_STRING_length(value));
}

static void add_common_names(FILE *out, const X509_NAME *subject) {
    for (int at = -1; (at = X509_NAME_get_index_by_NID(subject, NID_commonName, at)) >= 0;) {
        unsigned char *name = NULL;
        int length = ASN1_STRING_to_UTF8(&name, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
        add_name(out, "CN", name, length);
        OPENSSL_free(name);
    }
}

char *tls_names(X509 *certificate) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (out == NULL) return NULL;
    add_common_names(out, X509_get_subject_name(certificate));
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; names != NULL && i < sk_GENERAL_NAME_num(names) && i < NAMES_MAX; i++)
        add_alternative(out, sk_GENERAL_NAME_value(names, i));
    GENERAL_NAMES_free(names);
    ERR_clear_error();
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}
