/* How many instructions a request takes, for callgrind (`make -C native instructions`, bench/instructions.py).
 *
 *     instructions LEVEL WHAT COUNT
 *
 * LEVEL: `log` (a partition alone), `core` (the request core with a caller of this program), `net` (a connection whose
 * stream is memory). WHAT: `send1` (a batch of one message), `poll1`, `poll100` (answers of so many); messages have
 * 100 bytes. Only `measured()` counts, so COUNT divides what callgrind has collected. Clocks, ids and offsets are the
 * same in every run. This file includes only what older commits have, too: it is built in their trees. */
#include "test_net_support.h"

#include "log/segment_reader.h"
#include "wire/classic_request.h"

#define BODY 100u
#define RECORD RECORD_BYTES(BODY)
#define WARM 512u    /* requests before the measured ones; a multiple of INDEX_FLUSH_ENTRIES */
#define STORED 4096u /* messages that polls find */
#define SEND_FRAME (50u + RECORD)
#define POLL_FRAME 46u
#define FIXED_US 1700000000000000

typedef struct run {
    uint32_t polled; /* messages of a poll; 0: the requests are sends */
    uint32_t count;
    void (*step)(struct run *r, uint32_t i);
    uint8_t *bytes; /* records or frames of the requests, `stride` for each */
    size_t stride;
    uint64_t window_bytes;
    uint8_t *window; /* of a poll at the level `log` */
    memory_stream *m;
} run;

/* ---- clocks ---- */

static uint64_t fixed_wall_us(void *context) {
    (void)context;
    return FIXED_US;
}

static int64_t fixed_monotonic_us(void *context) {
    (void)context;
    return FIXED_US / 2;
}

/* ---- a caller that only counts ---- */

static unsigned ended;
static session who;

static void on_status(const caller *to, uint32_t status) {
    (void)to;
    CHECK_EQUAL(status, 0);
    ended++;
}

static void on_committed(const caller *to, uint64_t offset) {
    (void)to, (void)offset;
    ended++;
}

static void on_window(const caller *to, const answer_window *w) {
    ((run *)to->owner)->window_bytes += w->length;
    output_free(k, w->block);
    ended += w->last;
}

static void on_lost(const caller *to) {
    (void)to;
    abort();
}

static void on_parked(const caller *to, pending *p) { (void)to, (void)p; }

static bool is_wanted(const caller *to) {
    (void)to;
    return true;
}

static void put_head(const caller *to, uint8_t *at, const poll_summary *whole) { (void)to, (void)at, (void)whole; }

static const caller_calls calls = {.status = on_status,
                                   .committed = on_committed,
                                   .window = on_window,
                                   .gone = on_lost,
                                   .again = on_lost,
                                   .dropped = on_lost,
                                   .parked = on_parked,
                                   .wanted = is_wanted,
                                   .put_head = put_head};

/* ---- one request of each kind ---- */

static uint64_t offset_of(uint32_t i) { return i * UINT64_C(37) % (STORED - 100); }

static partition *here(void) { return core_owned(k, NS_HERE)->p; }

static void log_send(run *r, uint32_t i) {
    append_batch b = {.messages = r->bytes + i * r->stride, .count = 1, .length = RECORD};
    partition_append(here(), &b, 1, FIXED_US);
    CHECK_EQUAL(b.status, 0);
}

static void log_poll(run *r, uint32_t i) {
    poll_cursor cursor;
    poll_window w;
    record_good good;
    uint32_t status = partition_poll(here(), POLL_OFFSET, offset_of(i), r->polled, 1, 7, &cursor);
    bool found = status == 0 && partition_cursor_next(&cursor, 256u << 10, &w, &status);
    CHECK(found);
    if (!found) abort();
    size_t taken = segment_records_take(w.records, &k->io, r->window, 0, w.length);
    partition_cursor_release(&cursor);
    CHECK_EQUAL(record_verify(r->window, taken, w.first_offset, w.end_offset, w.count, &good), r->polled);
    r->window_bytes += taken;
    partition_cursor_end(&cursor);
}

static void core_send(run *r, uint32_t i) {
    request q = {.kind = REQUEST_SEND,
                 .send = {.address = (const uint8_t *)"h",
                          .stream_length = 1,
                          .partitioning = PARTITIONING_PARTITION_ID,
                          .count = 1,
                          .messages = r->bytes + i * r->stride,
                          .messages_length = RECORD}};
    caller from = {.calls = &calls, .owner = r, .session = &who};
    CHECK_EQUAL(execute_request(k, &who, &q, &from), EXECUTED);
    commit_all(k);
}

static void core_poll(run *r, uint32_t i) {
    request q = {.kind = REQUEST_POLL,
                 .consumer = {.kind = CONSUMER_PLAIN,
                              .member_key = (const uint8_t *)"g",
                              .member_key_length = 1,
                              .address = (const uint8_t *)"h",
                              .stream_length = 1,
                              .partition_given = true,
                              .consumer_id = 7,
                              .strategy = POLL_OFFSET,
                              .value = offset_of(i),
                              .count = r->polled}};
    caller from = {.calls = &calls, .owner = r, .session = &who};
    CHECK_EQUAL(execute_request(k, &who, &q, &from), EXECUTED);
}

