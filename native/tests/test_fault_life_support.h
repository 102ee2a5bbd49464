/* For test_fault_life.c: what is known of a partition, what every answer must obey, what a restart must find. */
#ifndef SHARDD_TEST_FAULT_LIFE_SUPPORT_H
#define SHARDD_TEST_FAULT_LIFE_SUPPORT_H
#include "log/expiry_clock.h"
#include "partition_inside.h"
#include "test_partition_fixture.h"

#define SEGMENT_BYTES 1500
#define RECORDS_MAX 256
#define CONSUMERS 3
#define SHOWN_MAX 20
#define KEPT_MESSAGES 9 /* by the limit of the retention */

typedef enum end_kind { END_KILL, END_ORDERLY } end_kind;

static id_source ids;
static char directory[128], trash[160];
static fault_disk faulty;
static partition_level level;
static end_kind last_end;
static unsigned findings, pairs, quiet;
static char about[200];

static int64_t life_us = 1000000;

static uint64_t life_wall(void *context) {
    (void)context;
    return (uint64_t)life_us;
}

static int64_t life_monotonic(void *context) {
    (void)context;
    return life_us;
}

static expiry_clock life_clock = {.wall_us = life_wall, .monotonic_us = life_monotonic};

/* What is known of the partition under its present incarnation. */
typedef struct known {
    uint8_t *records[RECORDS_MAX]; /* as written, by offset */
    uint32_t sizes[RECORDS_MAX];
    uint64_t written, acknowledged; /* ends */
    uint64_t offsets[CONSUMERS];    /* acknowledged; MODEL_NONE: deleted or never stored */
    bool unsure[CONSUMERS];         /* a later request was refused: it may have been carried out */
    uint64_t passed;   /* the last offset that DELETE_SEGMENTS or the retention may have left as the first */
    bool lost_journal; /* `memory`: what is promised then is nothing */
} known;

static void require(bool holds, const char *what) {
    if (holds) return;
    findings++;
    if (!quiet && findings <= SHOWN_MAX) fprintf(stderr, "FINDING %s: %s\n", about, what);
}

static bool is_typed(uint32_t status) {
    static const uint32_t all[] = {0, 3007, 3011, 3021, 3023, 4007, 4027, 4100, 10002, 10006, 10008, 10009};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (status == all[i]) return true;
    return false;
}

static void forget(known *k) {
    for (uint64_t i = 0; i < k->written; i++) free(k->records[i]);
    *k = (known){0};
    for (int i = 0; i < CONSUMERS; i++) k->offsets[i] = MODEL_NONE;
}

static partition_options options_with(const disk *d, uint64_t incarnation) {
    return (partition_options){.ns = 1,
                               .incarnation = incarnation,
                               .directory = directory,
                               .segment_size_bytes = SEGMENT_BYTES,
                               .disk = d,
                               .files = &open_files,
                               .ids = &ids,
                               .clock = &life_clock,
                               .level = level,
                               .journal_messages_max = 6,
                               .journal_bytes_max = 1400};
}

/* The group commit of the engine, or its background sync. True: what was written before is acknowledged. */
static bool reach_level(partition *p) {
    if (level == LEVEL_DURABLE) partition_sync_now(p);
    return level != LEVEL_DURABLE || (!partition_sync_failed(p) && inside_sync(p)->covers);
}

static void background_sync(partition *p) {
    int fds[64], error = 0;
    size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    for (size_t i = 0; i < count; i++) {
        int result;
        do result = faulty.disk.fdatasync(&faulty, fds[i]);
        while (result != 0 && errno == EINTR); /* as the engine does (test_engine_durable.c) */
        error = result != 0 ? errno : error;
        faulty.disk.close(&faulty, fds[i]);
    }
    partition_sync_done(p, error);
    require(error == 0 || count == 0 || partition_state(p) != 0, "a failed sync does not stop the partition");
}

static uint64_t read_all(partition *p, const known *k);

/* Steps of the retention; what was acknowledged within the last second stays, and files wait for a sync. */
static uint32_t clean(partition *p, known *k) {
    partition_cleaned done;
    uint32_t removed = 0;
    partition_set_limits(p, &(partition_limits){.messages_max = KEPT_MESSAGES});
    for (int i = 0; i < 4; i++, life_us += 1100000) {
        uint32_t status = partition_clean(p, life_us, trash, &done);
        require(is_typed(status), "a step of the retention: a status that does not exist");
        removed += done.removed;
        background_sync(p);
    }
    if (k->written > KEPT_MESSAGES && k->passed < k->written - KEPT_MESSAGES) k->passed = k->written - KEPT_MESSAGES;
    require(partition_first_offset(p) <= k->passed, "the retention takes more than its limit says");
    read_all(p, k);
    partition_set_limits(p, &(partition_limits){0});
    return removed;
}

