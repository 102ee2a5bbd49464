/* Shared by the partition tests: a temporary directory, client records, an in-memory model of a partition, a recovery
 * made of record_scan_file, and a poll that reads its windows and compares every byte with the model. */
#ifndef SHARDD_TEST_PARTITION_FIXTURE_H
#define SHARDD_TEST_PARTITION_FIXTURE_H
#include "check.h"
#include "fault_disk.h"
#include "log/partition.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL_NONE UINT64_MAX

static char test_root[64];
static file_cache open_files = {.budget = FILE_BUDGET_LARGEST}; /* of all partitions of the test */
static uint64_t test_random_state = 1;

static inline uint64_t test_random(uint64_t below) {
    uint64_t z = (test_random_state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) % below;
}

static inline int test_remove(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void test_root_remove(void) { nftw(test_root, test_remove, 16, FTW_DEPTH | FTW_PHYS); }

static inline void test_root_make(void) {
    const char *place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* thousands of short lives */
    snprintf(test_root, sizeof(test_root), "%s/shardd-partition-XXXXXX", place);
    if (mkdtemp(test_root) == NULL) abort();
}

/* ---- model ---- */

typedef struct model_record {
    uint8_t *bytes; /* as stored */
    uint32_t size;
    uint64_t timestamp;
} model_record;

typedef struct model {
    model_record *records;
    uint64_t count, capacity;
    uint64_t segment_size_bytes;
    uint64_t segment_starts[20000];
    uint64_t segments, active_bytes, total_bytes;
    uint64_t offsets[3][64]; /* [kind][id]; MODEL_NONE: nothing stored */
} model;

static inline void model_init(model *m, uint64_t segment_size_bytes) {
    memset(m, 0, sizeof(*m));
    m->segment_size_bytes = segment_size_bytes;
    memset(m->offsets, 0xff, sizeof(m->offsets));
}

static inline void model_free(model *m) {
    for (uint64_t i = 0; i < m->count; i++) free(m->records[i].bytes);
    free(m->records);
}

/* Takes one acknowledged batch over, with the roll rule of docs/protocol/records.md#segments. */
static inline void model_append(model *m, const append_batch *b) {
    if (m->segments == 0) m->segment_starts[m->segments++] = 0;
    bool full = m->active_bytes >= m->segment_size_bytes;
    const uint8_t *at = b->messages;
    for (uint32_t i = 0; i < b->count; i++) {
        if (m->count == m->capacity) {
            m->capacity = m->capacity > 0 ? m->capacity * 2 : 1024;
            m->records = realloc(m->records, m->capacity * sizeof(*m->records));
        }
        model_record *r = &m->records[m->count++];
        r->size = (uint32_t)record_size(at);
        r->bytes = malloc(r->size);
        memcpy(r->bytes, at, r->size);
        memcpy(&r->timestamp, at + 32, 8);
        at += r->size;
        m->active_bytes += r->size;
        m->total_bytes += r->size;
    }
    if (full) {
        m->segment_starts[m->segments++] = m->count;
        m->active_bytes = 0;
    }
}

/* ---- records ---- */

/* `count` client records of 64 + [minimum, maximum] bytes behind `out`. Returns their bytes. */
static inline uint64_t make_records(uint8_t *out, uint32_t count, uint32_t minimum, uint32_t maximum) {
    uint8_t *at = out;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t body = minimum + (uint32_t)test_random(maximum - minimum + 1);
        uint32_t headers = body > 8 && test_random(4) == 0 ? 8 : 0, payload = body - headers;
        memset(at, 0, RECORD_HEADER_SIZE);
        memcpy(at + 48, &headers, 4);
        memcpy(at + 52, &payload, 4);
        for (uint32_t j = 0; j < body; j++) at[RECORD_HEADER_SIZE + j] = (uint8_t)test_random(256);
        at += RECORD_HEADER_SIZE + body;
    }
    return (uint64_t)(at - out);
}

/* ---- recovery ---- */

static const uint8_t no_boot[PRODUCERS_BOOT_BYTES] __attribute__((unused));

typedef struct recovered {
    segment_info segments[20000];
    size_t count;
} recovered;

static inline int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Scans every .log of the directory, cuts torn tails, makes the indexes anew. */
static inline void recover(const char *directory, recovered *out) {
    static uint64_t starts[20000];
    out->count = 0;
    DIR *d = opendir(directory);
    if (d == NULL) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strlen(e->d_name) == 24 && strcmp(e->d_name + 20, ".log") == 0)
            starts[out->count++] = strtoull(e->d_name, NULL, 10);
    closedir(d);
    qsort(starts, out->count, sizeof(starts[0]), compare_u64);
    uint64_t last_timestamp = 0;
    for (size_t i = 0; i < out->count; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%020" PRIu64 ".log", directory, starts[i]);
        int log = open(path, O_RDWR | O_CLOEXEC);
        snprintf(path, sizeof(path), "%s/%020" PRIu64 ".index", directory, starts[i]);
        int index = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        record_scan scan;
        CHECK_EQUAL(record_scan_file(log, 0, starts[i], starts[i], last_timestamp, index, &scan), 0);
        CHECK_EQUAL(ftruncate(log, (off_t)scan.valid_bytes), 0);
        close(log);
        close(index);
        if (scan.count > 0) last_timestamp = scan.last_timestamp;
        out->segments[i] = (segment_info){.start_offset = starts[i],
                                          .log_bytes = scan.valid_bytes,
                                          .count = scan.count,
                                          .first_timestamp = scan.first_timestamp,
                                          .last_timestamp = scan.last_timestamp};
    }
}

/* Opens what the directory holds. */
static inline partition *reopen(const partition_options *options) {
    static recovered found;
    recover(options->directory, &found);
    return partition_open(options, found.segments, found.count);
}

