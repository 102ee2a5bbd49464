/* libFuzzer: any bytes as a log file. The scan of the file and the one of memory agree, the index that is written fits
 * what they found, and looking for a later record ends. The first two bytes choose where the scans begin. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int file_of(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (fd < 0) fd = memfd_create("log", 0);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    return fd;
}

/* Length and checksum of the records are set right where they fit: the scan gets past its first look. */
static void mend(uint8_t *log, size_t size) {
    for (size_t at = 0; size - at >= RECORD_HEADER_SIZE;) {
        uint64_t length = record_size(log + at);
        if (length == 0 || length > size - at) return;
        uint64_t checksum = record_checksum(log + at, length);
        memcpy(log + at, &checksum, 8);
        at += length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    uint64_t expected = data[0] & 7, minimum = data[1] & 7;
    uint8_t *log = malloc(size - 2 + 1);
    size -= 2;
    memcpy(log, data + 2, size);
    if (data[0] & 8) mend(log, size);
    int fd = file_of(log, size);
    static int index_fd = -1;
    if (index_fd < 0) index_fd = memfd_create("index", 0);
    if (ftruncate(index_fd, 0) != 0) abort();
    record_scan memory, file;
    record_scan_buffer(log, size, expected, minimum, 0, 0, NULL, 0, &memory);
    if (record_scan_file(fd, 0, 0, expected, minimum, index_fd, &file) != 0) abort();
    if (memory.valid_bytes > size || memory.valid_bytes != file.valid_bytes || memory.count != file.count ||
        memory.next_offset != file.next_offset || memory.fault != file.fault)
        abort();
    if (file.next_offset != expected + file.count) abort();
    record_good good;
    if (record_verify(log, memory.valid_bytes, expected, expected + memory.count, (uint32_t)memory.count, &good) !=
        memory.count)
        abort();
    record_verify(log, size, expected, expected + 3, 3, &good);
    if (good.bytes > size) abort();
    record_verify(log, size, expected, expected + 1000, 3, &good);
    if (good.bytes > size) abort();
    record_found found;
    if (record_find_later(fd, &(record_wanted){memory.valid_bytes, UINT64_MAX, file.next_offset, UINT64_MAX, 0},
                          &found) != 0)
        abort();
    free(log);
    return 0;
}
