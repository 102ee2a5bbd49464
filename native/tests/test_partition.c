/* Partition against the in-memory model: fixed examples of the specification, then seeded random operations. */
#include "test_partition_fixture.h"

static id_source ids;
static char directory[128];
static partition_stats stats;

static partition_options options_of(uint64_t segment_size_bytes) {
    static unsigned number;
    snprintf(directory, sizeof(directory), "%s/streams/0/topics/%u/partitions/0", test_root, number++);
    memset(&stats, 0, sizeof(stats));
    id_source_seed_fixed(&ids, 7);
    return (partition_options){.ns = 5,
                               .incarnation = 77,
                               .directory = directory,
                               .segment_size_bytes = segment_size_bytes,
                               .stats = &stats,
                               .disk = &disk_system,
                               .files = &open_files,
                               .ids = &ids};
}

static void append_one(partition *p, model *m, uint32_t count, uint32_t body, uint64_t now_us) {
    static uint8_t buffer[1 << 20];
    append_batch b = {.messages = buffer, .count = count, .length = make_records(buffer, count, body, body)};
    uint64_t first = m->count;
    partition_append(p, &b, 1, now_us);
    CHECK_EQUAL(b.status, 0);
    CHECK_EQUAL(b.first_offset, first);
    model_append(m, &b);
}

