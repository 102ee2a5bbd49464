/* What a batch asks of the append: where it is, and timestamps of its own for each of its messages. */
#include "test_partition_support.h"

#include "base/bytes.h"

#define LARGE_COUNT 8u
#define LARGE_BODY 700000u

static uint64_t timestamp_of(const model *m, uint64_t offset) { return m->records[offset].timestamp; }

static append_batch batch_of(uint8_t *at, uint32_t count, uint32_t body, uint8_t asks) {
    return (append_batch){
        .messages = at, .count = count, .length = make_records(at, count, body, body), .by = {.asks = asks}};
}

static void check_placed(const append_batch *b, uint64_t first, uint64_t timestamp) {
    CHECK_EQUAL(b->status, 0);
    CHECK_EQUAL(b->made.kind, PRODUCED_PLACED);
    CHECK_EQUAL(b->made.count, b->count);
    CHECK_EQUAL(b->made.first, first);
    CHECK_EQUAL(b->made.timestamp, timestamp);
}

static void append_all(partition *p, model *m, append_batch *batches, size_t count, uint64_t now_us) {
    partition_append(p, batches, count, now_us);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQUAL(batches[i].status, 0);
        model_append(m, &batches[i]);
    }
}

static partition *open_at_birth(model *m, uint64_t segment_size_bytes, uint64_t now_us) {
    partition_options o = options_of(segment_size_bytes);
    partition *p = partition_open(&o, NULL, 0);
    model_init(m, o.segment_size_bytes);
    append(p, m, 1, 10, now_us);
    return p;
}

static void test_timestamps_of_one_write_rise_where_they_have_to(void) {
    static model m;
    static const uint8_t asked[] = {0, APPEND_DISTINCT, 0, APPEND_TELLS, APPEND_DISTINCT | APPEND_TELLS};
    partition *p = open_at_birth(&m, 1 << 20, 1000);
    append_batch batches[5];
    for (unsigned i = 0; i < 5; i++) batches[i] = batch_of(buffer + i * 10000, i == 4 ? 3 : i + 1, 50, asked[i]);
    append_all(p, &m, batches, 5, 2000);
    REQUIRE(m.count == 1 + 1 + 2 + 3 + 4 + 3);
    static const uint64_t all[] = {1000, 2000, 2001, 2002, 2002, 2002, 2002, 2002, 2002, 2002, 2002, 2003, 2004, 2005};
    for (unsigned i = 0; i < m.count; i++) CHECK_EQUAL(timestamp_of(&m, i), all[i]);
    check_placed(&batches[1], 2, 2001);
    check_placed(&batches[3], 7, 2002);
    check_placed(&batches[4], 11, 2003);
    CHECK_EQUAL(batches[0].made.kind, PRODUCED_NONE);
    check_whole(&m, p);
    end(p, &m);
}

/* Who asks for a time of each message has said none; what a client has said stays. */
static void test_an_origin_that_nobody_has_said_is_the_timestamp(void) {
    static model m;
    partition *p = open_at_birth(&m, 1 << 20, 1000);
    append_batch distinct = batch_of(buffer, 3, 20, APPEND_DISTINCT), plain = batch_of(buffer + 10000, 2, 20, 0);
    uint8_t *second = distinct.messages + record_size(distinct.messages);
    second[40] = 77;
    append_batch batches[] = {distinct, plain};
    append_all(p, &m, batches, 2, 2000);
    const uint8_t *at = buffer;
    static const uint64_t origins[] = {2000, 77, 2002};
    for (unsigned i = 0; i < 3; i++, at += record_size(at)) {
        CHECK_EQUAL(load_u64(at + 40), origins[i]);
        CHECK_EQUAL(load_u64(at + 32), 2000 + i);
    }
    CHECK_EQUAL(load_u64(buffer + 10000 + 40), 0);
    check_whole(&m, p);
    end(p, &m);
}

static void test_a_clock_that_goes_back_or_stands_still_makes_no_two_alike(void) {
    static model m;
    partition *p = open_at_birth(&m, 1 << 20, 5000);
    static const uint64_t clocks[] = {4000, 5000, 5001, 5001, 9000, 1}, first[] = {5001, 5004, 5007, 5010, 9000, 9003};
    for (unsigned i = 0; i < 6; i++) {
        append_batch b = batch_of(buffer, 3, 20, APPEND_DISTINCT);
        append_all(p, &m, &b, 1, clocks[i]);
        check_placed(&b, 1 + 3 * i, first[i]);
    }
    append(p, &m, 2, 10, 9000); /* an ordinary one may share the last one */
    CHECK_EQUAL(timestamp_of(&m, m.count - 1), 9005);
    check_whole(&m, p);
    end(p, &m);
}

static void test_they_rise_over_segments(void) {
    static model m;
    partition *p = open_at_birth(&m, 1000, 100);
    for (unsigned i = 0; i < 40; i++) {
        append_batch b = batch_of(buffer, 3, 100, APPEND_DISTINCT);
        append_all(p, &m, &b, 1, 100 + i);
    }
    CHECK(m.segments > 5);
    for (uint64_t i = 1; i < m.count; i++) CHECK(timestamp_of(&m, i) > timestamp_of(&m, i - 1));
    check_whole(&m, p);
    end(p, &m);
}

static void test_a_large_batch_in_parts_has_them_too(void) {
    for (int asks = APPEND_TELLS; asks <= APPEND_DISTINCT; asks += 3) {
        for (int cut = 0; cut < 2; cut++) {
            static model m;
            partition *p = open_at_birth(&m, 64 << 20, 100);
            append_batch b = batch_of(buffer, LARGE_COUNT, LARGE_BODY, (uint8_t)asks);
            unsigned parts = 0;
            for (; partition_append_part(p, &b, 100) && (!cut || parts < 2); parts++) continue;
            uint64_t before = m.count, first = 100 + (asks == APPEND_DISTINCT);
            if (cut) { /* it is written at once, behind the other one */
                static uint8_t small[1024];
                append_batch other = batch_of(small, 1, 100, APPEND_DISTINCT);
                append_all(p, &m, &other, 1, 100);
                before++;
                first = 101 + (asks == APPEND_DISTINCT);
            }
            append_all(p, &m, &b, 1, 100);
            check_placed(&b, before, first);
            for (unsigned i = 0; i < LARGE_COUNT; i++)
                CHECK_EQUAL(timestamp_of(&m, before + i), first + (asks == APPEND_DISTINCT ? i : 0));
            append_batch next = batch_of(buffer, 1, 10, APPEND_DISTINCT);
            append_all(p, &m, &next, 1, 100);
            check_placed(&next, before + LARGE_COUNT, timestamp_of(&m, before + LARGE_COUNT - 1) + 1);
            check_whole(&m, p);
            end(p, &m);
        }
    }
}

int main(void) {
    test_root_make();
    RUN(test_timestamps_of_one_write_rise_where_they_have_to);
    RUN(test_an_origin_that_nobody_has_said_is_the_timestamp);
    RUN(test_a_clock_that_goes_back_or_stands_still_makes_no_two_alike);
    RUN(test_they_rise_over_segments);
    RUN(test_a_large_batch_in_parts_has_them_too);
    test_root_remove();
    return check_report();
}
