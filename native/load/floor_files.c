#include "floor_files.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "wire.h"

struct floor_file {
    _Atomic int fd_plus_one;   /* 0 = not open */
    _Atomic uint64_t end;      /* given out to appends */
    _Atomic uint64_t written;  /* bytes of appends that are done */
    _Atomic uint64_t readable; /* no append below it is on its way */
    _Atomic uint64_t record_bytes;
};

static floor_file files[FLOOR_STREAMS_MAX][FLOOR_PARTITIONS_MAX];
static const char *root;
static bool sync_appends;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

void floor_files_open(const char *directory, bool sync) {
    root = directory;
    sync_appends = sync;
}

static void path_of(char *path, size_t room, uint32_t stream, uint32_t partition) {
    snprintf(path, room, "%s/%u-%u.log", root, stream, partition);
}

static bool open_once(floor_file *file, uint32_t stream, uint32_t partition) {
    char path[4096];
    pthread_mutex_lock(&opening);
    if (atomic_load(&file->fd_plus_one) == 0) {
        path_of(path, sizeof path, stream, partition);
        atomic_store(&file->fd_plus_one, open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) + 1);
    }
    pthread_mutex_unlock(&opening);
    return atomic_load(&file->fd_plus_one) != 0;
}

floor_file *floor_file_get(uint32_t stream, uint32_t partition) {
    if (stream >= FLOOR_STREAMS_MAX || partition >= FLOOR_PARTITIONS_MAX) return NULL;
    floor_file *file = &files[stream][partition];
    if (atomic_load_explicit(&file->fd_plus_one, memory_order_acquire) == 0 && !open_once(file, stream, partition))
        return NULL;
    return file;
}

bool floor_file_append(floor_file *file, const uint8_t *records, size_t length) {
    if (atomic_load_explicit(&file->record_bytes, memory_order_relaxed) == 0) {
        uint64_t size = RECORD_HEAD + (uint64_t)get_u32(records + RECORD_HEADERS_LENGTH_AT) +
                        get_u32(records + RECORD_PAYLOAD_LENGTH_AT);
        atomic_store_explicit(&file->record_bytes, size, memory_order_relaxed);
    }
    uint64_t at = atomic_fetch_add_explicit(&file->end, length, memory_order_relaxed);
    int fd = atomic_load_explicit(&file->fd_plus_one, memory_order_relaxed) - 1;
    if (pwrite(fd, records, length, (off_t)at) != (ssize_t)length || (sync_appends && fdatasync(fd) != 0)) return false;
    uint64_t written = atomic_fetch_add(&file->written, length) + length, before = atomic_load(&file->readable);
    if (written != atomic_load(&file->end)) return true; /* somebody writes still, and will say so */
    while (before < written && !atomic_compare_exchange_weak(&file->readable, &before, written)) continue;
    return true;
}

uint64_t floor_file_record_bytes(const floor_file *file) {
    return atomic_load_explicit(&file->record_bytes, memory_order_relaxed);
}

uint64_t floor_file_records(const floor_file *file) {
    uint64_t size = floor_file_record_bytes(file);
    return size == 0 ? 0 : atomic_load(&file->readable) / size;
}

bool floor_file_read(floor_file *file, uint64_t first_record, uint8_t *into, size_t length) {
    off_t at = (off_t)(first_record * floor_file_record_bytes(file));
    int fd = atomic_load_explicit(&file->fd_plus_one, memory_order_relaxed) - 1;
    return pread(fd, into, length, at) == (ssize_t)length;
}

void floor_files_delete(uint32_t stream) {
    char path[4096];
    if (stream >= FLOOR_STREAMS_MAX) return;
    for (uint32_t partition = 0; partition < FLOOR_PARTITIONS_MAX; partition++) {
        floor_file *file = &files[stream][partition];
        int fd = atomic_exchange(&file->fd_plus_one, 0) - 1;
        if (fd < 0) continue;
        close(fd);
        path_of(path, sizeof path, stream, partition);
        unlink(path);
        atomic_store(&file->end, 0);
        atomic_store(&file->written, 0);
        atomic_store(&file->readable, 0);
        atomic_store(&file->record_bytes, 0);
    }
}