static uint64_t file_size(const char *name) {
    char path[256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : UINT64_MAX;
}

static void test_roll_example(void) {
    partition_options options = options_of(5120);
    static model m;
    model_init(&m, 5120);
    partition *p = partition_open(&options, NULL, 0);
    REQUIRE(p != NULL);
    CHECK_EQUAL(partition_segments(p), 1);
    CHECK_EQUAL(access(directory, F_OK), -1); /* nothing is made before the first message */
    for (int i = 0; i < 25; i++) {
        append_one(p, &m, 1, 936, 1000 + (uint64_t)i);
        CHECK_EQUAL(partition_segments(p), i < 6 ? 1 : i < 13 ? 2 : i < 20 ? 3 : 4); /* golden: segments-rotation */
        CHECK_EQUAL(atomic_load(&stats.segments_count), partition_segments(p));
        CHECK_EQUAL(atomic_load(&stats.size_bytes), (uint64_t)(i + 1) * 1000);
        CHECK_EQUAL(atomic_load(&stats.next_offset), i + 1);
        CHECK_EQUAL(atomic_load(&stats.messages_count), i + 1);
    }
    CHECK_EQUAL(atomic_load(&stats.incarnation), 77);
    check_whole(&m, p);
    partition_close(p);
    CHECK_EQUAL(atomic_load(&stats.incarnation), 0);
    partition_release(p);
    CHECK_EQUAL(file_size("00000000000000000000.log"), 7000);
    CHECK_EQUAL(file_size("00000000000000000007.log"), 7000);
    CHECK_EQUAL(file_size("00000000000000000014.log"), 7000);
    CHECK_EQUAL(file_size("00000000000000000021.log"), 4000);
    CHECK_EQUAL(file_size("00000000000000000000.index"), 7 * 16);
    CHECK_EQUAL(file_size("00000000000000000021.index"), 4 * 16);
    uint8_t marker[16], expected[16] = {'S', 'H', 'R', 'D', 'I', 'N', 'C', '1', 77};
    char path[256];
    snprintf(path, sizeof(path), "%s/incarnation", directory);
    int fd = open(path, O_RDONLY);
    CHECK_EQUAL(read(fd, marker, sizeof(marker)), 16);
    CHECK(memcmp(marker, expected, 16) == 0);
    close(fd);
    model_free(&m);
}

/* Batches in one call give the same files as batches one by one. */
static void test_grouping_changes_nothing(void) {
    enum { BATCHES = 1500 };
    static uint8_t buffers[2][BATCHES * 4 * 400];
    static append_batch batches[2][BATCHES];
    static recovered found[2];
    for (int way = 0; way < 2; way++) {
        test_random_state = 99;
        partition_options options = options_of(5120);
        partition *p = partition_open(&options, NULL, 0);
        uint8_t *at = buffers[way];
        for (int i = 0; i < BATCHES; i++) {
            uint32_t count = 1 + (uint32_t)test_random(3);
            batches[way][i] = (append_batch){.messages = at, .count = count, .length = make_records(at, count, 0, 300)};
            at += batches[way][i].length;
        }
        if (way == 0) partition_append(p, batches[way], BATCHES, 123456);
        for (int i = 0; way == 1 && i < BATCHES; i++) partition_append(p, &batches[way][i], 1, 123456);
        for (int i = 0; i < BATCHES; i++) CHECK_EQUAL(batches[way][i].status, 0);
        partition_close(p);
        partition_release(p);
        recover(directory, &found[way]);
    }
    CHECK(memcmp(buffers[0], buffers[1], sizeof(buffers[0])) == 0);
    CHECK_EQUAL(found[0].count, found[1].count);
    CHECK(found[0].count > 50);
    CHECK(memcmp(found[0].segments, found[1].segments, found[0].count * sizeof(segment_info)) == 0);
}

static void test_timestamps_never_fall(void) {
    partition_options options = options_of(1 << 20);
    static model m;
    model_init(&m, 1 << 20);
    partition *p = partition_open(&options, NULL, 0);
    const uint64_t now[] = {100, 90, 110, 110, 5, 120};
    const uint64_t expected[] = {100, 100, 110, 110, 110, 120};
    for (int i = 0; i < 6; i++) {
        append_one(p, &m, 8, 20, now[i]);
        CHECK_EQUAL(m.records[m.count - 1].timestamp, expected[i]);
    }
    poll_cursor cursor; /* the first message of the batch, not any of them */
    check_poll(&m, p, POLL_TIMESTAMP, 110, 3, OFFSET_CONSUMER, 1, &cursor);
    CHECK_EQUAL(cursor.next_offset, 16);
    partition_cursor_end(&cursor);
    check_poll(&m, p, POLL_TIMESTAMP, 121, 3, OFFSET_CONSUMER, 1, &cursor);
    CHECK_EQUAL(cursor.total_count, 0);
    partition_cursor_end(&cursor);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

static void test_offset_rules(void) {
    partition_options options = options_of(4096);
    static model m;
    model_init(&m, 4096);
    partition *p = partition_open(&options, NULL, 0);
    uint64_t value;
    poll_cursor cursor;
    check_poll(&m, p, POLL_NEXT, 0, 10, OFFSET_CONSUMER, 1, &cursor);
    partition_cursor_end(&cursor);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 0), 4100); /* never held a message */
    CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, 1), 3021);
    append_one(p, &m, 5, 10, 1);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 5), 4100);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, UINT64_MAX), 4100);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 4), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 2), 0); /* backwards is allowed */
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 1, 3), 0);
    CHECK(partition_offset_get(p, OFFSET_CONSUMER, 1, &value) && value == 2);
    CHECK(partition_offset_get(p, OFFSET_GROUP, 1, &value) && value == 3);
    CHECK_EQUAL(file_size("consumer-offsets"), 64 + 128 + 64); /* a consumer with two values, a group with one */
    CHECK_EQUAL(partition_poll(p, POLL_NEXT, 0, 10, OFFSET_CONSUMER, 1, &cursor), 0);
    CHECK_EQUAL(cursor.next_offset, 3);
    CHECK_EQUAL(cursor.total_count, 2);
    partition_cursor_end(&cursor);
    CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, 1), 0);
    CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, 1), 3021);
    CHECK_EQUAL(file_size("consumer-offsets"), 64 + 128 + 64);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 9, 4), 0); /* takes the place of the deleted one */
    CHECK_EQUAL(file_size("consumer-offsets"), 64 + 128 + 64);
    partition_close(p);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 1), 3007);
    CHECK_EQUAL(partition_offset_delete(p, OFFSET_GROUP, 1), 3007);
    CHECK(!partition_offset_get(p, OFFSET_GROUP, 1, &value));
    partition_release(p);
    p = reopen(&options);
    CHECK(partition_offset_get(p, OFFSET_GROUP, 1, &value) && value == 3);
    CHECK(partition_offset_get(p, OFFSET_GROUP, 9, &value) && value == 4);
    CHECK(!partition_offset_get(p, OFFSET_CONSUMER, 1, &value));
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

/* ---- random operations ---- */

#define CURSORS 6
typedef struct player {
    partition *p;
    partition_options options;
    model *m;
    uint64_t now_us;
    poll_cursor cursors[CURSORS];
} player;

static void play_append(player *g) {
    static uint8_t buffer[4 * 20 * 1000];
    append_batch batches[4];
    size_t count = 1 + test_random(4);
    uint8_t *at = buffer;
    uint32_t body = test_random(10) == 0 ? 900 : 120;
    for (size_t i = 0; i < count; i++) {
        uint32_t records = 1 + (uint32_t)test_random(test_random(3) == 0 ? 20 : 3);
        batches[i] = (append_batch){.messages = at, .count = records, .length = make_records(at, records, 0, body)};
        at += batches[i].length;
    }
    g->now_us = test_random(20) == 0 && g->now_us > 50 ? g->now_us - 50 : g->now_us + test_random(4);
    uint64_t last = g->m->count > 0 ? g->m->records[g->m->count - 1].timestamp : 0;
    partition_append(g->p, batches, count, g->now_us);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQUAL(batches[i].status, 0);
        CHECK_EQUAL(batches[i].first_offset, g->m->count);
        model_append(g->m, &batches[i]);
        CHECK_EQUAL(g->m->records[g->m->count - 1].timestamp, g->now_us > last ? g->now_us : last);
    }
    CHECK_EQUAL(partition_segments(g->p), g->m->segments);
}

