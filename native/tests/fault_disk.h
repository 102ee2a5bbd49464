/* A disk that fails on demand: the real one, with an errno or a short write at the n-th call of an operation, or at the
 * n-th call of all (a site). Counts the calls, so that a test can first learn how many there are and then fail each. */
#ifndef SHARDD_FAULT_DISK_H
#define SHARDD_FAULT_DISK_H
#include "io/disk.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum fault_operation {
    FAULT_OPEN,
    FAULT_CLOSE,
    FAULT_DUPLICATE,
    FAULT_WRITE,
    FAULT_READ,
    FAULT_TRUNCATE,
    FAULT_ALLOCATE,
    FAULT_SYNC,
    FAULT_RENAME,
    FAULT_UNLINK,
    FAULT_MKDIR,
    FAULT_OPERATIONS
} fault_operation;

typedef struct fault_disk {
    disk disk;
    unsigned calls[FAULT_OPERATIONS];
    struct {
        unsigned at;    /* first failing call, from 1; 0: none */
        unsigned times; /* how many calls in a row fail */
        int error;
        size_t accepted; /* writes and reads: the first failing call takes so many bytes, the next ones fail */
    } plan[FAULT_OPERATIONS];
    unsigned all_calls;
    struct {
        unsigned at;   /* the call of all_calls that fails, from 1; 0: none */
        bool for_ever; /* and every later call of the same operation */
        int error;
        size_t accepted;           /* as in plan; the calls of this operation after it fail when for_ever */
        bool lie;                  /* a write says that it wrote everything and wrote nothing */
        fault_operation operation; /* out: what the call was */
    } site;
    unsigned injected;
} fault_disk;

/* Whether this call is the one that fails, or one of those after it. */
static bool fault_is_site(fault_disk *f, fault_operation operation) {
    unsigned call = ++f->all_calls;
    if (f->site.at == 0 || call < f->site.at) return false;
    if (call == f->site.at) f->site.operation = operation;
    return call == f->site.at || (f->site.for_ever && operation == f->site.operation);
}

/* 0: go on; else the errno. `short_bytes` (may be NULL) gets the length of a short write or read. */
static int fault_judge(fault_disk *f, fault_operation operation, size_t *short_bytes) {
    unsigned call = ++f->calls[operation];
    if (fault_is_site(f, operation)) {
        f->injected++;
        if (short_bytes == NULL || f->site.accepted == 0) return f->site.lie ? 0 : f->site.error;
        *short_bytes = f->site.accepted;
        f->site.accepted = 0;
        return 0;
    }
    unsigned at = f->plan[operation].at;
    if (at == 0 || call < at || call >= at + f->plan[operation].times) return 0;
    f->injected++;
    if (short_bytes != NULL && f->plan[operation].accepted > 0) {
        *short_bytes = f->plan[operation].accepted;
        f->plan[operation].accepted = 0;
        return 0;
    }
    return f->plan[operation].error;
}

#define FAULT_OR_RETURN(operation) \
    do { \
        int fault_error = fault_judge(context, operation, NULL); \
        if (fault_error != 0) { \
            errno = fault_error; \
            return -1; \
        } \
    } while (0)

static int fault_open(void *context, const char *path, int flags, mode_t mode) {
    FAULT_OR_RETURN(FAULT_OPEN);
    return disk_system.open(NULL, path, flags, mode);
}

static int fault_close(void *context, int fd) {
    int result = disk_system.close(NULL, fd); /* as on Linux: closed, whatever it says */
    FAULT_OR_RETURN(FAULT_CLOSE);
    return result;
}

static int fault_duplicate(void *context, int fd) {
    FAULT_OR_RETURN(FAULT_DUPLICATE);
    return disk_system.duplicate(NULL, fd);
}

