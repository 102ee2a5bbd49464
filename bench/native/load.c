/* load: drives a server of the classic wire and prints one JSON line with rate and latency.
 *
 * Closed loop: every connection has --depth requests in flight (1) and sends as many new ones as replies have come, in
 * one send. The latency of a request is the time from its bytes being handed to the kernel until its last reply byte
 * was read. A thread with a single connection of depth 1 blocks in recv; otherwise it waits in epoll. Every reply is
 * checked, against the oldest request in flight. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <openssl/ssl.h>

#include "histogram.h"
#include "wire.h"

enum { SCRATCH_BYTES = 1 << 20, EVENTS_MAX = 256 };

typedef struct asked { /* a request in flight */
    uint64_t started_ns;
    uint64_t offset; /* of a poll */
} asked;

typedef struct connection {
    int fd;
    SSL *tls;  /* NULL: plain */
    bool idle; /* no request in flight: the end was reached */
    request request;
    websocket_reader reader;
    uint8_t *out; /* requests that are to be sent, `depth` of them at most */
    size_t out_length, out_sent;
    asked *asked; /* ring of `depth` places */
    uint32_t first, in_flight;
    uint64_t received; /* of the oldest reply that is not complete */
    uint8_t head[REPLY_KEPT];
    uint64_t given; /* measured requests given to this connection, against options.requests_each */
} connection;

typedef struct worker {
    pthread_t thread;
    connection *connections;
    uint32_t count;
    uint8_t *scratch;
    histogram latency;
    uint64_t last_reply_ns;
    uint64_t answered; /* warming up included */
} worker;

static load_options options;
static uint64_t measure_from_ns;
static uint64_t measure_until_ns; /* UINT64_MAX: no limit in time */
static _Atomic uint64_t begun;    /* measured requests given out so far, against options.requests */

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

static _Noreturn void fail_errno(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, errno == EAGAIN ? "no progress for 10 s" : strerror(errno));
    exit(1);
}

/* True when a request may start now: warming up, or inside the limits of the measurement. */
static bool may_start(connection *c, uint64_t now) {
    if (now < measure_from_ns) return true;
    if (now >= measure_until_ns || (options.requests_each != 0 && c->given >= options.requests_each)) return false;
    c->given++;
    return options.requests == 0 || atomic_fetch_add_explicit(&begun, 1, memory_order_relaxed) < options.requests;
}

/* As many new requests as may be in flight, copied one behind the other. */
static void fill(connection *c) {
    uint64_t now = now_ns();
    c->out_length = c->out_sent = 0;
    while (c->in_flight < options.depth && may_start(c, now)) {
        request_next(&c->request, &options);
        uint8_t *at = c->out + c->out_length;
        if (options.websocket) {
            c->out_length += websocket_wrap(at, c->request.bytes, c->request.length, (uint32_t)now * 2654435761u);
        } else {
            memcpy(at, c->request.bytes, c->request.length);
            c->out_length += c->request.length;
        }
        c->asked[(c->first + c->in_flight++) % options.depth] = (asked){now, c->request.offset};
    }
}

static ssize_t tls_result(const connection *c, int result) {
    if (result > 0) return result;
    int why = SSL_get_error(c->tls, result);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) errno = EAGAIN;
    else if (why != SSL_ERROR_SYSCALL) errno = EPROTO;
    return why == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

static ssize_t put(connection *c, const uint8_t *bytes, size_t length) {
    if (c->tls == NULL) return send(c->fd, bytes, length, MSG_NOSIGNAL);
    return tls_result(c, SSL_write(c->tls, bytes, (int)length));
}

static ssize_t get(connection *c, uint8_t *bytes, size_t length) {
    if (c->tls == NULL) return recv(c->fd, bytes, length, 0);
    return tls_result(c, SSL_read(c->tls, bytes, (int)length));
}

/* On a blocking socket. */
static bool get_all(connection *c, uint8_t *bytes, size_t length) {
    for (size_t have = 0; have < length;) {
        ssize_t n = get(c, bytes + have, length - have);
        if (n <= 0) return false;
        have += (size_t)n;
    }
    return true;
}

/* Whoever answers is believed: what is measured is how long it takes. */
static void begin_tls(connection *c) {
    static SSL_CTX *context;
    if (context == NULL) context = SSL_CTX_new(TLS_client_method());
    if (context == NULL) fail("OpenSSL has no context");
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1); /* a record is one system call */
    c->tls = SSL_new(context);
    if (c->tls == NULL || SSL_set_fd(c->tls, c->fd) != 1 || SSL_connect(c->tls) != 1) fail("no TLS with this server");
}