static void play_poll(player *g) {
    poll_cursor *cursor = &g->cursors[test_random(CURSORS)];
    partition_cursor_end(cursor);
    uint8_t strategy = (uint8_t)(1 + test_random(5));
    uint64_t value = test_random(g->m->count + 3);
    if (strategy == POLL_TIMESTAMP) {
        value = g->m->count > 0 ? g->m->records[test_random(g->m->count)].timestamp : 5;
        value += test_random(3);
        value -= value > 1 ? test_random(2) : 0;
    }
    uint32_t count = (uint32_t)test_random(test_random(4) == 0 ? 2000 : 30);
    check_poll(g->m, g->p, strategy, value, count, (uint8_t)(1 + test_random(2)), (uint32_t)test_random(64), cursor);
}

static void play_offset(player *g) {
    uint8_t kind = (uint8_t)(1 + test_random(2));
    uint32_t id = (uint32_t)test_random(64);
    uint64_t *stored = &g->m->offsets[kind][id];
    if (test_random(4) == 0) {
        CHECK_EQUAL(partition_offset_delete(g->p, kind, id), *stored == MODEL_NONE ? 3021 : 0);
        *stored = MODEL_NONE;
        return;
    }
    uint64_t value = test_random(g->m->count + 2);
    CHECK_EQUAL(partition_offset_store(g->p, kind, id, value), value < g->m->count ? 0 : 4100);
    if (value < g->m->count) *stored = value;
}

static void play_sync(player *g) {
    int fds[8];
    size_t count = partition_sync_begin(g->p, SYNC_EVERYTHING, fds, 8);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQUAL(fdatasync(fds[i]), 0);
        close(fds[i]);
    }
    partition_sync_done(g->p, 0);
    CHECK(atomic_load(&stats.durable_offset) <= g->m->count);
    if (!partition_is_dirty(g->p)) CHECK_EQUAL(atomic_load(&stats.durable_offset), g->m->count);
}

static void play_reopen(player *g) {
    for (int i = 0; i < CURSORS; i++) partition_cursor_end(&g->cursors[i]);
    if (test_random(2) == 0) /* the other half: killed, waiting index entries are lost */
        partition_close(g->p);
    partition_release(g->p);
    g->p = reopen(&g->options);
    check_whole(g->m, g->p);
    CHECK_EQUAL(partition_segments(g->p), g->m->segments);
}

static void play(uint64_t seed, uint64_t segment_size_bytes, unsigned operations) {
    static model m;
    model_init(&m, segment_size_bytes);
    player g = {.options = options_of(segment_size_bytes), .m = &m, .now_us = 1000};
    test_random_state = seed;
    g.p = partition_open(&g.options, NULL, 0);
    m.segments = 1;
    for (unsigned i = 0; i < operations && check_errors < 20; i++) {
        uint64_t dice = test_random(1000);
        if (dice < 200) play_append(&g);
        else if (dice < 500) play_poll(&g);
        else if (dice < 700) check_window(&m, &g.cursors[test_random(CURSORS)], 1 + test_random(8000));
        else if (dice < 900) play_offset(&g);
        else if (dice < 960) CHECK_EQUAL(partition_flush(g.p), 0);
        else if (dice < 997) play_sync(&g);
        else play_reopen(&g);
    }
    for (int i = 0; i < CURSORS; i++) partition_cursor_end(&g.cursors[i]);
    check_whole(&m, g.p);
    partition_close(g.p);
    partition_release(g.p);
    for (uint64_t i = 0; i < m.segments; i++) {
        char name[64];
        snprintf(name, sizeof(name), "%020" PRIu64 ".log", m.segment_starts[i]);
        CHECK(file_size(name) != UINT64_MAX);
        snprintf(name, sizeof(name), "%020" PRIu64 ".index", m.segment_starts[i]);
        uint64_t end = i + 1 < m.segments ? m.segment_starts[i + 1] : m.count;
        CHECK_EQUAL(file_size(name), (end - m.segment_starts[i]) * 16);
    }
    model_free(&m);
}

static void test_random_operations(void) {
    static const uint64_t sizes[] = {512, 1024, 2560, 5120};
    for (uint64_t i = 0; i < 8; i++) play(1000 + i, sizes[i % 4], 3000);
    play(2000, 1 << 30, 3000);
}

int main(void) {
    test_root_make();
    RUN(test_roll_example);
    RUN(test_grouping_changes_nothing);
    RUN(test_timestamps_never_fall);
    RUN(test_offset_rules);
    RUN(test_random_operations);
    test_root_remove();
    return check_report();
}
