/* For polls over segments of some layout, through the jobs of the core: a partition of several segments, a caller that
 * checks every message it gets, and turns until it has its answer. */
#ifndef SHARDD_TEST_SEGMENT_POLLS_H
#define SHARDD_TEST_SEGMENT_POLLS_H
#include "test_core_support.h"

#define MESSAGES 8000u
#define PAYLOAD 200u
#define MESSAGE_BYTES RECORD_BYTES(PAYLOAD)
#define SEGMENT_BYTES 600000u

static void (*at_each_window)(void), (*at_each_turn)(void); /* what the layout has to check or do, or NULL */

typedef struct heard {
    unsigned ends, windows;
    uint32_t status;
    bool gone, dropped;
    uint64_t next, messages; /* offset that has to come, messages that came */
    pending *work;
} heard;

static inline void on_status(const caller *to, uint32_t status) {
    heard *h = to->owner;
    h->ends++;
    h->status = status;
}

static inline void on_window(const caller *to, const answer_window *w) {
    heard *h = to->owner;
    CHECK_EQUAL(w->length % MESSAGE_BYTES, 0);
    if (at_each_window != NULL) at_each_window();
    for (size_t at = 0; at < w->length; at += MESSAGE_BYTES, h->next++, h->messages++) {
        uint64_t offset;
        memcpy(&offset, w->bytes + at + 24, 8);
        CHECK_EQUAL(offset, h->next);
        CHECK_EQUAL(w->bytes[at + MESSAGE_BYTES - 1], offset % 251);
    }
    h->windows++;
    h->ends += w->last;
    output_free(k, w->block);
}

static inline void on_gone(const caller *to) {
    heard *h = to->owner;
    h->ends++;
    h->gone = true;
}

static inline void on_dropped(const caller *to) {
    heard *h = to->owner;
    h->ends++;
    h->dropped = true;
}

static inline void on_parked(const caller *to, pending *p) { ((heard *)to->owner)->work = p; }

static const caller_calls calls = {
    .status = on_status, .window = on_window, .gone = on_gone, .dropped = on_dropped, .parked = on_parked};

static inline partition_request request_of(uint8_t strategy, uint64_t value, uint32_t count) {
    return (partition_request){.kind = REQUEST_POLL,
                               .ns = NS_HERE,
                               .incarnation = 1,
                               .strategy = strategy,
                               .value = value,
                               .count = count,
                               .consumer_kind = OFFSET_CONSUMER,
                               .consumer_id = 1};
}

static inline void start(partition_request what, uint64_t first, heard *h) {
    *h = (heard){.next = first};
    caller from = {.calls = &calls, .owner = h};
    reads_start(k, core_owned(k, NS_HERE), &what, &from);
}

/* Turns of a loop until the request has ended, or until `windows` came. */
static inline void run_until(heard *h, unsigned windows) {
    unsigned asked = 0;
    for (int i = 0; i < 20000 && h->ends == 0 && h->windows < windows; i++) {
        if (h->windows > asked && h->work != NULL) {
            asked = h->windows;
            pending_next(h->work);
        }
        if (at_each_turn != NULL) at_each_turn();
        if (h->ends == 0) turn();
    }
}

static inline void run(heard *h) { run_until(h, UINT32_MAX); }

static inline partition_options options_here(void) {
    return (partition_options){.ns = NS_HERE,
                               .incarnation = 1,
                               .directory = directory,
                               .segment_size_bytes = SEGMENT_BYTES,
                               .stats = &k->links.stats[0],
                               .ids = &k->ids,
                               .files = &k->files,
                               .clock = &k->expiry,
                               .disk = &disk_system};
}

/* The messages, all in one partition of plain segments: each segment has about 2,300, which are three windows. */
static inline partition *filled_partition(const partition_options *options) {
    static uint8_t records[100 * MESSAGE_BYTES];
    partition *p = partition_open(options, NULL, 0);
    for (uint32_t i = 0; i < MESSAGES; i += 100) {
        for (uint32_t j = 0; j < 100; j++) put_record(records + j * MESSAGE_BYTES, PAYLOAD, (uint8_t)((i + j) % 251));
        append_batch b = {.messages = records, .length = sizeof records, .count = 100};
        partition_append(p, &b, 1, 1000 + i);
        CHECK_EQUAL(b.status, 0);
    }
    return p;
}

static inline void check_poll(partition_request what, uint64_t first, uint64_t count) {
    heard h;
    start(what, first, &h);
    run(&h);
    CHECK_EQUAL(h.ends, 1);
    CHECK_EQUAL(h.status, 0);
    CHECK_EQUAL(h.messages, count);
}
#endif
