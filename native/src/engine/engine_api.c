/* What the binding calls: life of the engine and answers from Python. The loop itself is in engine.c. */
#include "engine/engine_api.h"

#include "base/clock.h"
#include "base/status.h"
#include "core/sync.h"

#include <errno.h>
#include <stdlib.h>

#define ID_WINDOWS_POOL_SHARE 8u /* ids that are compared: as much as an eighth of the pool, beside it */
#define JOURNALS_POOL_SHARE 4u   /* all journals of `memory` together: at most a quarter of the pool */
#define JOURNAL_POOL_RESERVE 8u

static void *take_journal(void *context, size_t bytes) {
    return pool_alloc_reserving(context, bytes, pool_capacity(context) / JOURNAL_POOL_RESERVE);
}

static void give_journal(void *context, void *block) { pool_free(context, block); }

/* The order matters: the generation is bumped (links) before the pool, which peers may still read, is written. */
static int open_parts(engine *e) {
    const engine_options *o = &e->options;
    core *k = &e->core;
    int result = links_open(&k->links, o->shard, o->shards, o->shared_fd, o->pool_fds, o->doorbell_fds, o->pool_bytes);
    if (result != 0) return result;
    e->page = links_page(&k->links, o->shard);
    k->pool = pool_create(o->pool_fds[o->shard], o->pool_bytes);
    if (k->pool == NULL) return -errno;
    k->journals = (journal_memory){.bytes_max = pool_capacity(k->pool) / JOURNALS_POOL_SHARE,
                                   .take = take_journal,
                                   .give = give_journal,
                                   .context = k->pool};
    if (id_memory_open(&k->id_windows, pool_capacity(k->pool) / ID_WINDOWS_POOL_SHARE) != 0) return -errno;
    core_options for_core = {.shard = o->shard,
                             .shards = o->shards,
                             .sync_interval_us = o->sync_interval_us,
                             .save_interval_us = o->save_interval_us,
                             .save_syncs = o->save_syncs,
                             .calls_max = CALLS_MAX,
                             .waiting_polls = o->waiting_polls};
    net_options for_net = {.dialect = o->dialect,
                           .limits = o->limits,
                           .introductions = k->files.budget.introductions,
                           .partial_frame_timeout_us = o->partial_frame_timeout_us,
                           .slow_reader_timeout_us = o->slow_reader_timeout_us,
                           .login_timeout_us = o->login_timeout_us,
                           .request_timeout_us = o->request_timeout_us,
                           .idle_timeout_us = o->idle_timeout_us,
                           .socket_migration = o->socket_migration,
                           .tls = {o->tls[TLS_OF_TCP], o->tls[TLS_OF_WEBSOCKET]},
                           .clients_have_names = o->clients_have_names,
                           .sample_every = o->sample_every,
                           .pipeline_window_requests = o->pipeline_window_requests,
                           .proxies = {[LISTENER_TCP] = o->tcp_proxies, [LISTENER_WEBSOCKET] = o->websocket_proxies},
                           .websocket = o->websocket};
    result = core_open(k, &for_core);
    if (result == 0) result = net_open(&e->net, k, &for_net);
    if (result == 0) result = peers_open(&e->peers, k, &e->net, o->handover_receive_fd, o->handover_send_fds);
    if (result == 0) result = calls_open(&e->calls, k, e->net.send_bytes_max);
    if (result == 0) result = room_open(&k->commit.room, o->data_directory, o->disk_reserve_bytes, o->shards);
    if (result != 0) return result;
    uint8_t *memory[BUFFER_SETS];
    for (buffer_set set = 0; set < BUFFER_SETS; set++) {
        memory[set] = pool_alloc(k->pool, io_buffers_bytes(set));
        if (memory[set] == NULL) return -ENOMEM;
    }
    k->files.unpacked.io = &k->io;
    return io_open(&k->io, o->io_engine, memory);
}

