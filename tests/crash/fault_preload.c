/* Between a server and libc (LD_PRELOAD): lets the n-th call of one kind on files whose path contains a text (or ends
 * with it, where a $ follows) fail, or the process die at it. A shared file, named by FAULT_CONTROL, says which;
 * tests/crash/fault_control.py writes it. With reads armed nothing counts as cached, so that the engine's threads or
 * its ring read. What goes through a ring passes no call of libc: there the process can only die, when its entry is
 * submitted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* LIE: a write that says that it wrote everything and wrote nothing. DIE: before the call; AFTER it (syncs, renames,
 * what is submitted to a ring); TORN: in the middle of a write. HANG: until nothing is armed any more, then it does
 * what was asked. */
enum { SHORT = 1, LIE, DIE, TORN, HANG, AFTER };
enum { OP_OPEN = 1, OP_WRITE, OP_READ, OP_SYNC, OP_TRUNCATE, OP_ALLOCATE, OP_RENAME, OP_UNLINK, OP_MKDIR };

typedef struct control {
    _Atomic uint32_t op, at, times, error, shorten, calls, injected, sector, ring;
    char match[220];
    char failed[256]; /* out: the path of the last call that failed */
} control;
static control *c;
/* Of the call under way: the process dies after it; it submits to a ring. */
static _Thread_local bool is_last, on_ring;

__attribute__((constructor)) static void attach(void) {
    const char *name = getenv("FAULT_CONTROL");
    int fd = name != NULL ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd >= 0 ? mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0) syscall(SYS_close, fd);
    c = at != MAP_FAILED ? at : NULL;
}

static int matches(const char *path) {
    size_t length = strlen(c->match), all = strlen(path);
    if (length == 0 || c->match[length - 1] != '$') return strstr(path, c->match) != NULL;
    return all >= length - 1 && memcmp(path + all - (length - 1), c->match, length - 1) == 0;
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Whether this call is to fail: then errno is set. */
static int fails(const char *path) {
    if (!matches(path)) return 0;
    uint32_t call = atomic_fetch_add(&c->calls, 1) + 1, at = c->at;
    if (at == 0 || call < at || call - at >= c->times) return 0;
    atomic_fetch_add(&c->injected, 1);
    c->ring = on_ring;
    snprintf(c->failed, sizeof(c->failed), "%s", path + (strlen(path) > 255 ? strlen(path) - 255 : 0));
    if (c->shorten == DIE) die();
    if (c->shorten == HANG) {
        while (c->op != 0) usleep(10000);
        return 0;
    }
    if (c->shorten == AFTER) {
        is_last = true;
        return 0;
    }
    errno = (int)c->error;
    return 1;
}

static int done(long result) {
    if (is_last) die();
    return (int)result;
}

static int path_fails(uint32_t op, const char *path) { return c != NULL && c->op == op && fails(path); }

/* False: it has no name. */
static bool name_of(int fd, char *path, size_t room) {
    char link[32];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, room - 1);
    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static int file_fails(uint32_t op, int fd) {
    char path[4096];
    return c != NULL && c->op == op && name_of(fd, path, sizeof path) && fails(path);
}

/* A read, only of the bytes around `sector` - 1 where that is not 0. */
static int read_fails(int fd, size_t length, off_t position) {
    if (c == NULL || c->op != OP_READ) return 0;
    uint32_t sector = c->sector;
    if (sector != 0 && ((off_t)sector - 1 < position || (off_t)sector - 1 >= position + (off_t)length)) return 0;
    return file_fails(OP_READ, fd);
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

static mode_t mode_of(int flags, va_list rest) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    if (path_fails(OP_OPEN, path)) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int open64(const char *path, int flags, ...) __attribute__((alias("open")));

/* A name in a directory that is open (a recovery's): the whole path tells which partition it is of. */
int openat(int directory, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    if (c != NULL && c->op == OP_OPEN && directory != AT_FDCWD && path[0] != '/') {
        char whole[4096 + 256];
        if (name_of(directory, whole, 4096)) {
            size_t length = strlen(whole);
            snprintf(whole + length, sizeof(whole) - length, "/%.200s", path);
            if (fails(whole)) return -1;
        }
    } else if (path_fails(OP_OPEN, path)) {
        return -1;
    }
    return (int)syscall(SYS_openat, directory, path, flags | O_LARGEFILE, mode);
}
int openat64(int directory, const char *path, int flags, ...) __attribute__((alias("openat")));

static ssize_t shortened(int fd, const void *data, size_t length, off_t position, size_t all) {
    if (c->shorten == LIE) return (ssize_t)all;
    ssize_t written = (ssize_t)syscall(SYS_pwrite64, fd, data, length > 1 ? length / 2 : length, position);
    if (c->shorten == TORN) die();
    return written;
}

/* Where a file is written one piece after the other: files of blocks, manifests that get their names later. */
ssize_t write(int fd, const void *data, size_t length) {
    bool whole = !file_fails(OP_WRITE, fd);
    if (!whole && (!c->shorten || c->shorten == LIE)) return c->shorten ? (ssize_t)length : -1;
    ssize_t written = (ssize_t)syscall(SYS_write, fd, data, whole || length < 2 ? length : length / 2);
    if (!whole && c->shorten == TORN) die();
    return written;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t position) {
    size_t all = 0;
    for (int i = 0; i < count; i++) all += parts[i].iov_len;
    if (file_fails(OP_WRITE, fd))
        return c->shorten ? shortened(fd, parts[0].iov_base, parts[0].iov_len, position, all) : -1;
    return REAL(pwritev)(fd, parts, count, position);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t position) __attribute__((alias("pwritev")));

ssize_t pwrite(int fd, const void *data, size_t length, off_t position) {
    if (file_fails(OP_WRITE, fd)) return c->shorten ? shortened(fd, data, length, position, length) : -1;
    return (ssize_t)syscall(SYS_pwrite64, fd, data, length, position);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off_t position) __attribute__((alias("pwrite")));

ssize_t pread(int fd, void *data, size_t length, off_t position) {
    if (read_fails(fd, length, position)) {
        if (!c->shorten) return -1;
        length = length > 1 ? length / 2 : length;
    }
    return (ssize_t)syscall(SYS_pread64, fd, data, length, position);
}
ssize_t pread64(int fd, void *data, size_t length, off_t position) __attribute__((alias("pread")));

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t position) {
    size_t all = 0;
    for (int i = 0; i < count; i++) all += parts[i].iov_len;
    if (read_fails(fd, all, position) && !c->shorten) return -1;
    return REAL(preadv)(fd, parts, count, position);
}
ssize_t preadv64(int fd, const struct iovec *parts, int count, off_t position) __attribute__((alias("preadv")));

ssize_t read(int fd, void *data, size_t length) {
    if (read_fails(fd, length, (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR))) {
        if (!c->shorten) return -1;
        length = length > 1 ? length / 2 : length;
    }
    return (ssize_t)syscall(SYS_read, fd, data, length);
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t position, int flags) {
    if (c != NULL && c->op == OP_READ && (flags & RWF_NOWAIT) != 0) {
        errno = EAGAIN;
        return -1;
    }
    size_t all = 0;
    for (int i = 0; i < count; i++) all += parts[i].iov_len;
    if (read_fails(fd, all, position) && !c->shorten) return -1;
    return REAL(preadv2)(fd, parts, count, position, flags);
}
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t position, int flags)
    __attribute__((alias("preadv2")));

