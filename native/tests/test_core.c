/* The seam between the core and whoever asks: a caller that is neither a connection nor a peer. */
#include "test_core_support.h"

#define HEAD_BYTES 3u

/* What the caller has heard. */
typedef struct heard {
    unsigned ends; /* exactly one for each request */
    uint32_t status;
    uint64_t committed;
    bool gone, again, dropped, leave;
    unsigned windows;
    uint64_t records_bytes, summary_count;
    uint8_t first[HEAD_BYTES];
    pending *work;
    uint64_t seen_before; /* what the seat said when the end was heard */
    seat *seat;
} heard;

static void on_status(const caller *to, uint32_t status) {
    heard *h = to->owner;
    h->ends++;
    h->status = status;
}

static void on_committed(const caller *to, uint64_t offset) {
    heard *h = to->owner;
    h->ends++;
    h->committed = offset;
    if (h->seat != NULL) h->seen_before = (uint64_t)h->seat->partitions[0].committed;
}

static void on_window(const caller *to, const answer_window *w) {
    heard *h = to->owner;
    if (h->windows++ == 0 && to->head_bytes > 0) memcpy(h->first, w->bytes, HEAD_BYTES);
    h->records_bytes += w->length;
    h->ends += w->last;
    if (h->seat != NULL) h->seen_before = (uint64_t)h->seat->partitions[0].polled;
    if (w->last) h->summary_count = w->whole.total_count;
    output_free(k, w->block);
}

static void on_gone(const caller *to) {
    heard *h = to->owner;
    h->ends++;
    h->gone = true;
}

static void on_again(const caller *to) {
    heard *h = to->owner;
    h->ends++;
    h->again = true;
}

static void on_dropped(const caller *to) {
    heard *h = to->owner;
    h->ends++;
    h->dropped = true;
}

static void on_parked(const caller *to, pending *p) { ((heard *)to->owner)->work = p; }

static bool is_wanted(const caller *to) { return !((heard *)to->owner)->leave; }

static bool lend(const caller *to, uint8_t **records) {
    (void)records;
    return !((heard *)to->owner)->leave;
}

static void put_head(const caller *to, uint8_t *at, const poll_summary *whole) {
    (void)to;
    (void)whole;
    memcpy(at, "toy", HEAD_BYTES);
}

static const caller_calls calls = {.status = on_status,
                                   .committed = on_committed,
                                   .window = on_window,
                                   .gone = on_gone,
                                   .again = on_again,
                                   .dropped = on_dropped,
                                   .parked = on_parked,
                                   .wanted = is_wanted,
                                   .lend = lend,
                                   .put_head = put_head};

static session who;

static caller caller_of(heard *h) {
    return (caller){.calls = &calls, .owner = h, .session = &who, .head_bytes = HEAD_BYTES};
}

static uint8_t *batch(uint32_t count, uint32_t size) {
    uint8_t *bytes = malloc(count * RECORD_BYTES(size));
    for (uint32_t i = 0; i < count; i++) put_record(bytes + i * RECORD_BYTES(size), size, 'x');
    return bytes;
}

static execution ask_send(const char *key, uint8_t *records, uint32_t count, uint32_t size, heard *h) {
    request q = {.kind = REQUEST_SEND,
                 .send = {.address = (const uint8_t *)key,
                          .stream_length = 1,
                          .partitioning = PARTITIONING_PARTITION_ID,
                          .count = count,
                          .messages = records,
                          .messages_length = count * RECORD_BYTES(size)}};
    caller from = caller_of(h);
    return execute_request(k, &who, &q, &from);
}

static execution ask(request_kind kind, const char *key, uint64_t value, uint32_t count, uint8_t consumer, heard *h) {
    request q = {.kind = kind,
                 .consumer = {.kind = consumer,
                              .member_key = (const uint8_t *)"g",
                              .member_key_length = 1,
                              .address = (const uint8_t *)key,
                              .stream_length = 1,
                              .partition_given = true,
                              .consumer_id = 7,
                              .strategy = 1,
                              .value = value,
                              .count = count}};
    caller from = caller_of(h);
    return execute_request(k, &who, &q, &from);
}

