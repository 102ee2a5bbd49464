/* TLS of one worker: certificates and how to agree (tls_context.c), tickets (tls_tickets.c), and what is under way on
 * its loop thread. Streams over it are in stream_tls.c. Only files named tls or stream_tls know OpenSSL. */
#ifndef SHARDD_TLS_H
#define SHARDD_TLS_H
#include "net/stream.h"

#include <stddef.h>
#include <stdint.h>

#define TLS_PAIRS_MAX 16u
#define TLS_SECRET_BYTES 32u
#define TLS_WRITE_BYTES 49152u   /* are sealed and sent at a time */
#define TLS_ROOM_BYTES 65536u    /* for records that are sealed */
#define TLS_RECORDS_PER_READ 64u /* are opened in one call, whatever they bring: an update of keys takes 13 us */
#define TLS_TICKET_PERIOD_S 3600 /* a key of tickets seals for so long, and opens for as long again */

typedef enum tls_mode { TLS_OFF, TLS_REQUIRED, TLS_BOTH } tls_mode;
typedef enum tls_port { TLS_OF_TCP, TLS_OF_WEBSOCKET, TLS_PORTS } tls_port; /* where clients connect */
typedef enum tls_clients { TLS_CLIENTS_OFF, TLS_CLIENTS_OPTIONAL, TLS_CLIENTS_REQUIRED } tls_clients;

typedef struct tls_text {
    const char *bytes;
    size_t length;
} tls_text;

typedef struct tls_pair { /* PEM */
    tls_text chain, key;
} tls_pair;

typedef struct tls_settings {
    tls_pair pairs[TLS_PAIRS_MAX]; /* the first one is for names that no other one has */
    uint32_t count;
    tls_clients clients;
    tls_text clients_ca; /* PEM */
    bool only_13;
    const char *ciphers; /* of TLS 1.2 */
} tls_settings;

/* Why there is no context: a sentence's end, and which pair it is about (TLS_PAIRS_MAX: none). */
typedef struct tls_fault {
    const char *why;
    uint32_t pair;
} tls_fault;

typedef struct tls_context tls_context;

/* NULL and `fault`. */
tls_context *tls_context_make(const tls_settings *settings, tls_fault *fault);
tls_context *tls_context_hold(tls_context *c);
void tls_context_let_go(tls_context *c);
int64_t tls_context_not_after_s(const tls_context *c, uint32_t pair); /* unix time */

/* Keys that seal and open tickets, the same in all workers: each follows from the one before it, which is forgotten. */
typedef struct tls_tickets {
    uint8_t secret[TLS_SECRET_BYTES]; /* of `period`: the next one is made of it */
    int64_t period;                   /* unix time / TLS_TICKET_PERIOD_S */
    struct tls_ticket_key {
        uint8_t name[16], cipher[32], mac[32];
    } keys[2]; /* now, before */
} tls_tickets;

void tls_tickets_open(tls_tickets *t, const uint8_t secret[TLS_SECRET_BYTES], int64_t period);
void tls_tickets_follow(tls_tickets *t, int64_t now_s);

/* A certificate of its own for localhost, as PEM, malloc'ed; false: no memory. */
bool tls_self_signed(char **chain, char **key);

typedef struct tls_counters {
    uint64_t handshakes, resumed, failed, plain;
} tls_counters;

typedef struct tls {
    struct {
        tls_mode mode;
        tls_context *context; /* for those who connect from now on */
    } ports[TLS_PORTS];
    tls_tickets tickets;
    tls_counters counters;
    struct bio_method_st *socket_calls; /* what OpenSSL takes for a socket (tls_bio.c) */
    uint8_t *in, *out;                  /* for the stream whose turn it is: FEED_ROOM_BYTES, TLS_ROOM_BYTES */
    size_t out_length;
} tls;

int tls_open(tls *t, const tls_mode modes[TLS_PORTS]); /* 0 or -ENOMEM */
void tls_close(tls *t);
void tls_use(tls *t, tls_port port, tls_context *c); /* takes it; connections that are there keep theirs */

/* Takes the socket. False: no memory, it is closed. */
bool stream_tls(stream *out, tls *t, tls_port port, int fd);
#endif