/* Until the socket is full (never on a blocking one). */
static void flush(connection *c) {
    while (c->out_sent < c->out_length) {
        ssize_t n = put(c, c->out + c->out_sent, c->out_length - c->out_sent);
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0 && errno != EINTR) fail_errno("send");
        if (n > 0) c->out_sent += (size_t)n;
    }
}

/* The oldest reply is complete. */
static void finish(worker *w, connection *c) {
    const asked *request = &c->asked[c->first];
    const char *fault = reply_fault(request->offset, &options, c->head, c->received);
    if (fault != NULL) {
        fprintf(stderr, "load: %s (status %u, %llu bytes)\n", fault, get_u32(c->head), (unsigned long long)c->received);
        exit(1);
    }
    uint64_t now = now_ns();
    w->answered++;
    if (request->started_ns >= measure_from_ns) {
        histogram_record(&w->latency, now - request->started_ns);
        w->last_reply_ns = now;
    }
    c->first = (c->first + 1) % options.depth;
    c->in_flight--;
    c->received = 0;
}

/* Takes what was received, up to the end of the oldest reply; returns how much that was. */
static size_t take(connection *c, const uint8_t *bytes, size_t length) {
    uint64_t whole = c->received < REPLY_HEAD ? REPLY_HEAD : REPLY_HEAD + (uint64_t)get_u32(c->head + 4);
    size_t part = length < whole - c->received ? length : (size_t)(whole - c->received);
    if (c->received < REPLY_KEPT) {
        size_t room = REPLY_KEPT - c->received;
        memcpy(c->head + c->received, bytes, part < room ? part : room);
    }
    c->received += part;
    return part;
}

static bool is_complete(const connection *c) {
    return c->received >= REPLY_HEAD && c->received == REPLY_HEAD + (uint64_t)get_u32(c->head + 4);
}

static void take_replies(worker *w, connection *c, size_t length) {
    for (size_t at = 0; at < length;) {
        if (c->in_flight == 0) fail("more bytes than the replies");
        at += take(c, w->scratch + at, length - at);
        if (is_complete(c)) finish(w, c);
    }
}

/* Keeps requests in flight until one must wait for the socket; idle at the end of the measurement. */
static void advance(worker *w, connection *c) {
    for (;;) {
        if (c->out_sent == c->out_length) fill(c);
        if (c->in_flight == 0) {
            c->idle = true;
            return;
        }
        flush(c);
        ssize_t n = get(c, w->scratch, SCRATCH_BYTES);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) fail_errno("recv");
        if (n == 0) fail("the server closed a connection");
        take_replies(w, c, options.websocket ? websocket_strip(&c->reader, w->scratch, (size_t)n) : (size_t)n);
    }
}

static void run_epoll(worker *w) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0) fail_errno("epoll_create1");
    uint32_t active = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = i};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, w->connections[i].fd, &event) != 0) fail_errno("epoll_ctl");
        advance(w, &w->connections[i]);
        active += !w->connections[i].idle;
    }
    while (active > 0) {
        struct epoll_event events[EVENTS_MAX];
        int n = epoll_wait(epoll, events, EVENTS_MAX, REPLY_TIMEOUT_MS);
        if (n < 0 && errno != EINTR) fail_errno("epoll_wait");
        if (n == 0) fail("no reply for 10 s");
        for (int i = 0; i < n; i++) {
            connection *c = &w->connections[events[i].data.u32];
            if (c->idle) continue;
            advance(w, c);
            active -= c->idle;
        }
    }
    close(epoll);
}

/* Several requests in flight may fill both directions of a socket: nobody may block in one of them. */
static bool blocks(const worker *w) { return w->count == 1 && options.depth == 1; }

static void *run(void *argument) {
    worker *w = argument;
    if (!blocks(w)) run_epoll(w);
    else {
        advance(w, &w->connections[0]); /* a blocking socket: returns at the end, or when its time-out passes */
        if (!w->connections[0].idle) fail("no reply for 10 s");
    }
    return NULL;
}

static void prepare(connection *c, uint8_t *frame, uint32_t length, const char *refused) {
    uint8_t reply[REPLY_HEAD], message[64 + WEBSOCKET_HEAD_MAX], head[2];
    if (options.websocket) {
        length = (uint32_t)websocket_wrap(message, frame, length, 1);
        frame = message;
    }
    if (put(c, frame, length) != (ssize_t)length) fail_errno("send of the login or join");
    if (options.websocket && !get_all(c, head, sizeof head)) fail_errno("recv of the login or join");
    if (!get_all(c, reply, sizeof reply)) fail_errno("recv of the login or join");
    uint32_t rest = get_u32(reply + 4);
    if (get_u32(reply) != 0 || rest > 64 || !get_all(c, frame, rest)) fail(refused);
}

static int connect_local(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(options.local) >= sizeof address.sun_path) fail("--unix is too long");
    memcpy(address.sun_path, options.local, strlen(options.local));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) fail_errno("connect");
    return fd;
}