/* A pass without the waiting of `turn`. */
static void net_step(run *r, uint32_t i) {
    memory_stream *m = r->m;
    m->output_length = 0;
    m->receiving = false;
    CHECK(conn_on_bytes(m->c, r->bytes + i * r->stride, (uint32_t)r->stride));
    net_take_input(&n);
    net_run_prompt_frames(&n, INT64_MAX);
    commit_all(k);
    net_flush_prompt(&n, INT64_MAX);
    r->window_bytes += m->output_length;
    ended += m->output_length > 0 && m->receiving;
}

/* ---- frames of the classic protocol ---- */

static void put_frame_head(uint8_t *at, uint32_t code, uint32_t payload) {
    uint32_t words[2] = {payload + 4, code};
    memcpy(at, words, sizeof words);
}

static void put_send(uint8_t *at) {
    uint32_t metadata = 12 + 6 + 4, count = 1, end = RECORD;
    put_frame_head(at, CODE_SEND_MESSAGES, SEND_FRAME - 8);
    memcpy(at + 8, &metadata, 4);
    memcpy(at + 12, "\1\4\1\0\0\0\1\4\1\0\0\0\2\4\0\0\0\0", 18);
    memcpy(at + 30, &count, 4);
    memset(at + 34, 0, 16);
    memcpy(at + 38, &end, 4);
    put_record(at + 50, BODY, 'x');
}

static void put_poll(uint8_t *at, uint64_t offset, uint32_t count) {
    put_frame_head(at, CODE_POLL_MESSAGES, POLL_FRAME - 8);
    memcpy(at + 8, "\1\1\4\7\0\0\0\1\4\1\0\0\0\1\4\1\0\0\0\1\0\0\0\0\1", 25);
    memcpy(at + 33, &offset, 8);
    memcpy(at + 41, &count, 4);
    at[45] = 0;
}

/* ---- runs ---- */

static __attribute__((noinline, noclone)) void measured(run *r) {
    for (uint32_t i = WARM; i < WARM + r->count; i++) r->step(r, i);
}

static void store_messages(void) {
    static uint8_t records[256 * RECORD];
    for (uint32_t stored = 0; stored < STORED; stored += 256) {
        for (uint32_t i = 0; i < 256; i++) put_record(records + i * RECORD, BODY, 'x');
        append_batch b = {.messages = records, .count = 256, .length = sizeof records};
        partition_append(here(), &b, 1, FIXED_US);
        CHECK_EQUAL(b.status, 0);
    }
}

static void begin(run *r, const char *level) {
    uint32_t all = WARM + r->count;
    bool net_level = strcmp(level, "net") == 0, sends = r->polled == 0;
    if (net_level) open_net(LEVEL_WRITTEN);
    else open_core(LEVEL_WRITTEN);
    k->expiry.wall_us = fixed_wall_us;
    k->expiry.monotonic_us = fixed_monotonic_us;
    k->now_us = FIXED_US / 2;
    id_source_seed_fixed(&k->ids, 11);
    if (!sends) store_messages();
    r->stride = net_level ? (sends ? SEND_FRAME : POLL_FRAME) : RECORD;
    r->bytes = malloc(all * r->stride);
    r->window = malloc(256u << 10);
    if (r->bytes == NULL || r->window == NULL) abort();
    for (uint32_t i = 0; i < all; i++) {
        uint8_t *at = r->bytes + i * r->stride;
        if (!net_level) put_record(at, BODY, 'x');
        else if (sends) put_send(at);
        else put_poll(at, offset_of(i), r->polled);
    }
    if (!net_level) {
        r->step = strcmp(level, "log") == 0 ? sends ? log_send : log_poll : sends ? core_send : core_poll;
        return;
    }
    static const uint8_t key[12] = "\1\4\1\0\0\0\1\4\1\0\0\0";
    route *way = routes_put(&k->routes, 0, key, 12, routes_topic(&k->routes, NS_HERE));
    way->can_send = way->can_poll = true;
    r->m = dial(&dialect_classic, true, true);
    for (int i = 0; i < 100 && !r->m->receiving; i++) pump(r->m);
    k->now_us = FIXED_US / 2;
    r->step = net_step;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: instructions log|core|net send1|poll1|poll100 COUNT\n");
        return 2;
    }
    run r = {.count = (uint32_t)strtoul(argv[3], NULL, 10)};
    if (strncmp(argv[2], "poll", 4) == 0) r.polled = (uint32_t)strtoul(argv[2] + 4, NULL, 10);
    begin(&r, argv[1]);
    for (uint32_t i = 0; i < WARM; i++) r.step(&r, i);
    measured(&r);
    uint32_t all = WARM + r.count;
    if (strcmp(argv[1], "log") != 0) CHECK_EQUAL(ended, all);
    if (r.polled == 0) CHECK_EQUAL(partition_next_offset(here()), all);
    else CHECK(r.window_bytes >= (uint64_t)all * r.polled * RECORD);
    if (r.m != NULL) {
        hang_up(r.m);
        close_net();
    } else {
        close_core();
    }
    free(r.bytes);
    free(r.window);
    return check_errors != 0;
}
