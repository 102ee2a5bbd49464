/* A partition and the bytes of its file of stored offsets. */
#ifndef SHARDD_TEST_OFFSETS_SUPPORT_H
#define SHARDD_TEST_OFFSETS_SUPPORT_H
#include "log/expiry_clock.h"
#include "test_partition_support.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define PATH_SIZE 256

static inline uint64_t get(const partition *p, uint8_t kind, uint32_t id) {
    uint64_t value;
    return partition_offset_get(p, kind, id, &value) ? value : MODEL_NONE;
}

static inline const char *table_path(void) {
    static char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/consumer-offsets", directory);
    return path;
}

static inline size_t read_table(uint8_t *out, size_t size) {
    int fd = open(table_path(), O_RDONLY | O_CLOEXEC);
    ssize_t length = pread(fd, out, size, 0);
    close(fd);
    return length > 0 ? (size_t)length : 0;
}

static inline void write_table(const uint8_t *data, size_t length) {
    int fd = open(table_path(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    CHECK_EQUAL(pwrite(fd, data, length, 0), length);
    close(fd);
}

static inline void put_half(uint8_t *out, uint32_t id, uint64_t value, uint64_t sequence) {
    offsets_encode_half(out, &(offsets_half){.value = value, .sequence = sequence, .id = id, .kind = OFFSET_CONSUMER});
}

static inline partition *open_with(partition_options *options, model *m, uint32_t messages) {
    *options = options_of(1 << 20);
    model_init(m, 1 << 20);
    partition *p = partition_open(options, NULL, 0);
    append(p, m, messages, 5, 1000);
    return p;
}

static inline partition *kill_and_open(partition *p, const partition_options *options) {
    partition_release(p);
    return reopen(options);
}
#endif
