/* For test_engine.c: two engines of one server in two threads, and a small client of the classic wire. */
#ifndef SHARDD_TEST_ENGINE_SUPPORT_H
#define SHARDD_TEST_ENGINE_SUPPORT_H
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "base/status.h"
#include "core/sync.h"
#include "engine/engine_api.h"
#include "wire/classic_request.h"
#include "wire/frame_limits.h"
#include "base/hash.h"
#include "namespace.h"

#define SHARDS 2u
#define POOL_BYTES (64u << 20)
#define STREAMS 16u
#define CODE_NEVER_ANSWERED 998u /* Python works on it for ever */

typedef struct server_bounds { /* 0: 600 connections, the others as many; a minute for a login and a request */
    admission_limits limits;
    int64_t login_timeout_us, idle_timeout_us, request_timeout_us;
    const char *tcp_proxies; /* NULL: there is none */
} server_bounds;

typedef struct server {
    char directory[64];
    int region, pools[SHARDS], bells[SHARDS], receive[SHARDS], send[SHARDS], listeners[SHARDS];
    uint16_t port;
    pthread_t threads[SHARDS];
    engine *_Atomic engines[SHARDS];
    _Atomic bool stop;
    bool alone; /* shard 1 never starts: its requests are those of a dead owner */
    server_bounds bounds;
    io_engine io_engine;
    partition_level level;
    const disk *disk;                               /* of the partitions; NULL: the real one */
    void (*opened)(struct server *s, engine *e);    /* in the thread of the engine: when it is open ... */
    void (*each_turn)(struct server *s, engine *e); /* ... and after every turn */
    bool (*keeps)(engine *e, const event *v);       /* an event that gets no answer here; NULL: there is none */
    void (*_Atomic doubted)(struct server *s, engine *e, uint64_t ns, uint64_t segment); /* NULL: polls in doubt wait */
    _Atomic unsigned doubts, moved_in, closed, group_polls, group_messages, lent;
    _Atomic uint64_t assignment; /* not 0: members get a seat of that generation */
} server;

typedef struct shard_start {
    server *s;
    uint32_t shard;
} shard_start;

static void answer(server *s, engine *e, const event *v) {
    uint8_t user[4] = {0};
    if (s->keeps != NULL && s->keeps(e, v)) return;
    if (v->kind == EVENT_REQUEST && v->code == CODE_LOGIN_USER) {
        conn *c = conn_find(&e->net, v->connection); /* the second byte of the payload, if any, is the user */
        if (c != NULL) conn_set_session(c, v->data_length > 1 ? v->data[1] : 0, true);
        engine_reply(e, v->connection, 0, user, sizeof user, false);
    } else if (v->kind == EVENT_REQUEST && v->code == CODE_POLL_MESSAGES && v->authenticated) {
        consumer_request q;
        if (!request_parse_poll(v->data, v->data_length, &q) || q.kind != CONSUMER_GROUP) abort();
        uint32_t stream;
        memcpy(&stream, q.address + 2, 4);
        if (s->assignment != 0) {
            seat *lent = engine_seat_put(e, v->connection, stream, 1);
            if (lent == NULL) abort();
            seat_set(lent, 0, 0, SEAT_NONE, SEAT_NONE);
            lent->last_polled = SEAT_NONE;
            lent->offsets_id = 7;
            lent->generation = s->assignment;
            s->lent++;
            engine_resume(e, v->connection);
            return;
        }
        uint64_t ns = namespace_of(stream, 0, 0);
        partition_request what = {.kind = REQUEST_POLL,
                                  .ns = ns,
                                  .incarnation = stream + 1,
                                  .strategy = q.strategy,
                                  .value = q.value,
                                  .count = q.count,
                                  .consumer_kind = OFFSET_GROUP,
                                  .consumer_id = 7,
                                  .auto_commit = q.auto_commit};
        engine_execute_poll(e, v->connection, hash_owner(ns, SHARDS), &what);
    } else if (v->kind == EVENT_GROUP_POLLED) {
        s->group_polls++;
        s->group_messages += v->code;
    } else if (v->kind == EVENT_REQUEST && v->code == CODE_NEVER_ANSWERED) {
        return;
    } else if (v->kind == EVENT_REQUEST) {
        engine_reply(e, v->connection, v->authenticated ? 3 : 40, NULL, 0, false);
    } else if (v->kind == EVENT_ROUTE_MISS) {
        uint32_t stream;
        memcpy(&stream, v->data + 2, 4);
        uint64_t ns = namespace_of(stream, 0, 0);
        route_topic *topic = routes_topic(&e->core.routes, ns);
        if (topic == NULL) {
            topic = routes_topic_put(&e->core.routes, stream, ns, 1);
            topic->partitions[0] = (route_partition){
                .ns = ns, .incarnation = stream + 1, .owner = hash_owner(ns, SHARDS)};
        }
        route *r = routes_put(&e->core.routes, v->user_id, v->data, (uint32_t)v->data_length, topic);
        r->can_send = r->can_poll = true;
        if (stream < STREAMS) engine_resume(e, v->connection);
        else engine_reply(e, v->connection, 1009, NULL, 0, false);
    } else if (v->kind == EVENT_MOVE) {
        if (!engine_move(e, v->connection, (uint32_t)v->number, user, sizeof user)) engine_resume(e, v->connection);
    } else if (v->kind == EVENT_MOVED_IN) {
        s->moved_in++;
    } else if (v->kind == EVENT_DOUBT) {
        if (s->doubted != NULL) s->doubted(s, e, v->connection, v->number);
        s->doubts++;
    } else if (v->kind == EVENT_CLOSED) {
        s->closed++;
    }
}

