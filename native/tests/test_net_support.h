/* Connections over the core of one shard, without engine, sockets or workers: their streams are memory. */
#ifndef SHARDD_TEST_NET_SUPPORT_H
#define SHARDD_TEST_NET_SUPPORT_H
#include "test_core_support.h"

#include "net/net.h"

#define OUTPUT_MAX (1u << 20)

static net n;

/* ---- a stream of the test's own ---- */

typedef struct memory_stream {
    conn *c;
    uint8_t *block; /* where a receive into a private block wants its bytes */
    uint32_t block_room;
    bool receiving, ended, stopped, closed;
    operation *sending;
    const uint8_t *to_send;
    size_t to_send_length;
    size_t send_max; /* bytes of one send */
    uint8_t output[OUTPUT_MAX];
    size_t output_length;
} memory_stream;

static void receive_provided(stream *s, io *i, operation *op, buffer_set set) {
    (void)i, (void)op, (void)set;
    memory_stream *m = s->state;
    CHECK(!m->receiving);
    m->receiving = true;
    m->block = NULL;
}

static void receive(stream *s, io *i, operation *op, void *data, uint32_t length) {
    receive_provided(s, i, op, BUFFERS_LOGGED_IN);
    memory_stream *m = s->state;
    m->block = data;
    m->block_room = length;
}

static ssize_t receive_now(stream *s, void *data, size_t length) {
    (void)s, (void)data, (void)length;
    errno = EAGAIN;
    return -1;
}

static ssize_t send_now(stream *s, const void *data, size_t length) {
    memory_stream *m = s->state;
    size_t part = length < m->send_max ? length : m->send_max;
    if (m->output_length + part > OUTPUT_MAX) abort();
    memcpy(m->output + m->output_length, data, part);
    m->output_length += part;
    return (ssize_t)part;
}

static void send_later(stream *s, io *i, operation *op, const void *data, size_t length) {
    (void)i;
    memory_stream *m = s->state;
    CHECK(m->sending == NULL);
    m->sending = op;
    m->to_send = data;
    m->to_send_length = length;
}

static bool has_ended(stream *s) { return ((memory_stream *)s->state)->ended; }

static void end_output(stream *s) { (void)s; }

static void stop(stream *s) { ((memory_stream *)s->state)->stopped = true; }

static void close_it(stream *s, io *i) {
    (void)i;
    ((memory_stream *)s->state)->closed = true;
}

static bool peer(const stream *s, struct sockaddr_storage *out) {
    (void)s;
    memset(out, 0, sizeof *out);
    return false;
}

static const stream_calls memory_calls = {.receive_provided = receive_provided,
                                          .receive = receive,
                                          .receive_now = receive_now,
                                          .send = send_later,
                                          .send_now = send_now,
                                          .has_ended = has_ended,
                                          .end_output = end_output,
                                          .stop = stop,
                                          .close = close_it,
                                          .peer = peer};

static memory_stream *dial(const dialect *d, bool movable, bool with_login) {
    memory_stream *m = calloc(1, sizeof *m);
    m->send_max = SIZE_MAX;
    m->c = conn_open(&n, (stream){.calls = &memory_calls, .fd = -1, .state = m, .movable = movable}, d, NULL);
    if (m->c == NULL) abort();
    conn_set_session(m->c, 0, with_login);
    conn_ready(m->c);
    return m;
}

/* ---- a loop without an engine ---- */

static void pump(memory_stream *m) {
    turn();
    net_take_input(&n);
    net_run_prompt_frames(&n, k->now_us + 1000000);
    net_run_bulk_frames(&n, k->now_us + 1000000);
    commit_all(k);
    net_flush_prompt(&n, k->now_us + 1000000);
    net_flush_bulk(&n, k->now_us + 1000000);
    if (m != NULL && m->sending != NULL) {
        stream s = {.state = m};
        m->sending = NULL;
        conn_on_send(m->c, m->stopped ? -EPIPE : (int)send_now(&s, m->to_send, m->to_send_length));
    }
    if (m != NULL && m->stopped && m->receiving) {
        m->receiving = false;
        conn_on_receive(m->c, 0, -1);
    }
}

/* At most `step` bytes at a time. */
static inline void feed(memory_stream *m, const uint8_t *bytes, size_t length, uint32_t step) {
    for (int patience = 0; length > 0 && patience < 1000 && !m->stopped; patience++) {
        pump(m);
        if (!m->receiving) continue;
        patience = 0;
        uint32_t part = length < step ? (uint32_t)length : step;
        m->receiving = false;
        if (m->block != NULL) {
            if (part > m->block_room) part = m->block_room;
            memcpy(m->block, bytes, part);
            conn_on_receive(m->c, (int)part, -1);
        } else {
            CHECK(conn_on_bytes(m->c, bytes, part));
        }
        bytes += part;
        length -= part;
    }
    CHECK_EQUAL(length, 0);
}

static inline void await_output(memory_stream *m, size_t length) {
    for (int i = 0; i < 5000 && m->output_length < length; i++) pump(m);
    CHECK_EQUAL(m->output_length, length);
}

static void hang_up(memory_stream *m) {
    m->ended = true;
    conn_close(m->c);
    for (int i = 0; i < 1000 && !m->closed; i++) pump(m);
    CHECK(m->closed);
    free(m);
}

static void open_net(partition_level level) {
    open_core(level);
    memset(&n, 0, sizeof n);
    net_options options = {.dialect = &dialect_classic,
                           .limits = {16, 16, 16},
                           .login_timeout_us = 60000000,
                           .request_timeout_us = 60000000,
                           .partial_frame_timeout_us = 60000000,
                           .slow_reader_timeout_us = 60000000,
                           .socket_migration = true,
                           .pipeline_window_requests = WINDOW_REQUESTS_MAX};
    if (net_open(&n, k, &options) != 0) abort();
}

static void close_net(void) {
    net_close(&n);
    net_free(&n);
    close_core();
}
#endif