static void fill(uint32_t count, uint32_t size) {
    heard h = {0};
    uint8_t *records = batch(count, size);
    CHECK_EQUAL(ask_send("h", records, count, size, &h), EXECUTED);
    CHECK_EQUAL(h.ends, 0); /* with the commit of the turn */
    for (int i = 0; i < 2000 && h.ends == 0; i++) turn();
    CHECK_EQUAL(h.ends, 1);
    CHECK_EQUAL(h.status, 0);
    free(records);
}

static void test_who_is_no_connection_sends_stores_and_polls(void) {
    open_core(LEVEL_WRITTEN);
    fill(10, 100);
    heard stored = {0}, polled = {0}, refused = {0};
    CHECK_EQUAL(ask(REQUEST_STORE, "h", 4, 0, CONSUMER_PLAIN, &stored), EXECUTED);
    CHECK_EQUAL(stored.ends, 1);
    CHECK_EQUAL(stored.committed, 4);
    CHECK_EQUAL(ask(REQUEST_POLL, "h", 2, 5, CONSUMER_PLAIN, &polled), EXECUTED);
    CHECK_EQUAL(polled.ends, 1);
    CHECK_EQUAL(polled.summary_count, 5);
    CHECK_EQUAL(polled.records_bytes, HEAD_BYTES + 5 * RECORD_BYTES(100));
    CHECK(memcmp(polled.first, "toy", HEAD_BYTES) == 0); /* who asked writes the head */
    CHECK(polled.work == NULL);
    CHECK_EQUAL(ask(REQUEST_STORE, "h", 400, 0, CONSUMER_PLAIN, &refused), EXECUTED);
    CHECK_EQUAL(refused.ends, 1);
    CHECK_EQUAL(refused.status, 4100);
    close_core();
}

static void test_windows_come_one_by_one_as_the_caller_asks(void) {
    open_core(LEVEL_WRITTEN);
    for (int i = 0; i < 4; i++) fill(100, 4000);
    heard h = {0};
    CHECK_EQUAL(ask(REQUEST_POLL, "h", 0, 400, CONSUMER_PLAIN, &h), EXECUTED);
    unsigned asked = 0;
    for (int i = 0; i < 2000 && h.ends == 0; i++) {
        if (h.windows > asked && h.work != NULL) {
            asked = h.windows;
            pending_next(h.work);
        }
        turn();
    }
    CHECK(h.windows >= 6);
    CHECK_EQUAL(h.ends, 1);
    CHECK_EQUAL(h.records_bytes, HEAD_BYTES + 400 * RECORD_BYTES(4000));
    CHECK_EQUAL(k->output.bytes, 0);
    close_core();
}

static void test_a_poll_between_two_windows_is_cancelled_and_leaves_nothing(void) {
    open_core(LEVEL_WRITTEN);
    for (int i = 0; i < 4; i++) fill(100, 4000);
    heard h = {0};
    CHECK_EQUAL(ask(REQUEST_POLL, "h", 0, 400, CONSUMER_PLAIN, &h), EXECUTED);
    for (int i = 0; i < 2000 && h.windows == 0; i++) turn();
    CHECK_EQUAL(h.ends, 0);
    CHECK(h.work != NULL);
    pending_cancel(h.work);
    CHECK_EQUAL(h.ends, 1);
    CHECK(h.dropped && h.work == NULL);
    CHECK(k->reads.jobs == NULL);
    CHECK_EQUAL(k->output.bytes, 0);
    close_core();
}