static int connect_remote(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(options.port)};
    int one = 1;
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1) fail("--host must be an IPv4 address");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) fail_errno("connect");
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) fail_errno("setsockopt");
    return fd;
}

static void connection_open(connection *c, uint32_t number, bool blocking) {
    struct timeval patience = {.tv_sec = REPLY_TIMEOUT_MS / 1000};
    c->fd = options.local != NULL ? connect_local() : connect_remote();
    if (setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
        fail_errno("setsockopt");
    if (options.websocket && !websocket_upgrade(c->fd)) fail("no upgrade to WebSocket");
    uint8_t frame[64];
    if (options.tls) begin_tls(c);
    if (options.login) prepare(c, frame, login_build(frame), "the login was refused");
    if (options.group >= 0)
        prepare(c, frame, join_build(frame, &options, options.streams[number % options.streams_count]),
                "the join was refused");
    if (!blocking && fcntl(c->fd, F_SETFL, O_NONBLOCK) != 0) fail_errno("fcntl");
    request_build(&c->request, &options, options.streams[number % options.streams_count], number + 1);
    c->out = malloc((size_t)options.depth * (c->request.length + WEBSOCKET_HEAD_MAX));
    c->asked = calloc(options.depth, sizeof *c->asked);
    if (c->out == NULL || c->asked == NULL) fail("out of memory");
}

static void workers_start(worker *workers, connection *connections) {
    uint32_t next = 0;
    for (uint32_t t = 0; t < options.threads; t++) {
        worker *w = &workers[t];
        w->connections = connections + next;
        w->count = options.connections / options.threads + (t < options.connections % options.threads);
        w->scratch = malloc(SCRATCH_BYTES);
        if (w->scratch == NULL) fail("out of memory");
        for (uint32_t i = 0; i < w->count; i++) connection_open(&w->connections[i], next + i, blocks(w));
        next += w->count;
    }
    measure_from_ns = now_ns() + options.warmup_ms * 1000000u;
    measure_until_ns = options.duration_ms == 0 ? UINT64_MAX : measure_from_ns + options.duration_ms * 1000000u;
    for (uint32_t t = 0; t < options.threads; t++)
        if (pthread_create(&workers[t].thread, NULL, run, &workers[t]) != 0) fail("pthread_create");
}

static void report(const histogram *latency, uint64_t last_reply_ns, uint64_t answered) {
    double seconds = latency->count == 0 ? 0 : (double)(last_reply_ns - measure_from_ns) / 1e9;
    double rate = seconds > 0 ? (double)latency->count / seconds : 0;
    double payload_bytes = (double)options.batch * (double)options.payload_bytes;
    printf(
        "{\"mode\": \"%s\", \"connections\": %u, \"threads\": %u, \"depth\": %u, \"batch\": %u, \"payload_bytes\": %u, "
        "\"requests\": %llu, \"answered\": %llu, \"seconds\": %.6f, \"requests_per_s\": %.1f, \"mb_per_s\": %.2f, "
        "\"p50_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f, \"max_us\": %.2f}\n",
        load_mode_names[options.mode], options.connections, options.threads, options.depth, options.batch,
        options.payload_bytes, (unsigned long long)latency->count, (unsigned long long)answered, seconds, rate,
        rate * payload_bytes / 1e6, (double)histogram_percentile(latency, 0.5) / 1e3,
        (double)histogram_percentile(latency, 0.99) / 1e3, (double)histogram_percentile(latency, 0.999) / 1e3,
        (double)latency->max_ns / 1e3);
}

int main(int argc, char **argv) {
    load_options_parse(argc, argv, &options);
    if (options.cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(options.cpu, &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0) fail_errno("sched_setaffinity");
    }
    worker *workers = calloc(options.threads, sizeof *workers);
    connection *connections = calloc(options.connections, sizeof *connections);
    histogram *total = calloc(1, sizeof *total);
    if (workers == NULL || connections == NULL || total == NULL) fail("out of memory");
    workers_start(workers, connections);
    uint64_t last_reply_ns = 0, answered = 0;
    for (uint32_t t = 0; t < options.threads; t++) {
        pthread_join(workers[t].thread, NULL);
        histogram_merge(total, &workers[t].latency);
        answered += workers[t].answered;
        if (workers[t].last_reply_ns > last_reply_ns) last_reply_ns = workers[t].last_reply_ns;
        free(workers[t].scratch);
    }
    report(total, last_reply_ns, answered);
    for (uint32_t i = 0; i < options.connections; i++) {
        request_free(&connections[i].request);
        free(connections[i].out);
        free(connections[i].asked);
        SSL_free(connections[i].tls);
        close(connections[i].fd);
    }
    free(connections);
    free(workers);
    free(total);
    return 0;
}