static void append(partition *p, known *k) {
    static uint8_t buffer[1 << 13];
    static uint64_t now_us = 1000;
    uint32_t count = 1 + (uint32_t)test_random(3);
    append_batch b = {.messages = buffer, .count = count, .length = make_records(buffer, count, 100, 300)};
    uint32_t before = partition_state(p);
    partition_append(p, &b, 1, now_us++);
    require(is_typed(b.status), "append: a status that does not exist");
    require(before == 0 || b.status != 0, "a stopped partition takes a batch");
    if (b.status != 0) return;
    require(b.first_offset == k->written && k->written + count < RECORDS_MAX, "an offset is not the next one");
    for (uint8_t *at = buffer; at < buffer + b.length; at += record_size(at)) {
        k->sizes[k->written] = (uint32_t)record_size(at);
        k->records[k->written] = malloc(record_size(at));
        memcpy(k->records[k->written++], at, record_size(at));
    }
    if (reach_level(p)) k->acknowledged = k->written;
    else require(partition_state(p) != 0 || faulty.injected > 0, "a sync does not cover without any fault");
}

static void store(partition *p, known *k, uint32_t id, uint64_t value) {
    uint32_t status = partition_offset_store(p, OFFSET_CONSUMER, id, value);
    require(is_typed(status), "store: a status that does not exist");
    if (status == 4100) return;
    k->unsure[id] = status != 0 || !reach_level(p);
    if (!k->unsure[id]) k->offsets[id] = value;
}

static void delete_offset(partition *p, known *k, uint32_t id) {
    uint32_t status = partition_offset_delete(p, OFFSET_CONSUMER, id);
    require(is_typed(status), "delete of an offset: a status that does not exist");
    k->unsure[id] = status != 0 || !reach_level(p);
    if (!k->unsure[id]) k->offsets[id] = MODEL_NONE;
}

/* Reads from the first offset to the end; everything must be as it was written. Returns the end. */
static uint64_t read_all(partition *p, const known *k) {
    static uint8_t bytes[1 << 16];
    poll_cursor cursor;
    poll_window w;
    uint64_t offset = partition_first_offset(p);
    uint32_t status = partition_poll(p, POLL_FIRST, 0, UINT32_MAX, OFFSET_CONSUMER, 1, &cursor);
    bool same = true;
    while (status == 0 && partition_cursor_next(&cursor, 4000, &w, &status)) {
        if (w.length > sizeof(bytes) || w.first_offset != offset ||
            pread(w.records->fd, bytes, w.length, (off_t)w.records->position) != (ssize_t)w.length)
            same = false;
        for (uint64_t at = 0; same && at < w.length; at += k->sizes[offset++])
            same = offset < k->written && memcmp(bytes + at, k->records[offset], k->sizes[offset]) == 0;
        if (!same) break;
    }
    partition_cursor_end(&cursor);
    require(is_typed(status), "poll: a status that does not exist");
    require(same, "a message is another one than was written");
    return offset;
}

/* By offset and by timestamp, in a sealed segment: through the index file. */
static void poll_middle(partition *p, const known *k) {
    static uint8_t bytes[1 << 13];
    uint64_t wanted = k->written / 3, time_us = 0;
    if (k->written < 6) return;
    memcpy(&time_us, k->records[wanted] + 32, 8);
    for (int by_time = 0; by_time < 2; by_time++) {
        poll_cursor cursor;
        poll_window w;
        uint32_t status = partition_poll(p, by_time ? POLL_TIMESTAMP : POLL_OFFSET, by_time ? time_us : wanted, 2,
                                         OFFSET_CONSUMER, 1, &cursor);
        require(is_typed(status), "poll: a status that does not exist");
        while (status == 0 && partition_cursor_next(&cursor, 4000, &w, &status)) {
            require(w.length <= sizeof(bytes) &&
                        pread(w.records->fd, bytes, w.length, (off_t)w.records->position) == (ssize_t)w.length,
                    "a window is not in the file");
            require(w.length >= k->sizes[w.first_offset] &&
                        memcmp(bytes, k->records[w.first_offset], k->sizes[w.first_offset]) == 0,
                    "another message");
        }
        partition_cursor_end(&cursor);
        require(is_typed(status), "poll: a status that does not exist");
    }
}

/* NULL: it could not be opened, which the worker reports. */
static partition *open_again(const disk *d, uint64_t incarnation) {
    static recovered found;
    recover(directory, &found);
    partition_options options = options_with(d, incarnation);
    return partition_open(&options, found.segments, found.count);
}

/* After a start without faults: all that was acknowledged is there. */
static void check_restarted(known *k, uint64_t incarnation) {
    partition *p = open_again(&disk_system, incarnation);
    require(p != NULL, "the partition does not open again");
    if (p == NULL) return;
    require(partition_first_offset(p) <= k->passed, "the beginning is gone");
    uint64_t end = read_all(p, k);
    require(end == partition_next_offset(p), "not readable up to its end");
    require(k->lost_journal || end >= k->acknowledged, "acknowledged messages are gone");
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        uint64_t now = MODEL_NONE;
        bool stored = partition_offset_get(p, OFFSET_CONSUMER, i, &now);
        bool clamped = stored && k->lost_journal && now + 1 == end;
        require(k->unsure[i] || clamped || k->lost_journal || (stored ? now : MODEL_NONE) == k->offsets[i],
                "an acknowledged consumer offset is another one");
    }
    partition_close(p);
    partition_release(p);
}
#endif
