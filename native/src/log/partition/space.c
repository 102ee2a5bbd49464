/* See space.h. */
#include "log/partition/space.h"

#include "log/room.h"

#include <errno.h>
#include <linux/falloc.h>

static const uint8_t zeros[65536];

void space_begins(space *sp, bool durable, bool has_segment) {
    sp->allocate_ahead = durable && has_segment;
    sp->reserve_ahead = !durable;
    sp->reserved_end = 0;
}

static bool allocate(const disk *d, int fd, int mode, uint64_t from, uint64_t end) {
    int result;
    do result = d->allocate(d->context, fd, mode, (off_t)from, (off_t)(end - from));
    while (result != 0 && errno == EINTR);
    return result == 0;
}

static void grow(space *sp, const disk *d, int fd, uint64_t log_bytes, uint64_t end, uint64_t segment_bytes) {
    uint64_t ahead = end + ALLOCATE_AHEAD_BYTES, from = sp->stale_end > log_bytes ? sp->stale_end : log_bytes;
    if (ahead > segment_bytes) ahead = segment_bytes;
    if (end <= sp->stale_end || end >= ahead) return;
    sp->allocate_ahead = allocate(d, fd, 0, from, ahead);
    sp->stale_end = ahead; /* a failed call may have made a part of it */
    sp->stale_zeroed = true;
}

/* As much as is there already, RESERVE_BYTES_MAX at most: what has little gets nothing. */
static void reserve(space *sp, const disk *d, int fd, uint64_t log_bytes, uint64_t end, uint64_t segment_bytes) {
    uint64_t step = log_bytes < RESERVE_BYTES_MAX ? log_bytes : RESERVE_BYTES_MAX;
    uint64_t until = end + step > segment_bytes ? segment_bytes : end + step;
    if (end <= sp->reserved_end || step < RESERVE_BYTES_MIN || until <= end) return;
    uint64_t from = sp->reserved_end > log_bytes ? sp->reserved_end : log_bytes;
    if (sp->room != NULL && !room_take_ahead(sp->room, until - from)) return; /* others need what is left */
    sp->reserve_ahead = allocate(d, fd, FALLOC_FL_KEEP_SIZE, from, until);
    sp->reserved_end = until;
}

void space_make(space *sp, const disk *d, int fd, uint64_t log_bytes, uint64_t bytes, uint64_t segment_bytes) {
    uint64_t end = log_bytes + bytes;
    if (sp->allocate_ahead) grow(sp, d, fd, log_bytes, end, segment_bytes);
    else if (sp->reserve_ahead && bytes >= RESERVE_BATCH_BYTES) reserve(sp, d, fd, log_bytes, end, segment_bytes);
}

int space_cut(space *sp, const disk *d, int fd, uint64_t file_end) {
    sp->cuts++;
    if (file_truncate(d, fd, file_end) != 0) return errno;
    sp->stale_end = sp->reserved_end = 0;
    return 0;
}

int space_cut_back(space *sp, const disk *d, int fd, uint64_t file_end) {
    sp->cuts++;
    if (file_truncate(d, fd, file_end) == 0) {
        sp->stale_end = 0;
        return 0;
    }
    for (uint64_t at = file_end; !sp->stale_zeroed && at < sp->stale_end;) {
        size_t length = sp->stale_end - at < sizeof zeros ? (size_t)(sp->stale_end - at) : sizeof zeros;
        struct iovec part = {.iov_base = (void *)(uintptr_t)zeros, .iov_len = length};
        if (file_write(d, fd, &part, 1, at, NULL) != 0) return errno;
        at += length;
    }
    sp->stale_zeroed = true;
    return 0;
}

void space_give_back(space *sp, const disk *d, int fd, uint64_t file_end) {
    sp->cuts++;                           /* what is written of a large batch goes with the blocks */
    (void)file_truncate(d, fd, file_end); /* its length stays: nothing depends on it */
}
