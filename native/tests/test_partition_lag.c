/* How far a consumer is behind: messages, and when the first one that it has not passed was taken. */
#include "test_partition_support.h"

/* 60 messages, one each 100 us, in segments of three. */
static partition *filled(model *m, const partition_options *options) {
    model_init(m, options->segment_size_bytes);
    partition *p = partition_open(options, NULL, 0);
    for (uint64_t i = 0; i < 60; i++) append(p, m, 1, 200, 1000 + 100 * i);
    return p;
}

static void check_lag(const partition *p, const model *m, uint64_t next) {
    partition_lag lag = partition_lag_of(p, OFFSET_GROUP, 7);
    CHECK_EQUAL(lag.messages, m->count - next);
    CHECK_EQUAL(lag.since_us, next < m->count ? m->records[next].timestamp : 0);
}

static void test_all_messages_of_the_active_segment_are_exact(void) {
    partition_options options = options_of(1u << 20);
    static model m;
    partition *p = filled(&m, &options);
    CHECK(!partition_lag_of(p, OFFSET_GROUP, 7).stored);
    check_lag(p, &m, 0);
    for (uint64_t stored = 0; stored < 60; stored++) {
        CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 7, stored), 0);
        CHECK(partition_lag_of(p, OFFSET_GROUP, 7).stored);
        check_lag(p, &m, stored + 1);
    }
    end(p, &m);
}

/* Messages that came evenly lie where they are looked for, in sealed segments, too. */
static void test_sealed_segments_are_near_to_it(void) {
    partition_options options = options_of(512);
    static model m;
    partition *p = filled(&m, &options);
    CHECK(inside_segments(p)->count > 10);
    for (uint64_t stored = 0; stored < 59; stored++) {
        CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 7, stored), 0);
        partition_lag lag = partition_lag_of(p, OFFSET_GROUP, 7);
        uint64_t real = m.records[stored + 1].timestamp;
        CHECK_EQUAL(lag.messages, 59 - stored);
        CHECK(lag.since_us <= real && lag.since_us + 300 >= real); /* a segment spans 300 us */
    }
    end(p, &m);
}

static void test_what_is_deleted_is_no_lag(void) {
    partition_options options = options_of(512);
    static model m;
    partition *p = filled(&m, &options);
    char trash[160];
    uint32_t deleted;
    bool busy;
    snprintf(trash, sizeof(trash), "%s/trash", test_root);
    CHECK_EQUAL(partition_delete_segments(p, 4, trash, &deleted, &busy), 0);
    CHECK_EQUAL(deleted, 4);
    partition_lag lag = partition_lag_of(p, OFFSET_GROUP, 7);
    CHECK_EQUAL(lag.messages, 60 - partition_first_offset(p));
    CHECK_EQUAL(lag.since_us, m.records[partition_first_offset(p)].timestamp);
    sync_all(p);
    end(p, &m);
}

static void test_an_empty_partition_has_none(void) {
    partition_options options = options_of(512);
    static model m;
    model_init(&m, 512);
    partition *p = partition_open(&options, NULL, 0);
    partition_lag lag = partition_lag_of(p, OFFSET_GROUP, 7);
    CHECK(!lag.stored && lag.messages == 0 && lag.since_us == 0);
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_all_messages_of_the_active_segment_are_exact);
    RUN(test_sealed_segments_are_near_to_it);
    RUN(test_what_is_deleted_is_no_lag);
    RUN(test_an_empty_partition_has_none);
    test_root_remove();
    return check_report();
}