static void open_partitions(server *s, engine *e, uint32_t shard) {
    s->engines[shard] = e;
    for (uint32_t stream = 0; stream < STREAMS; stream++) {
        uint64_t ns = namespace_of(stream, 0, 0);
        if (hash_owner(ns, SHARDS) != shard) continue;
        char path[128];
        snprintf(path, sizeof path, "%s/%u", s->directory, stream);
        partition_options o = {.ns = ns,
                               .incarnation = stream + 1,
                               .directory = path,
                               .segment_size_bytes = 1 << 20,
                               .stats = &e->core.links.stats[stream],
                               .ids = &e->core.ids,
                               .level = s->level,
                               .files = &e->core.files,
                               .disk = s->disk != NULL ? s->disk : &disk_system};
        partition *p = partition_open(&o, NULL, 0);
        if (p == NULL || core_partition_add(&e->core, p) != 0) abort();
    }
}

/* What the supervisor does: each hears that the other one serves, or that it is dead. */
static void meet(server *s, engine *e, uint32_t other) {
    if (s->alone) {
        peers_down(&e->peers, other);
        return;
    }
    while (s->engines[other] == NULL) usleep(100);
    peers_up(&e->peers, other, links_page(&e->core.links, other)->generation);
}

static void *run_shard(void *argument) {
    shard_start start = *(shard_start *)argument;
    server *s = start.s;
    const server_bounds *b = &s->bounds;
    admission_limits limits = b->limits;
    if (limits.connections == 0) limits.connections = 600;
    if (limits.per_address == 0) limits.per_address = limits.connections;
    if (limits.before_login == 0) limits.before_login = limits.connections;
    engine_options o = {.shard = start.shard,
                        .shards = SHARDS,
                        .shared_fd = s->region,
                        .handover_receive_fd = s->receive[start.shard],
                        .pool_fds = s->pools,
                        .doorbell_fds = s->bells,
                        .handover_send_fds = s->send,
                        .pool_bytes = POOL_BYTES,
                        .limits = limits,
                        .login_timeout_us = b->login_timeout_us != 0 ? b->login_timeout_us : 60000000,
                        .request_timeout_us = b->request_timeout_us != 0 ? b->request_timeout_us : 60000000,
                        .idle_timeout_us = b->idle_timeout_us,
                        .partial_frame_timeout_us = 1000000,
                        .slow_reader_timeout_us = 2000000,
                        .sync_interval_us = 50000,
                        .tcp_proxies = b->tcp_proxies,
                        .socket_migration = true,
                        .dialect = &dialect_undecided,
                        .pipeline_window_requests = WINDOW_REQUESTS_MAX,
                        .waiting_polls = {1000, 500},
                        .io_engine = s->io_engine};
    engine *e;
    if (engine_open(&e, &o) != 0) abort();
    if (s->opened != NULL) s->opened(s, e);
    open_partitions(s, e, start.shard);
    meet(s, e, 1 - start.shard);
    engine_listen(e, LISTENER_TCP, s->listeners[start.shard]);
    while (!s->stop) {
        engine_turn(e, -1, 20000);
        for (uint32_t i = 0; i < e->core.events.count; i++) {
            event v = e->core.events.list[i]; /* answers may add events: the array may move */
            answer(s, e, &v);
        }
        events_clear(&e->core.events);
        if (s->each_turn != NULL) s->each_turn(s, e);
    }
    engine_close_all(e, STATUS_DISCONNECTED);
    engine_turn(e, -1, 1000);
    engine_close(e);
    return NULL;
}