int fdatasync(int fd) { return file_fails(OP_SYNC, fd) ? -1 : done(syscall(SYS_fdatasync, fd)); }
int fsync(int fd) { return file_fails(OP_SYNC, fd) ? -1 : done(syscall(SYS_fsync, fd)); }

int ftruncate(int fd, off_t length) {
    return file_fails(OP_TRUNCATE, fd) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}
int ftruncate64(int fd, off_t length) __attribute__((alias("ftruncate")));

int fallocate(int fd, int mode, off_t from, off_t length) {
    return file_fails(OP_ALLOCATE, fd) ? -1 : (int)syscall(SYS_fallocate, fd, mode, from, length);
}
int fallocate64(int fd, int mode, off_t from, off_t length) __attribute__((alias("fallocate")));

int rename(const char *from, const char *to) {
    return path_fails(OP_RENAME, from) ? -1 : done(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

int unlink(const char *path) {
    return path_fails(OP_UNLINK, path) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int mkdir(const char *path, mode_t mode) {
    return path_fails(OP_MKDIR, path) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* ---- a ring: what the library is about to submit ---- */

static uint32_t operation_of(uint8_t opcode) {
    switch (opcode) {
    case IORING_OP_FSYNC: return OP_SYNC;
    case IORING_OP_READ:
    case IORING_OP_READV: return OP_READ;
    case IORING_OP_WRITE:
    case IORING_OP_WRITEV: return OP_WRITE;
    default: return 0;
    }
}

/* Dies, or tells to do so when the kernel has the entries. */
static void meet(const struct io_uring *ring) {
    char path[4096];
    if (c == NULL || c->op == 0 || (c->shorten != DIE && c->shorten != AFTER)) return;
    on_ring = true;
    for (unsigned at = ring->sq.sqe_head; at != ring->sq.sqe_tail; at++) {
        const struct io_uring_sqe *entry = &ring->sq.sqes[at & ring->sq.ring_mask];
        if (operation_of(entry->opcode) == c->op && name_of(entry->fd, path, sizeof path)) fails(path);
    }
    on_ring = false;
}

/* The library is no dependency of the program that is started, so it is not among the next ones. */
static void *of_library(const char *name) {
    void *library = dlopen("liburing.so.2", RTLD_NOW | RTLD_NOLOAD), *found = library ? dlsym(library, name) : NULL;
    if (found == NULL) abort();
    return found;
}

int io_uring_submit(struct io_uring *ring) {
    static __typeof__(io_uring_submit) *real;
    if (real == NULL) real = of_library("io_uring_submit");
    meet(ring);
    return done(real(ring));
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned wanted) {
    static __typeof__(io_uring_submit_and_wait) *real;
    if (real == NULL) real = of_library("io_uring_submit_and_wait");
    meet(ring);
    return done(real(ring, is_last ? 0 : wanted)); /* who dies does not wait for the kernel */
}

int io_uring_submit_and_get_events(struct io_uring *ring) {
    static __typeof__(io_uring_submit_and_get_events) *real;
    if (real == NULL) real = of_library("io_uring_submit_and_get_events");
    meet(ring);
    return done(real(ring));
}
