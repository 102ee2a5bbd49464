/* For partition tests that look inside: options with a fresh directory, one batch, sync until clean, orderly end. */
#ifndef SHARDD_TEST_PARTITION_SUPPORT_H
#define SHARDD_TEST_PARTITION_SUPPORT_H
#include "partition_inside.h"
#include "test_partition_fixture.h"

static id_source ids;
static char directory[128];
static partition_stats stats;
static uint8_t buffer[80000 * 80];

static inline partition_options options_of(uint64_t segment_size_bytes) {
    static unsigned number;
    snprintf(directory, sizeof(directory), "%s/t/%u/p/0", test_root, number++);
    memset(&stats, 0, sizeof(stats));
    id_source_seed_fixed(&ids, 11);
    return (partition_options){.ns = 9,
                               .incarnation = 1,
                               .directory = directory,
                               .segment_size_bytes = segment_size_bytes,
                               .stats = &stats,
                               .disk = &disk_system,
                               .files = &open_files,
                               .ids = &ids};
}

static inline void append(partition *p, model *m, uint32_t count, uint32_t body, uint64_t now_us) {
    append_batch b = {.messages = buffer, .count = count, .length = make_records(buffer, count, body, body)};
    partition_append(p, &b, 1, now_us);
    CHECK_EQUAL(b.status, 0);
    if (b.status == 0) model_append(m, &b);
}

static inline void end(partition *p, model *m) {
    partition_close(p);
    partition_release(p);
    model_free(m);
    CHECK_EQUAL(open_files.pairs.count, 0);
    CHECK_EQUAL(open_files.offset_files.count, 0);
}
#endif
