/* For tests of idempotent producers on a partition: batches of one message that begins with their number, and how often
 * each of them is in the log. */
#ifndef SHARDD_TEST_NUMBERED_BATCHES_H
#define SHARDD_TEST_NUMBERED_BATCHES_H
#include "base/bytes.h"
#include "log/files.h"
#include "partition_inside.h"
#include "test_partition_fixture.h"

static id_source ids;
static char directory[192];
static producer_memory memory;

static inline partition_options options_on(const disk *d, partition_level level, uint64_t segment_size_bytes) {
    return (partition_options){.ns = 1,
                               .incarnation = 2,
                               .directory = directory,
                               .segment_size_bytes = segment_size_bytes,
                               .disk = d,
                               .files = &open_files,
                               .ids = &ids,
                               .producing = &memory,
                               .level = level};
}

/* Its message has `minimum` to 300 bytes. Good until the next one is made. */
static inline append_batch numbered_batch(uint64_t number, uint32_t minimum) {
    static uint8_t message[1 << 12];
    append_batch b = {.messages = message, .count = 1, .length = make_records(message, 1, minimum, 300)};
    memcpy(message + RECORD_HEADER_SIZE, &number, sizeof number);
    return b;
}

/* As a batch of the one producer that there is: judged, and stored if it is new. Its status. */
static inline uint32_t send_once(partition *p, append_batch *b, uint64_t sequence) {
    b->by = (producer_batch){.producer = 9, .sequence = sequence, .begun = 5};
    b->status = partition_judge_producer(p, b);
    if (b->status == 0 && b->made.kind == PRODUCED_STORED) {
        partition_append(p, b, 1, 1000);
        b->made.first = b->first_offset;
    }
    return b->status;
}

/* How often each number below `batches` is in the log. */
static inline void count_in_log(const partition *p, unsigned *times, uint64_t batches) {
    memset(times, 0, batches * sizeof *times);
    for (uint32_t i = 0; i < inside_segments(p)->count; i++) {
        char path[FILE_PATH_MAX];
        segment_path(inside_segments(p), &inside_segments(p)->items[i], SEGMENT_LOG, path, sizeof path);
        FILE *f = fopen(path, "r");
        REQUIRE(f != NULL);
        uint8_t head[RECORD_HEADER_SIZE];
        for (uint64_t at = 0; at < inside_segments(p)->items[i].log_bytes;) {
            uint64_t number;
            REQUIRE(fseek(f, (long)at, SEEK_SET) == 0 && fread(head, 1, sizeof head, f) == sizeof head);
            REQUIRE(fread(&number, 1, sizeof number, f) == sizeof number);
            if (number < batches) times[number]++;
            at += RECORD_HEADER_SIZE + load_u32(head + 48) + load_u32(head + 52);
        }
        fclose(f);
    }
}
#endif