/* It is told where it waits; after a cancel it hears no more, and the sync goes on without it. */
static void test_an_answer_that_waits_for_the_device_is_parked_and_can_be_cancelled(void) {
    open_core(LEVEL_DURABLE);
    heard cancelled = {0}, kept = {0};
    uint8_t *one = batch(1, 50), *two = batch(1, 50);
    CHECK_EQUAL(ask_send("h", one, 1, 50, &cancelled), EXECUTED);
    CHECK_EQUAL(ask_send("h", two, 1, 50, &kept), EXECUTED);
    commit_all(k);
    CHECK(cancelled.work != NULL && cancelled.work->waits_for == WAITS_FOR_DEVICE);
    CHECK(kept.work != NULL);
    pending_cancel(cancelled.work);
    CHECK_EQUAL(cancelled.ends, 1);
    CHECK(cancelled.dropped);
    for (int i = 0; i < 5000 && kept.ends == 0; i++) turn();
    CHECK_EQUAL(kept.ends, 1);
    CHECK_EQUAL(kept.status, 0);
    CHECK_EQUAL(cancelled.ends, 1);
    CHECK(cancelled.work == NULL && kept.work == NULL);
    free(one);
    free(two);
    close_core();
}

static void test_a_partition_that_goes_ends_what_is_parked_there(void) {
    open_core(LEVEL_DURABLE);
    heard h = {0};
    uint8_t *one = batch(1, 50);
    CHECK_EQUAL(ask_send("h", one, 1, 50, &h), EXECUTED);
    commit_all(k);
    CHECK_EQUAL(h.ends, 0);
    core_partition_remove(k, NS_HERE);
    CHECK_EQUAL(h.ends, 1);
    CHECK_EQUAL(h.status, STATUS_PARTITION_NOT_FOUND);
    for (int i = 0; i < 5000 && k->sync.running > 0; i++) turn();
    CHECK_EQUAL(ask_send("h", one, 1, 50, &h), NEEDS_ROUTE);
    CHECK_EQUAL(h.ends, 1); /* nothing is heard of a request that was not taken */
    free(one);
    close_core();
}

/* ---- owners elsewhere ---- */

static struct {
    remote remote; /* first */
    unsigned requests;
    uint32_t shard;
    partition_request what;
    caller from;
    bool full;
} away;

static bool forward(remote *r, uint32_t shard, const partition_request *what, const caller *from) {
    CHECK(r == &away.remote);
    if (away.full) return false;
    away.requests++;
    away.shard = shard;
    away.what = *what;
    away.from = *from;
    return true;
}

static void test_a_partition_elsewhere_is_asked_with_the_same_request_and_caller(void) {
    open_core(LEVEL_WRITTEN);
    memset(&away, 0, sizeof away);
    away.remote.forward = forward;
    k->remote = &away.remote;
    uint8_t *one = batch(1, 50);
    heard sent = {0}, stored = {0}, old = {0}, left = {.leave = true};
    CHECK_EQUAL(ask_send("e", one, 1, 50, &sent), EXECUTED);
    CHECK_EQUAL(away.shard, 1);
    CHECK_EQUAL(away.what.kind, REQUEST_SEND);
    CHECK(away.what.records == one && away.what.ns == NS_ELSEWHERE);
    caller_status(&away.from, STATUS_SHARD_COMMUNICATION_ERROR); /* what the death of an owner becomes */
    CHECK_EQUAL(sent.ends, 1);
    CHECK_EQUAL(sent.status, STATUS_SHARD_COMMUNICATION_ERROR);
    CHECK_EQUAL(ask(REQUEST_STORE, "e", 3, 0, CONSUMER_PLAIN, &stored), EXECUTED);
    CHECK_EQUAL(away.what.value, 3);
    caller_gone(&away.from);
    CHECK(stored.gone && stored.ends == 1);
    CHECK_EQUAL(ask(REQUEST_POLL, "e", 3, 1, CONSUMER_PLAIN, &old), EXECUTED);
    caller_again(&away.from);
    CHECK(old.again && old.ends == 1);
    away.full = true;
    CHECK_EQUAL(ask(REQUEST_POLL, "e", 3, 1, CONSUMER_PLAIN, &old), NEEDS_PLACE);
    CHECK_EQUAL(ask_send("e", one, 1, 50, &left), NOT_WANTED);
    CHECK_EQUAL(away.requests, 3);
    CHECK_EQUAL(who.streak, 5);
    free(one);
    close_core();
}

