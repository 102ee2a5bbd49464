/* Small file helpers of the partition. */
#include "log/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static bool no_descriptors(int error) { return error == EMFILE || error == ENFILE; }

int file_open(const disk *d, file_cache *cache, const char *path, int flags) {
    int fd;
    do
        fd = d->open(d->context, path, flags | O_CLOEXEC | ((flags & O_DIRECTORY) != 0 ? 0 : O_NOFOLLOW | O_NONBLOCK),
                     0644); /* whatever somebody has put there: it leads nowhere else, and nothing waits for it */
    while (fd < 0 && (errno == EINTR || (no_descriptors(errno) && file_cache_release_one(cache))));
    return fd;
}

int file_duplicate(const disk *d, file_cache *cache, int fd) {
    int copy;
    do copy = d->duplicate(d->context, fd);
    while (copy < 0 && (errno == EINTR || (no_descriptors(errno) && file_cache_release_one(cache))));
    return copy;
}

int file_write(const disk *d, int fd, struct iovec *parts, size_t count, uint64_t position, uint64_t *written) {
    uint64_t done = 0;
    int result = 0;
    while (count > 0) {
        ssize_t n = d->pwritev(d->context, fd, parts, count < IOV_MAX ? (int)count : IOV_MAX, (off_t)(position + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = ENOSPC; /* a regular file takes nothing only when there is no room */
            result = -1;
            break;
        }
        done += (uint64_t)n;
        size_t left = (size_t)n;
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (left > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
    if (written != NULL) *written = done;
    return result;
}

int file_read(const disk *d, int fd, void *data, size_t length, uint64_t position) {
    size_t done = 0;
    while (done < length) {
        ssize_t n = d->pread(d->context, fd, (uint8_t *)data + done, length - done, (off_t)(position + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = ENODATA;
            return -1;
        }
        done += (size_t)n;
    }
    return 0;
}

int file_truncate(const disk *d, int fd, uint64_t length) {
    int result;
    do result = d->ftruncate(d->context, fd, (off_t)length);
    while (result < 0 && errno == EINTR);
    return result;
}

#define MAKE_ATTEMPTS_MAX 8

/* 1: made, 0: was there, -1. */
static int make_directory(const disk *d, const char *path) {
    int result;
    do result = d->mkdir(d->context, path, 0755);
    while (result != 0 && errno == EINTR);
    if (result == 0) return 1;
    return errno == EEXIST ? 0 : -1;
}

/* Adds how many it has made to `made`. */
static int make_missing(const disk *d, const char *path, unsigned *made) {
    char buffer[FILE_PATH_MAX];
    size_t length = strlen(path), end = length;
    if (length == 0 || length >= sizeof(buffer)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(buffer, path, length + 1);
    int result;
    while ((result = make_directory(d, buffer)) < 0) { /* upwards to the first one that can be made */
        if (errno != ENOENT) return -1;
        while (end > 0 && buffer[end - 1] != '/') end--;
        while (end > 0 && buffer[end - 1] == '/') end--;
        if (end == 0) return -1;
        buffer[end] = '\0';
    }
    *made += (unsigned)result;
    while (end < length) { /* and down again */
        buffer[end] = '/';
        end += strlen(buffer + end);
        result = make_directory(d, buffer);
        if (result < 0) return -1;
        *made += (unsigned)result;
    }
    return 0;
}

int file_make_directories(const disk *d, const char *path, unsigned *made) {
    int result, attempts = 0;
    *made = 0;
    do /* another shard may be removing the empty directories of a deleted topic that had the same id */
        result = make_missing(d, path, made);
    while (result != 0 && errno == ENOENT && ++attempts < MAKE_ATTEMPTS_MAX);
    return result;
}

int file_create_anew(const disk *d, file_cache *cache, const char *path) {
    int fd = file_open(d, cache, path, O_RDWR | O_CREAT | O_EXCL), gone;
    if (fd >= 0 || errno != EEXIST) return fd;
    do gone = d->unlink(d->context, path);
    while (gone != 0 && errno == EINTR);
    return gone == 0 ? file_open(d, cache, path, O_RDWR | O_CREAT | O_EXCL) : -1;
}

static int make_whole(const disk *d, file_cache *cache, const char *path, void *data, size_t length, bool durably) {
    char temporary[FILE_PATH_MAX];
    if ((size_t)snprintf(temporary, sizeof(temporary), "%s.tmp", path) >= sizeof(temporary)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = file_create_anew(d, cache, temporary);
    if (fd < 0) return -1;
    struct iovec part = {.iov_base = data, .iov_len = length};
    int result = file_write(d, fd, &part, 1, 0, NULL);
    if (result == 0 && durably) result = d->fdatasync(d->context, fd);
    while (result == 0 && (result = d->rename(d->context, temporary, path)) != 0 && errno == EINTR) result = 0;
    if (result == 0) return fd;
    int error = errno;
    d->close(d->context, fd);
    d->unlink(d->context, temporary); /* what stays behind is never read */
    errno = error;
    return -1;
}

int file_make_whole(const disk *d, file_cache *cache, const char *path, void *data, size_t length) {
    return make_whole(d, cache, path, data, length, false);
}

int file_make_whole_durably(const disk *d, file_cache *cache, const char *path, void *data, size_t length) {
    return make_whole(d, cache, path, data, length, true);
}

bool file_error_poisons(int error) { return error == EIO || error == EUCLEAN || error == ENODEV || error == ENXIO; }
