/* The load client: closed loop, `depth` requests in flight on each connection. load.c owns threads and the measurement,
 * load_request.c builds requests and judges replies, load_options.c reads the command line. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOAD_CONNECTIONS_MAX = 4096, LOAD_THREADS_MAX = 64, LOAD_DEPTH_MAX = 1024, REPLY_TIMEOUT_MS = 10000 };

/* MODE_COMMIT: polls with auto-commit; MODE_STORE: stores the offset of a consumer */
typedef enum load_mode { MODE_SEND, MODE_POLL, MODE_COMMIT, MODE_STORE } load_mode;
extern const char *const load_mode_names[];

typedef struct load_options {
    const char *host, *local; /* local: path of a Unix socket instead of host and port, NULL = none */
    uint16_t port;
    uint32_t connections;
    uint32_t threads;
    uint32_t depth; /* requests in flight on each connection */
    load_mode mode;
    uint32_t batch;                         /* messages of a send, or asked for by a poll */
    uint32_t payload_bytes;                 /* of one message */
    uint32_t streams[LOAD_CONNECTIONS_MAX]; /* connection i uses streams[i % streams_count] */
    uint32_t streams_count;
    uint32_t topic;
    uint32_t partition;
    int group;     /* polls as a member of this consumer group, with auto-commit; -1 = as a consumer */
    int cpu;       /* the whole client is pinned to it, -1 = not */
    bool keyed;    /* send with a random key instead of the partition id */
    bool balanced; /* the server chooses the partition of each send */
    bool login;
    bool websocket; /* at host and port */
    bool tls;
    bool verify_offsets;    /* the first record of a poll carries the asked offset */
    uint64_t poll_messages; /* messages in each partition; polls go round over them */
    uint64_t requests;      /* measured requests over all connections, 0 = no limit */
    uint64_t requests_each; /* measured requests of each connection, 0 = no limit */
    uint64_t duration_ms;   /* of the measurement, 0 = no limit */
    uint64_t warmup_ms;
} load_options;

/* Reads the command line; prints what is wrong and exits with 2. */
void load_options_parse(int argc, char **argv, load_options *options);

/* One prepared request; the parts that change from one to the next are patched in place. */
typedef struct request {
    uint8_t *bytes;
    uint32_t length;
    uint32_t key_at;    /* position of the random key, 0 = none */
    uint32_t offset_at; /* position of the poll's offset, 0 = none */
    uint64_t offset;
    bool begun; /* the offset was asked for already */
    uint64_t random;
} request;

/* Aborts when memory is short. `stream` addresses topic and partition of the options. */
void request_build(request *r, const load_options *options, uint32_t stream, uint64_t seed);
/* Makes the next request of the same kind: new key, the offset after the last one. */
void request_next(request *r, const load_options *options);
void request_free(request *r);
/* LOGIN iggy/iggy, and JOIN_CONSUMER_GROUP of the options; they return the length, at most 64. */
uint32_t login_build(uint8_t *frame);
uint32_t join_build(uint8_t *frame, const load_options *options, uint32_t stream);

/* load_websocket.c */
enum { WEBSOCKET_HEAD_MAX = 14 };
typedef struct websocket_reader {
    uint8_t head[10];
    uint32_t have;
    uint64_t left; /* of the frame */
} websocket_reader;
bool websocket_upgrade(int fd);
/* One message with a mask; its length. */
size_t websocket_wrap(uint8_t *out, const uint8_t *bytes, uint32_t length, uint32_t mask);
/* Takes the heads of frames out of what came; bytes that are left. */
size_t websocket_strip(websocket_reader *r, uint8_t *bytes, size_t length);

enum { REPLY_KEPT = 8 + 16 + 64 }; /* reply head, polled head, header of the first record */
/* NULL when the reply is what the request must get, else what is wrong. `offset`: that it asked for; `head`: first
 * bytes of the reply. */
const char *reply_fault(uint64_t offset, const load_options *options, const uint8_t *head, uint64_t length);
#endif
