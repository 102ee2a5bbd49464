/* The disk seam of the native core: every file operation of the log goes through this table, so that tests can
 * inject errno values, short writes and crashes at each call site. `disk_system` is the real one. */
#ifndef SHARDD_DISK_H
#define SHARDD_DISK_H
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef struct disk {
    int (*open)(void *context, const char *path, int flags, mode_t mode);
    int (*close)(void *context, int fd);
    int (*duplicate)(void *context, int fd);
    ssize_t (*pwritev)(void *context, int fd, const struct iovec *parts, int count, off_t position);
    ssize_t (*pread)(void *context, int fd, void *data, size_t length, off_t position);
    int (*ftruncate)(void *context, int fd, off_t length);
    /* Space that reads as zeros. `mode` as of fallocate: 0, the file grows; FALLOC_FL_KEEP_SIZE, it does not. */
    int (*allocate)(void *context, int fd, int mode, off_t from, off_t length);
    int (*fdatasync)(void *context, int fd);
    int (*rename)(void *context, const char *from, const char *to);
    int (*unlink)(void *context, const char *path);
    int (*mkdir)(void *context, const char *path, mode_t mode); /* EEXIST is success for the caller */
    void *context;
} disk;
extern const disk disk_system;
#endif