static uint32_t started(const server *s) { return s->alone ? 1 : SHARDS; }

static void start_server(server *s) {
    server wanted = {.alone = s->alone,
                     .bounds = s->bounds,
                     .level = s->level,
                     .io_engine = s->io_engine,
                     .disk = s->disk,
                     .opened = s->opened,
                     .each_turn = s->each_turn,
                     .keeps = s->keeps};
    *s = wanted;
    strcpy(s->directory, "/tmp/shardd-test-engine-XXXXXX");
    if (mkdtemp(s->directory) == NULL) abort();
    s->region = memfd_create("region", 0);
    if (links_region_format(s->region, SHARDS) != 0) abort();
    static shard_start starts[SHARDS];
    for (uint32_t i = 0; i < SHARDS; i++) {
        int two[2], on = 1;
        s->pools[i] = memfd_create("pool", 0);
        s->bells[i] = eventfd(0, EFD_NONBLOCK);
        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, two) != 0) abort();
        s->receive[i] = two[0];
        s->send[i] = two[1];
        s->listeners[i] = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(s->listeners[i], SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
        setsockopt(s->listeners[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct sockaddr_in at = {
            .sin_family = AF_INET, .sin_port = htons(s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof at;
        if (bind(s->listeners[i], (struct sockaddr *)&at, sizeof at) != 0 ||
            (i < started(s) && listen(s->listeners[i], 4096) != 0))
            abort();
        getsockname(s->listeners[i], (struct sockaddr *)&at, &length);
        s->port = ntohs(at.sin_port);
    }
    for (uint32_t i = 0; i < started(s); i++) {
        starts[i] = (shard_start){s, i};
        if (pthread_create(&s->threads[i], NULL, run_shard, &starts[i]) != 0) abort();
    }
}

static void stop_server(server *s) {
    s->stop = true;
    for (uint32_t i = 0; i < started(s); i++) pthread_join(s->threads[i], NULL);
    for (uint32_t i = 0; i < SHARDS; i++) {
        close(s->pools[i]);
        close(s->bells[i]);
        close(s->receive[i]);
        close(s->send[i]);
        close(s->listeners[i]);
    }
    close(s->region);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", s->directory);
    CHECK(system(command) == 0);
}

/* On io_uring, which has to work where the tests run, and on epoll. */
static void for_each_engine(void (*run_on)(io_engine which)) {
    const char *reason = io_ring_probe();
    if (reason != NULL) fprintf(stderr, "io_uring: %s\n", reason);
    CHECK(reason == NULL);
    if (reason == NULL) run_on(IO_ENGINE_URING);
    fprintf(stderr, "-- the same on epoll\n");
    run_on(IO_ENGINE_EPOLL);
}

/* ---- a small client ---- */

static int dial(const server *s) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 60}; /* a busy machine may need long */
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) abort();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static bool read_all(int fd, void *data, size_t length) {
    for (size_t have = 0; have < length;) {
        ssize_t got = recv(fd, (uint8_t *)data + have, length - have, 0);
        if (got < 0 && errno == EINTR) continue; /* the ring's kernel threads interrupt system calls of this process */
        if (got <= 0) return false;
        have += (size_t)got;
    }
    return true;
}

/* Status of the next answer (-1: closed or too late); its length into `length`, payload dropped but for the first 16
 * bytes. */
static int64_t next_status(int fd, uint32_t *length, uint8_t head[16]) {
    uint32_t words[2];
    uint8_t drop[4096];
    if (!read_all(fd, words, sizeof words)) return -1;
    *length = words[1];
    for (uint32_t left = words[1], first = 1; left > 0; first = 0) {
        uint32_t part = left < sizeof drop ? left : (uint32_t)sizeof drop;
        if (!read_all(fd, drop, part)) return -1;
        if (first && head != NULL) memcpy(head, drop, part < 16 ? part : 16);
        left -= part;
    }
    return words[0];
}

static inline int64_t call(int fd, uint32_t code, const void *payload, uint32_t payload_length, uint32_t *length,
                           uint8_t head[16]) {
    uint32_t words[2] = {payload_length + 4, code};
    uint32_t ignored;
    if (send(fd, words, sizeof words, MSG_NOSIGNAL | (payload_length ? MSG_MORE : 0)) < 0) return -1;
    for (uint32_t sent = 0; sent < payload_length;) {
        ssize_t n = send(fd, (const uint8_t *)payload + sent, payload_length - sent, MSG_NOSIGNAL);
        if (n <= 0) return -1;
        sent += (uint32_t)n;
    }
    return next_status(fd, length != NULL ? length : &ignored, head);
}

static size_t put_address(uint8_t *at, uint32_t stream) {
    memcpy(at, "\1\4\0\0\0\0\1\4\0\0\0\0", 12);
    memcpy(at + 2, &stream, 4);
    return 12;
}

/* A SEND payload of `count` messages of `size` bytes; malloc'ed. */
static uint8_t *send_payload(uint32_t stream, uint32_t count, uint32_t size, uint32_t *total) {
    uint32_t metadata = 12 + 6 + 4, record = 64 + size;
    *total = 4 + metadata + count * (16 + record);
    uint8_t *payload = calloc(1, *total), *at = payload + 4;
    memcpy(payload, &metadata, 4);
    at += put_address(at, stream);
    memcpy(at, "\2\4\0\0\0\0", 6);
    memcpy(at + 6, &count, 4);
    at += 10;
    for (uint32_t i = 1; i <= count; i++, at += 16) {
        uint32_t end = i * record;
        memcpy(at + 4, &end, 4);
    }
    for (uint32_t i = 0; i < count; i++, at += record) {
        memcpy(at + 52, &size, 4);
        memset(at + 64, 'a' + (int)(i % 26), size);
    }
    return payload;
}

static inline int64_t send_messages(int fd, uint32_t stream, uint32_t count, uint32_t size) {
    uint32_t total;
    uint8_t *payload = send_payload(stream, count, size, &total);
    int64_t status = call(fd, CODE_SEND_MESSAGES, payload, total, NULL, NULL);
    free(payload);
    return status;
}

static inline int64_t poll_as(int fd, uint8_t kind, uint8_t strategy, uint32_t stream, uint64_t offset, uint32_t count,
                              uint32_t *length) {
    uint8_t payload[64] = {kind, 1, 4, 7, 0, 0, 0}, head[16] = {0};
    put_address(payload + 7, stream);
    memcpy(payload + 19, "\1\0\0\0\0", 5);
    payload[24] = strategy;
    memcpy(payload + 25, &offset, 8);
    memcpy(payload + 33, &count, 4);
    payload[37] = kind == CONSUMER_GROUP; /* auto commit */
    int64_t status = call(fd, CODE_POLL_MESSAGES, payload, 38, length, head);
    uint32_t messages;
    memcpy(&messages, head + 12, 4);
    return status == 0 ? (int64_t)messages : -status - 1;
}

/* Number of messages of a poll from `offset`, or -status - 1. */
static inline int64_t poll_messages(int fd, uint32_t stream, uint64_t offset, uint32_t count, uint32_t *length) {
    return poll_as(fd, CONSUMER_PLAIN, 1, stream, offset, count, length);
}

static inline int login(const server *s) {
    int fd = dial(s);
    CHECK_EQUAL(call(fd, CODE_LOGIN_USER, "x", 1, NULL, NULL), 0);
    return fd;
}
/* As many open files as this process may have: a crowd has two for each connection. */
static inline void raise_descriptor_limit(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}
#endif
