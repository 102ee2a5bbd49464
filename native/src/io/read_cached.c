/* See read_cached.h. */
#include "io/read_cached.h"

#include <errno.h>
#include <sys/uio.h>

int read_cached(io *i, int fd, void *data, size_t length, uint64_t position) {
    (void)i;
    struct iovec part = {data, length};
    ssize_t got = preadv2(fd, &part, 1, (off_t)position, RWF_NOWAIT);
    if (got < 0 && errno == EOPNOTSUPP) got = preadv(fd, &part, 1, (off_t)position); /* tmpfs: always in memory */
    return got >= 0 ? (int)got : -errno;
}