/* ---- members ---- */

/* The core moves the membership, then the caller hears; no caller calls back. */
static void test_a_membership_has_moved_when_its_caller_hears_the_end(void) {
    open_core(LEVEL_WRITTEN);
    fill(10, 100);
    seat *s = seats_put(&who.seats, 1, (const uint8_t *)"g", 1, 1);
    seat_set(s, 0, 0, SEAT_NONE, SEAT_NONE);
    s->version = routes_topic(&k->routes, NS_HERE)->version;
    s->offsets_id = 9;
    s->generation = 5;
    s->last_polled = SEAT_NONE;
    heard polled = {.seat = s}, stored = {.seat = s}, lost = {0};
    CHECK_EQUAL(ask(REQUEST_POLL, "h", 0, 4, CONSUMER_GROUP, &polled), EXECUTED);
    CHECK_EQUAL(polled.ends, 1);
    CHECK_EQUAL(polled.seen_before, 3);
    CHECK_EQUAL(ask(REQUEST_STORE, "h", 2, 0, CONSUMER_GROUP, &stored), EXECUTED);
    CHECK_EQUAL(stored.committed, 2);
    CHECK_EQUAL(stored.seen_before, 2);
    s->generation = 4; /* an older assignment than the partition has seen */
    CHECK_EQUAL(ask(REQUEST_POLL, "h", 0, 4, CONSUMER_GROUP, &lost), EXECUTED);
    CHECK_EQUAL(lost.status, STATUS_NOT_RESOLVED_CONSUMER);
    CHECK_EQUAL(s->partitions[0].polled, 3);
    CHECK(who.work.seat == NULL);
    seats_free(&who.seats);
    close_core();
}

/* Taken back while its request is elsewhere: Python hears of the end. */
static void test_the_end_of_a_request_whose_seat_was_taken_back_is_an_event(void) {
    open_core(LEVEL_WRITTEN);
    memset(&away, 0, sizeof away);
    away.remote.forward = forward;
    k->remote = &away.remote;
    who = (session){.events = &k->events, .connection = 42};
    seat *s = seats_put(&who.seats, 1, (const uint8_t *)"g", 1, 1);
    seat_set(s, 0, 0, SEAT_NONE, SEAT_NONE);
    s->version = routes_topic(&k->routes, NS_ELSEWHERE)->version;
    s->last_polled = SEAT_NONE;
    heard h = {0};
    seat_work under_way;
    CHECK_EQUAL(ask(REQUEST_STORE, "e", 2, 0, CONSUMER_GROUP, &h), EXECUTED);
    CHECK(session_take_seat(&who, 1, &under_way) == s);
    CHECK(under_way.seat == s);
    caller_end(&away.from, &(outcome){.committed = true, .offset = 2});
    CHECK_EQUAL(k->events.count, 1);
    CHECK_EQUAL(k->events.list[0].kind, EVENT_GROUP_POLLED);
    CHECK_EQUAL(k->events.list[0].connection, 42);
    CHECK_EQUAL(k->events.list[0].number, 2);
    CHECK(k->events.list[0].authenticated);
    seat_free(s);
    close_core();
}

int main(void) {
    RUN(test_who_is_no_connection_sends_stores_and_polls);
    RUN(test_windows_come_one_by_one_as_the_caller_asks);
    RUN(test_a_poll_between_two_windows_is_cancelled_and_leaves_nothing);
    RUN(test_an_answer_that_waits_for_the_device_is_parked_and_can_be_cancelled);
    RUN(test_a_partition_that_goes_ends_what_is_parked_there);
    RUN(test_a_partition_elsewhere_is_asked_with_the_same_request_and_caller);
    RUN(test_a_membership_has_moved_when_its_caller_hears_the_end);
    RUN(test_the_end_of_a_request_whose_seat_was_taken_back_is_an_event);
    return check_report();
}