static void free_parts(engine *e) {
    core *k = &e->core;
    if (k->links.region != NULL) links_close(&k->links);
    room_close(&k->commit.room);
    if (k->pool != NULL) pool_destroy(k->pool);
    calls_close(&e->calls);
    peers_close(&e->peers);
    net_free(&e->net);
    core_free(k);
    file_cache_close(&k->files);
    free(e);
}

static bool has_lines(const char *lines) { return lines != NULL && *lines != '\0'; }

int engine_open(engine **out, const engine_options *options) {
    if (options->limits.connections == 0) return -EINVAL;
    engine *e = calloc(1, sizeof *e);
    if (e == NULL) return -ENOMEM;
    e->options = *options;
    bool proxies = has_lines(options->tcp_proxies) || has_lines(options->websocket_proxies);
    file_cache_open_for(&e->core.files, options->limits.connections, proxies ? INTRODUCTIONS_MAX : 0);
    e->core.files.indexes.mode = options->cache_indexes;
    e->core.files.indexes.bytes_max = options->pool_bytes / INDEX_PAGES_SHARE;
    e->standing.epoll_fd = e->core.commit.room.fd = -1;
    e->core.now_us = e->pass_us = e->python_us = clock_monotonic_us();
    listeners_open(e);
    e->standing.epoll = operation_of(OPERATION_EPOLL, e);
    e->standing.doorbell = operation_of(OPERATION_DOORBELL, e);
    e->standing.handover = operation_of(OPERATION_HANDOVER, e);
    int result = open_parts(e);
    if (result != 0) {
        free_parts(e);
        return result;
    }
    *out = e;
    return 0;
}

/* The process is about to end: descriptors close, partitions flush their index; memory of single connections goes with
 * it. */
void engine_close(engine *e) {
    io_close(&e->core.io);
    net_close(&e->net);
    core_close_partitions(&e->core);
    free_parts(e);
}

void engine_listen(engine *e, listener_kind kind, int fd) {
    listeners_add(e, kind, fd);
    e->standing.serving = true;
}

void engine_stop_listening(engine *e) { listeners_stop(e); }

void engine_change_limits(engine *e, const engine_options *wanted) {
    net_options *o = &e->net.options;
    o->limits.per_address = wanted->limits.per_address;
    o->limits.before_login = wanted->limits.before_login;
    o->login_timeout_us = wanted->login_timeout_us;
    o->idle_timeout_us = wanted->idle_timeout_us;
    o->request_timeout_us = wanted->request_timeout_us;
    o->partial_frame_timeout_us = wanted->partial_frame_timeout_us;
    o->slow_reader_timeout_us = wanted->slow_reader_timeout_us;
    listeners_limit(e);
}

void engine_reply(engine *e, uint64_t connection, uint32_t status, const uint8_t *data, size_t length, bool close) {
    conn *c = conn_find(&e->net, connection);
    if (c == NULL || c->state != CONN_PYTHON) return;
    c->close_after_reply = close;
    conn_was_answered(c);
    conn_left_python(c);
    if (c->large != NULL) iggy09_answered(&c->large->memory, c->frame.head_bytes, status, data, length);
    if (length == 0) conn_reply_status(c, status);
    else conn_reply_payload(c, status, data, length);
}

void engine_resume(engine *e, uint64_t connection) {
    conn *c = conn_find(&e->net, connection);
    if (c == NULL) return;
    if (c->state == CONN_MOVING || c->state == CONN_ENTERING) { /* it stays, or may begin */
        c->state = CONN_RECEIVING;
        conn_ready(c);
        return;
    }
    if (c->state != CONN_PYTHON) return;
    if (c->frame.asked_who) {
        conn_told_who(c);
        return;
    }
    c->state = CONN_RECEIVING;
    conn_execute(c);
}