/* ---- comparison ---- */

/* Reads the next window of a cursor and compares it with the model. False when nothing remains or it failed. */
static inline bool check_window(const model *m, poll_cursor *cursor, uint64_t max_bytes) {
    static uint8_t buffer[1 << 20];
    uint32_t status;
    if (cursor->owner == NULL) /* ended */
        return false;
    uint64_t expected = cursor->next_offset;
    poll_window w;
    if (!partition_cursor_next(cursor, max_bytes, &w, &status)) {
        CHECK_EQUAL(status, 0);
        CHECK_EQUAL(cursor->remaining, 0);
        CHECK_EQUAL(cursor->sent_bytes, cursor->total_bytes);
        return false;
    }
    CHECK_EQUAL(w.first_offset, expected);
    CHECK(w.count > 0 && w.first_offset + w.count <= m->count);
    CHECK(w.length <= max_bytes || w.count == 1);
    CHECK(w.length <= sizeof(buffer));
    CHECK_EQUAL(pread(w.records->fd, buffer, w.length, (off_t)w.records->position), w.length);
    uint64_t at = 0;
    record_good good;
    for (uint64_t i = w.first_offset; i < w.first_offset + w.count && i < m->count; i++) {
        const model_record *r = &m->records[i];
        CHECK(at + r->size <= w.length && memcmp(buffer + at, r->bytes, r->size) == 0);
        at += r->size;
    }
    CHECK_EQUAL(at, w.length);
    CHECK_EQUAL(record_verify(buffer, w.length, w.first_offset, w.end_offset, w.count, &good), w.count);
    return true;
}

static inline uint64_t model_start(const model *m, uint8_t strategy, uint64_t value, uint32_t count, uint8_t kind,
                                   uint32_t id) {
    switch (strategy) {
    case POLL_OFFSET: return value;
    case POLL_TIMESTAMP:
        for (uint64_t i = 0; i < m->count; i++)
            if (m->records[i].timestamp >= value) return i;
        return m->count;
    case POLL_FIRST: return 0;
    case POLL_LAST: return m->count - (count < m->count ? count : m->count);
    default: return m->offsets[kind][id] == MODEL_NONE ? 0 : m->offsets[kind][id] + 1;
    }
}

/* Polls and compares what was announced; the cursor stays open. */
static inline void check_poll(const model *m, partition *p, uint8_t strategy, uint64_t value, uint32_t count,
                              uint8_t kind, uint32_t id, poll_cursor *cursor) {
    uint64_t start = model_start(m, strategy, value, count, kind, id);
    uint64_t end = start >= m->count ? start : m->count - start < count ? m->count : start + count;
    uint64_t bytes = 0;
    for (uint64_t i = start; i < end; i++) bytes += m->records[i].size;
    CHECK_EQUAL(partition_poll(p, strategy, value, count, kind, id, cursor), 0);
    CHECK_EQUAL(cursor->current_offset, m->count > 0 ? m->count - 1 : 0);
    CHECK_EQUAL(cursor->total_count, end - start);
    CHECK_EQUAL(cursor->remaining, end - start);
    CHECK_EQUAL(cursor->total_bytes, bytes);
    if (end > start) {
        CHECK_EQUAL(cursor->next_offset, start);
        CHECK_EQUAL(cursor->last_offset, end - 1);
    }
}

/* Reads everything there is and compares. Returns how many messages it was. */
static inline uint64_t check_readable(const model *m, partition *p) {
    static uint8_t bytes[1 << 16];
    poll_cursor cursor;
    poll_window w;
    uint32_t status = partition_poll(p, POLL_FIRST, 0, UINT32_MAX, OFFSET_CONSUMER, 1, &cursor);
    uint64_t offset = 0;
    while (status == 0 && partition_cursor_next(&cursor, 4000, &w, &status)) {
        CHECK_EQUAL(pread(w.records->fd, bytes, w.length, (off_t)w.records->position), w.length);
        for (uint64_t at = 0; at < w.length && offset < m->count; offset++) {
            const model_record *r = &m->records[offset];
            CHECK(at + r->size <= w.length && memcmp(bytes + at, r->bytes, r->size) == 0);
            at += r->size;
        }
    }
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(offset, cursor.last_offset + (cursor.total_count > 0));
    partition_cursor_end(&cursor);
    return offset;
}

static inline void check_whole(const model *m, partition *p) {
    poll_cursor cursor;
    for (uint64_t max_bytes = 400; max_bytes <= 64 << 10; max_bytes *= 163) { /* small windows go through the index */
        check_poll(m, p, POLL_FIRST, 0, UINT32_MAX, OFFSET_CONSUMER, 1, &cursor);
        while (check_window(m, &cursor, max_bytes)) {
        }
        partition_cursor_end(&cursor);
    }
    CHECK_EQUAL(partition_next_offset(p), m->count);
    CHECK_EQUAL(partition_messages(p), m->count);
    CHECK_EQUAL(partition_size_bytes(p), m->total_bytes);
    for (uint8_t kind = 1; kind <= 2; kind++)
        for (uint32_t id = 0; id < 64; id++) {
            uint64_t value = MODEL_NONE;
            bool stored = partition_offset_get(p, kind, id, &value);
            CHECK_EQUAL(stored ? value : MODEL_NONE, m->offsets[kind][id]);
        }
}

static inline void sync_all(partition *p) {
    for (int round = 0; round < 100 && partition_is_dirty(p); round++) {
        int fds[64];
        size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
        for (size_t i = 0; i < count; i++) close(fds[i]);
        partition_sync_done(p, 0);
    }
    CHECK(!partition_is_dirty(p));
}
#endif