static ssize_t fault_pwritev(void *context, int fd, const struct iovec *parts, int count, off_t position) {
    size_t limit = SIZE_MAX;
    fault_disk *f = context;
    unsigned injected = f->injected;
    int error = fault_judge(context, FAULT_WRITE, &limit);
    if (f->site.lie && f->injected > injected) {
        size_t length = 0;
        for (int i = 0; i < count; i++) length += parts[i].iov_len;
        return (ssize_t)length;
    }
    if (error != 0) {
        errno = error;
        return -1;
    }
    if (limit == SIZE_MAX) return disk_system.pwritev(NULL, fd, parts, count, position);
    size_t total = 0;
    for (int i = 0; i < count && limit > 0; i++) {
        struct iovec part = {.iov_base = parts[i].iov_base,
                             .iov_len = parts[i].iov_len < limit ? parts[i].iov_len : limit};
        ssize_t n = part.iov_len > 0 ? disk_system.pwritev(NULL, fd, &part, 1, position + (off_t)total) : 0;
        if (n < 0) return total > 0 ? (ssize_t)total : -1;
        total += (size_t)n;
        limit -= (size_t)n;
    }
    return (ssize_t)total;
}

static ssize_t fault_pread(void *context, int fd, void *data, size_t length, off_t position) {
    size_t limit = SIZE_MAX;
    int error = fault_judge(context, FAULT_READ, &limit);
    if (error != 0) {
        errno = error;
        return -1;
    }
    return disk_system.pread(NULL, fd, data, length < limit ? length : limit, position);
}

static int fault_ftruncate(void *context, int fd, off_t length) {
    FAULT_OR_RETURN(FAULT_TRUNCATE);
    return disk_system.ftruncate(NULL, fd, length);
}

static int fault_allocate(void *context, int fd, int mode, off_t from, off_t length) {
    FAULT_OR_RETURN(FAULT_ALLOCATE);
    return disk_system.allocate(NULL, fd, mode, from, length);
}

static int fault_fdatasync(void *context, int fd) {
    FAULT_OR_RETURN(FAULT_SYNC);
    return disk_system.fdatasync(NULL, fd);
}

static int fault_rename(void *context, const char *from, const char *to) {
    FAULT_OR_RETURN(FAULT_RENAME);
    return disk_system.rename(NULL, from, to);
}

static int fault_unlink(void *context, const char *path) {
    FAULT_OR_RETURN(FAULT_UNLINK);
    return disk_system.unlink(NULL, path);
}

static int fault_mkdir(void *context, const char *path, mode_t mode) {
    FAULT_OR_RETURN(FAULT_MKDIR);
    return disk_system.mkdir(NULL, path, mode);
}

/* Fresh counters, no plan. `f` must stay where it is. */
static inline void fault_disk_init(fault_disk *f) {
    *f = (fault_disk){.disk = {.open = fault_open,
                               .close = fault_close,
                               .duplicate = fault_duplicate,
                               .pwritev = fault_pwritev,
                               .pread = fault_pread,
                               .ftruncate = fault_ftruncate,
                               .allocate = fault_allocate,
                               .fdatasync = fault_fdatasync,
                               .rename = fault_rename,
                               .unlink = fault_unlink,
                               .mkdir = fault_mkdir,
                               .context = f}};
}

/* Fails calls [at, at + times) of the operation, counted from now on. */
static inline void fault_disk_plan(fault_disk *f, fault_operation operation, unsigned at, unsigned times, int error,
                                   size_t accepted) {
    f->plan[operation].at = at > 0 ? f->calls[operation] + at : 0;
    f->plan[operation].times = times;
    f->plan[operation].error = error;
    f->plan[operation].accepted = accepted;
}

static inline void fault_disk_heal(fault_disk *f) {
    for (int i = 0; i < FAULT_OPERATIONS; i++) f->plan[i].at = 0;
    f->site.at = 0;
}
/* In the place of fdatasync: without the device, a sync that may is done. */
static inline int fault_quick_sync(void *context, int fd) {
    (void)fd;
    int error = fault_judge(context, FAULT_SYNC, NULL);
    errno = error;
    return error != 0 ? -1 : 0;
}
#endif
