/* All connections of one worker. */
#ifndef SHARDD_NET_H
#define SHARDD_NET_H
#include "net/admission.h"
#include "net/conn/conn.h"
#include "net/introductions.h"
#include "net/samples.h"
#include "net/tls.h"
#include "net/websocket.h"

#define PARTIAL_RECEIVE_BYTES 32768u   /* one receive operation into a private block */
#define PARTIAL_FILL_BYTES 262144u     /* one plain receive into it */
#define FILL_BYTES_PER_PASS (1u << 20) /* by those, of all connections */
#define MOVE_AFTER_REQUESTS 16u        /* consecutive requests to one other shard move the socket */
#define SPARE_PLACES 64u               /* in the table of connections: for those that close or are refused */
#define LARGE_REQUESTS_MAX 16u         /* above LARGE_REQUEST_BYTES that Python has at a time */
#define LARGE_OF_USER_MAX 8u           /* of them of one user: they may wait for the device, or for a password */
#define LARGE_REQUEST_BYTES 4096u
#define FRAMES_BETWEEN_LOOKS 16u /* at the clock */

/* Bucket 0 counts requests below 1 us, bucket i those of 2^(i-1) to 2^i - 1 us, the last one everything longer. */
#define LATENCY_BUCKETS 32u

static inline uint32_t latency_bucket(int64_t us) {
    if (us <= 0) return 0;
    uint32_t bucket = 64u - (uint32_t)__builtin_clzll((unsigned long long)us);
    return bucket < LATENCY_BUCKETS ? bucket : LATENCY_BUCKETS - 1;
}

/* What clients are told about how others have come (docs/protocol/system.md#clients). */
enum { TRANSPORT_TCP = 1, TRANSPORT_WEBSOCKET = 4 };

typedef struct conn_queue {
    conn *first, *last;
} conn_queue;

#define OPENINGS_PER_ADDRESS 64u /* in a second: an address that asks for more comes behind the others */
#define OPENINGS_COLUMNS 1024u

/* Connections whose stream is opening. A step is a signature maybe, half a millisecond: one at a time, and as long as
 * it took others have their turn; three times as long when only those are left who ask for many. */
typedef struct openings {
    conn_queue few, many;
    int64_t next_us, second_us;
    uint16_t counts[OPENINGS_COLUMNS]; /* of this second, by the hash of an address */
} openings;

static inline bool openings_wait(const openings *o) { return o->few.first != NULL || o->many.first != NULL; }
static inline bool openings_are_due(const openings *o, int64_t now_us) {
    return openings_wait(o) && now_us >= o->next_us;
}

typedef struct net_options {
    const dialect *dialect; /* of those who connect */
    admission_limits limits;
    uint32_t introductions; /* sockets whose PROXY header is not whole: descriptors that are planned for them */
    int64_t partial_frame_timeout_us, slow_reader_timeout_us, login_timeout_us, request_timeout_us;
    int64_t idle_timeout_us; /* 0: none */
    bool socket_migration;
    uint32_t pipeline_window_requests; /* in work on one connection; 1: one at a time */
    websocket_settings websocket;
    tls_mode tls[TLS_PORTS];
    bool clients_have_names;             /* by their certificates: Python is told before their first request */
    uint32_t sample_every;               /* of requests; 0: none */
    const char *proxies[LISTENER_KINDS]; /* lines of trusted.h; NULL: none */
} net_options;

struct net {
    core *core;
    net_options options;
    uint32_t stopping_status; /* not 0: what every connection gets when its request is answered */
    uint32_t send_bytes_max;  /* of a frame with records: less than its dialect allows when the pool is small */
    struct {
        conn **places;
        uint32_t *generations, *free_indexes;
        uint32_t free_count, count, capacity;
    } conns;
    conn_queue starved[BUFFER_SETS];
    conn_queue ready, replies;                                 /* at once */
    conn_queue ready_pipelined, ready_anonymous, bulk_replies; /* a slice of each turn */
    tls tls;
    openings openings;
    introductions introductions;
    uint32_t check_next;    /* connection whose times are looked at next; the capacity: all were */
    void (*go_on)(conn *c); /* shares.c lets it receive more, ... */
    void (*evict)(conn *c); /* ... or closes it */
    pot pots[BUFFER_SETS];  /* private input memory: of those logged in, of the others */
    conn *buffer_holders[BUFFERS_IN_ALL];
    uint32_t large_in_python, large_users[LARGE_REQUESTS_MAX]; /* how many, and whose they are, in no order */
    websockets websockets;
    uint64_t filled_bytes; /* in this pass */
    samples samples;
    uint64_t latency[LATENCY_BUCKETS]; /* requests, from the complete frame to the whole answer with the kernel */
};

/* Its requests go to one other shard for long enough. */
static inline bool conn_wants_to_move(const conn *c) {
    return c->net->options.socket_migration && c->stream.movable && c->session.streak >= MOVE_AFTER_REQUESTS &&
           !c->core->peer_is_down[c->session.streak_shard];
}

/* Of those who have asked one thing. */
static inline bool net_has_prompt_work(const net *n) { return n->ready.first != NULL || n->replies.first != NULL; }

/* What is done in slices: it never makes those wait for long. */
static inline bool net_has_bulk_work(const net *n) {
    return n->ready_pipelined.first != NULL || n->bulk_replies.first != NULL ||
           openings_are_due(&n->openings, n->core->now_us) ||
           (n->ready_anonymous.first != NULL && n->core->events.anonymous < EVENTS_ANONYMOUS_MAX);
}

static inline bool net_has_bulk_replies(const net *n) { return n->bulk_replies.first != NULL; }

static inline bool net_has_checks(const net *n) { return n->check_next < n->conns.capacity; }

/* A socket that was accepted at a listener of that kind, here or in another worker. */
void net_accept(net *n, listener_kind kind, int fd);
int net_open(net *n, core *k, const net_options *options); /* 0, -ENOMEM or -EINVAL */
void net_close(net *n);                                    /* after io; memory of the pool goes with it */
void net_free(net *n);
/* The parts of a turn. */
void net_take_input(net *n);
void net_run_prompt_frames(net *n, int64_t until_us);
uint32_t net_run_bulk_frames(net *n, int64_t until_us);
void net_flush_prompt(net *n, int64_t until_us);
void net_flush_bulk(net *n, int64_t until_us);
void net_begin_checks(net *n); /* how long everything takes: of all connections, in slices */
void net_check_times(net *n, int64_t until_us);
void net_forgive(net *n, int64_t still_us);
void net_close_all(net *n, uint32_t status); /* everybody gets it as soon as the request in work is answered */
#endif
