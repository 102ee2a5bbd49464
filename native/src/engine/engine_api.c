/* What the binding calls: life of the engine and answers from Python. The loop itself is in engine.c. */
#include "engine/engine_api.h"

#include "log/descriptors.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int allocate_tables(engine *e) {
    uint32_t connections = e->options.limits.connections + SPARE_PLACES; /* all of them may come to one shard */
    e->conns_capacity = connections;
    e->conns = calloc(connections, sizeof *e->conns);
    e->conn_generations = calloc(connections, sizeof *e->conn_generations);
    e->free_indexes = calloc(connections, sizeof *e->free_indexes);
    e->partitions_capacity = 1024;
    e->partitions = calloc(e->partitions_capacity, sizeof *e->partitions);
    e->staged_capacity = 256;
    e->staged = calloc(e->staged_capacity, sizeof *e->staged);
    e->scratch = calloc(e->staged_capacity, sizeof *e->scratch);
    e->events_capacity = EVENTS_MAX * 2;
    e->events = calloc(e->events_capacity, sizeof *e->events);
    e->move_space = malloc(HANDOVER_SPACE);
    e->peer_is_down = calloc(e->options.shards, sizeof *e->peer_is_down);
    e->handover_send_fds = calloc(e->options.shards, sizeof *e->handover_send_fds);
    if (e->conns == NULL || e->conn_generations == NULL || e->free_indexes == NULL || e->partitions == NULL ||
        e->staged == NULL || e->scratch == NULL || e->events == NULL || e->move_space == NULL ||
        e->peer_is_down == NULL || e->handover_send_fds == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < connections; i++) e->free_indexes[e->free_count++] = connections - 1 - i;
    memcpy(e->handover_send_fds, e->options.handover_send_fds, e->options.shards * sizeof(int));
    return routes_open(&e->routes);
}

static void free_tables(engine *e) {
    if (e->routes.slots != NULL) routes_close(&e->routes, drop_route_partition);
    free(e->conns);
    free(e->conn_generations);
    free(e->free_indexes);
    free(e->partitions);
    free(e->staged);
    free(e->scratch);
    free(e->events);
    free(e->move_space);
    free(e->peer_is_down);
    free(e->handover_send_fds);
}

static void *take_journal(void *context, size_t bytes) { return engine_allocate(context, bytes, true); }

static void give_journal(void *context, void *block) { pool_free(((engine *)context)->pool, block); }

/* The order matters: the generation is bumped (links) before the pool, which peers may still read, is written. */
static int open_parts(engine *e) {
    const engine_options *o = &e->options;
    int result = links_open(&e->links, o->shard, o->shards, o->shared_fd, o->pool_fds, o->doorbell_fds, o->pool_bytes);
    if (result != 0) return result;
    e->page = links_page(&e->links, o->shard);
    e->pool = pool_create(o->pool_fds[o->shard], o->pool_bytes);
    if (e->pool == NULL) return -errno;
    e->journals = (journal_memory){.bytes_max = pool_capacity(e->pool) / JOURNALS_POOL_SHARE,
                                   .take = take_journal,
                                   .give = give_journal,
                                   .context = e};
    uint64_t quarter = pool_capacity(e->pool) / 4;
    e->frame_send_max = quarter < FRAME_SEND_MAX ? (uint32_t)quarter : FRAME_SEND_MAX;
    shares_open(e);
    uint8_t *memory[BUFFER_SETS];
    for (buffer_set set = 0; set < BUFFER_SETS; set++) {
        memory[set] = pool_alloc(e->pool, io_buffers_bytes(set));
        if (memory[set] == NULL) return -ENOMEM;
    }
    if (id_source_seed(&e->ids) != 0) return -errno;
    result = room_open(&e->room, o->data_directory, o->disk_reserve_bytes, o->shards);
    if (result != 0) return result;
    return io_open(&e->io, o->io_engine, memory);
}

int engine_open(engine **out, const engine_options *options) {
    if (options->limits.connections == 0) return -EINVAL;
    descriptors_limit(options->limits.connections);
    engine *e = calloc(1, sizeof *e);
    if (e == NULL) return -ENOMEM;
    e->options = *options;
    e->listen_fd = e->epoll_fd = e->room.fd = -1;
    e->now_us = e->pass_us = clock_monotonic_us();
    e->next_sync_us = e->now_us + options->sync_interval_us;
    e->next_save_us = e->now_us + options->save_interval_us;
    e->accept_operation = operation_of(OPERATION_ACCEPT, e);
    e->epoll_operation = operation_of(OPERATION_EPOLL, e);
    e->doorbell_operation = operation_of(OPERATION_DOORBELL, e);
    e->handover_operation = operation_of(OPERATION_HANDOVER, e);
    int result = allocate_tables(e);
    if (result == 0) result = open_parts(e);
    if (result != 0) {
        if (e->pool != NULL) pool_destroy(e->pool);
        if (e->links.region != NULL) links_close(&e->links);
        room_close(&e->room);
        free_tables(e);
        free(e);
        return result;
    }
    *out = e;
    return 0;
}

void engine_events_clear(engine *e) {
    for (uint32_t i = 0; i < e->events_count; i++) free(e->events[i].data);
    e->events_count = e->events_anonymous = 0;
}

/* The process is about to end: descriptors close, partitions flush their index; memory of single connections goes with
 * it. */
