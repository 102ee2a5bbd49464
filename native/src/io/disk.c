/* The real disk behind the seam: plain system calls, errno as they leave it. */
#include "io/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int system_open(void *context, const char *path, int flags, mode_t mode) {
    (void)context;
    return open(path, flags | O_CLOEXEC, mode);
}

static int system_close(void *context, int fd) {
    (void)context;
    return close(fd);
}

static int system_duplicate(void *context, int fd) {
    (void)context;
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static ssize_t system_pwritev(void *context, int fd, const struct iovec *parts, int count, off_t position) {
    (void)context;
    return pwritev(fd, parts, count, position);
}

static ssize_t system_pread(void *context, int fd, void *data, size_t length, off_t position) {
    (void)context;
    return pread(fd, data, length, position);
}

static int system_ftruncate(void *context, int fd, off_t length) {
    (void)context;
    return ftruncate(fd, length);
}

static int system_allocate(void *context, int fd, int mode, off_t from, off_t length) {
    (void)context;
    return fallocate(fd, mode, from, length);
}

static int system_fdatasync(void *context, int fd) {
    (void)context;
    return fdatasync(fd);
}

static int system_rename(void *context, const char *from, const char *to) {
    (void)context;
    return rename(from, to);
}

static int system_unlink(void *context, const char *path) {
    (void)context;
    return unlink(path);
}

static int system_mkdir(void *context, const char *path, mode_t mode) {
    (void)context;
    return mkdir(path, mode);
}

const disk disk_system = {
    .open = system_open,
    .close = system_close,
    .duplicate = system_duplicate,
    .pwritev = system_pwritev,
    .pread = system_pread,
    .ftruncate = system_ftruncate,
    .allocate = system_allocate,
    .fdatasync = system_fdatasync,
    .rename = system_rename,
    .unlink = system_unlink,
    .mkdir = system_mkdir,
    .context = NULL,
};