void engine_execute_poll(engine *e, uint64_t connection, uint32_t owner, partition_request *what) {
    conn *c = conn_find(&e->net, connection);
    bool asked = c != NULL && c->state == CONN_PYTHON && c->frame.head.kind == REQUEST_POLL;
    if (asked && owner < e->options.shards) conn_execute_for_group(c, owner, what);
}

seat *engine_seat_put(engine *e, uint64_t connection, uint64_t group, uint32_t count) {
    conn *c = conn_find(&e->net, connection);
    request q;
    if (c == NULL || c->state != CONN_PYTHON) return NULL;
    if (c->frame.head.kind != REQUEST_POLL && c->frame.head.kind != REQUEST_STORE) return NULL;
    if (c->dialect->parse(&c->frame.head, c->frame.payload, &q) != 0) return NULL;
    if (q.kind == REQUEST_OTHER || q.consumer.kind != CONSUMER_GROUP) return NULL;
    uint32_t address_length = q.consumer.stream_length + q.consumer.topic_length;
    const route *r = routes_find(&e->core.routes, c->session.user_id, q.consumer.address, address_length);
    seat *s = seats_put(&c->session.seats, group, q.consumer.member_key, q.consumer.member_key_length, count);
    if (s != NULL) s->version = r != NULL ? r->topic->version : 0; /* 0: of none, it is lent again behind its route */
    return s;
}

seat *engine_seat_take(engine *e, uint64_t connection, uint64_t group, seat_work *under_way) {
    conn *c = conn_find(&e->net, connection);
    *under_way = (seat_work){0};
    if (c != NULL) conn_wait_wake(c); /* it asks again */
    return c != NULL ? session_take_seat(&c->session, group, under_way) : NULL;
}

bool engine_speak(engine *e, uint64_t connection, uint8_t number) {
    conn *c = conn_find(&e->net, connection);
    const dialect *d = dialect_of(number);
    if (d == NULL || d->read_head == NULL) return false;
    if (c != NULL && c->state == CONN_PYTHON) conn_speak(c, d);
    return true;
}

bool engine_begin_session(engine *e, uint64_t connection, uint64_t session, const uint8_t *memory, size_t length) {
    conn *c = conn_find(&e->net, connection);
    if (c == NULL || c->large == NULL) return true;
    iggy09_begin_session(&c->large->memory, session);
    bool good = length == 0 || iggy09_unpack_memory(&c->large->memory, memory, length);
    c->large->memory.session = session;
    return good;
}

size_t engine_session_memory(engine *e, uint64_t connection, uint8_t out[IGGY09_MEMORY_MAX]) {
    const conn *c = conn_find_closing(&e->net, connection);
    return c != NULL && c->large != NULL ? iggy09_pack_memory(&c->large->memory, out) : 0;
}

void engine_close_connection(engine *e, uint64_t connection, uint32_t status) {
    conn *c = conn_find(&e->net, connection);
    if (c == NULL) return;
    if (status != 0 && conn_may_be_told(c)) conn_say_goodbye(c, status);
    else if (status == STATUS_STALE_CLIENT) conn_reset(c); /* the kernel would offer it the answer for minutes */
    else conn_close(c);
}

const char *engine_use_tls(engine *e, tls_port port, const tls_settings *settings, uint32_t *pair) {
    tls_fault fault;
    tls_context *made = tls_context_make(settings, &fault);
    *pair = fault.pair;
    if (made == NULL) return fault.why;
    tls_use(&e->net.tls, port, made);
    return NULL;
}

void engine_use_tickets(engine *e, const uint8_t secret[TLS_SECRET_BYTES], int64_t period) {
    tls_tickets_open(&e->net.tls.tickets, secret, period);
}

void engine_close_all(engine *e, uint32_t status) { net_close_all(&e->net, status); }

bool engine_move(engine *e, uint64_t connection, uint32_t shard, const uint8_t *session, size_t length) {
    conn *c = conn_find(&e->net, connection);
    if (c == NULL || c->state != CONN_MOVING) return false;
    return handover_send(&e->peers, c, shard, session, length);
}