void engine_close(engine *e) {
    io_close(&e->io);
    engine_events_clear(e);
    for (uint32_t i = 0; i < e->conns_capacity; i++)
        if (e->conns[i] != NULL) {
            close(e->conns[i]->fd);
            free(e->conns[i]->out_heap);
            seats_free(&e->conns[i]->seats);
            free(e->conns[i]);
        }
    routes_close(&e->routes, drop_route_partition);
    sync_close(e);
    for (uint32_t i = 0; i < e->partitions_capacity; i++)
        if (e->partitions[i] != NULL) {
            partition_close(e->partitions[i]->p);
            sync_free_held(e->partitions[i]);
            owned_release(e->partitions[i]);
        }
    links_close(&e->links);
    room_close(&e->room);
    pool_destroy(e->pool);
    shares_close(e);
    free_tables(e);
    free(e);
}

void engine_listen(engine *e, int fd) {
    /* What a client that does not read makes the kernel keep of its answers; connections inherit it. */
    int unsent_bytes = 1 << 20;
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
    e->listen_fd = fd;
    e->serving = true;
}

void engine_stop_listening(engine *e) {
    if (e->accept_armed) io_cancel_accept(&e->io, &e->accept_operation, e->listen_fd);
    e->listen_fd = -1;
}

void engine_reply(engine *e, uint64_t connection, uint32_t status, const uint8_t *data, size_t length, bool close) {
    conn *c = conn_find(e, connection);
    if (c == NULL || c->state != CONN_PYTHON) return;
    c->close_after_reply = close;
    execute_left_python(c);
    if (length == 0) {
        conn_reply_status(c, status);
        return;
    }
    uint8_t *out = malloc(FRAME_HEADER_SIZE + length);
    if (out == NULL) {
        conn_close(c);
        return;
    }
    uint32_t length32 = (uint32_t)length;
    memcpy(out, &status, 4);
    memcpy(out + 4, &length32, 4);
    memcpy(out + FRAME_HEADER_SIZE, data, length);
    c->out_heap = out;
    c->out_heap_bytes = FRAME_HEADER_SIZE + length;
    e->output_bytes += c->out_heap_bytes;
    conn_reply_bytes(c, out, FRAME_HEADER_SIZE + length);
}

void engine_resume(engine *e, uint64_t connection) {
    conn *c = conn_find(e, connection);
    if (c == NULL || (c->state != CONN_PYTHON && c->state != CONN_MOVING)) return;
    if (c->state == CONN_MOVING) { /* it stays */
        c->state = CONN_RECEIVING;
        conn_ready(c);
        return;
    }
    c->state = CONN_RECEIVING;
    execute_frame(c);
}

void engine_execute_poll(engine *e, uint64_t connection, uint32_t owner, descriptor *d) {
    conn *c = conn_find(e, connection);
    if (c == NULL || c->state != CONN_PYTHON || c->code != CODE_POLL_MESSAGES || owner >= e->links.shards) return;
    execute_group_poll(c, owner, d);
}

void engine_routes_invalidate(engine *e) {
    routes_clear(&e->routes, drop_route_partition);
    e->routes_version++;
}

seat *engine_seat_put(engine *e, uint64_t connection, uint64_t group, uint32_t count) {
    conn *c = conn_find(e, connection);
    consumer_request q;
    if (c == NULL || c->state != CONN_PYTHON) return NULL;
    bool hot = c->code == CODE_POLL_MESSAGES ? request_parse_poll(c->payload, c->payload_length, &q)
                                             : request_parse_store(c->payload, c->payload_length, &q);
    if (!hot || q.kind != CONSUMER_GROUP) return NULL;
    seat *s = seats_put(&c->seats, group, c->payload + 1, request_key_length(&q, c->payload + 1), count);
    if (s != NULL) s->version = e->routes_version;
    return s;
}

seat *engine_seat_take(engine *e, uint64_t connection, uint64_t group, seat_work *under_way) {
    conn *c = conn_find(e, connection);
    seat *s = c != NULL ? seats_take(&c->seats, group) : NULL;
    *under_way = (seat_work){0};
    if (s == NULL || c->seat_work.seat != s) return s;
    *under_way = c->seat_work;
    c->seat_work.seat = NULL;
    c->group_asked = true; /* Python hears of its end */
    return s;
}

void engine_close_connection(engine *e, uint64_t connection, uint32_t status) {
    conn *c = conn_find(e, connection);
    if (c == NULL) return;
    if (status != 0 && c->state != CONN_REPLYING && c->state != CONN_READING) conn_say_goodbye(c, status);
    else conn_close(c);
}

void engine_close_all(engine *e, uint32_t status) {
    e->stopping_status = status;
    for (uint32_t i = 0; i < e->conns_capacity; i++) {
        conn *c = e->conns[i];
        if (c == NULL || c->closing) continue;
        if (c->state == CONN_RECEIVING) conn_say_goodbye(c, status);
        else if (c->state == CONN_LINGERING) conn_close(c);
    }
}

bool engine_move(engine *e, uint64_t connection, uint32_t shard, const uint8_t *session, size_t length) {
    conn *c = conn_find(e, connection);
    if (c == NULL || c->state != CONN_MOVING) return false;
    return handover_send(c, shard, session, length);
}
