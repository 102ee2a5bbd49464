/* Space of the active log before its records are there.
 *
 * At `durable` the file grows ahead of its records with zeros, so that a sync need not commit a new length
 * (docs/adr/0007-levels.md). At the other levels blocks are reserved behind its end when large batches come: the file
 * keeps its length, and the kernel need not find a block for each page that is written (docs/adr/0104). A file system
 * that refuses costs only speed. */
#include "log/partition/inside.h"

#include "log/room.h"

#include <errno.h>
#include <linux/falloc.h>

static bool allocate(partition *p, int fd, int mode, uint64_t from, uint64_t end) {
    int result;
    do result = p->files.disk->allocate(p->files.disk->context, fd, mode, (off_t)from, (off_t)(end - from));
    while (result != 0 && errno == EINTR);
    return result == 0;
}

static void grow(partition *p, const segment *s, int fd, uint64_t end) {
    uint64_t ahead = end + ALLOCATE_AHEAD_BYTES;
    if (ahead > p->roll.size_bytes) ahead = p->roll.size_bytes;
    if (end <= p->space.stale_end || end >= ahead) return;
    p->space.allocate_ahead = allocate(p, fd, 0, p->space.stale_end > s->log_bytes ? p->space.stale_end : s->log_bytes,
                                       ahead);
    p->space.stale_end = ahead; /* a failed call may have made a part of it */
    p->space.stale_zeroed = true;
}

/* As much as is there already, RESERVE_BYTES_MAX at most: what has little gets nothing. */
static void reserve(partition *p, const segment *s, int fd, uint64_t end) {
    uint64_t step = s->log_bytes < RESERVE_BYTES_MAX ? s->log_bytes : RESERVE_BYTES_MAX;
    uint64_t until = end + step > p->roll.size_bytes ? p->roll.size_bytes : end + step;
    if (end <= p->space.reserved_end || step < RESERVE_BYTES_MIN || until <= end) return;
    uint64_t from = p->space.reserved_end > s->log_bytes ? p->space.reserved_end : s->log_bytes;
    if (p->space.room != NULL && !room_take_ahead(p->space.room, until - from)) return; /* others need what is left */
    p->space.reserve_ahead = allocate(p, fd, FALLOC_FL_KEEP_SIZE, from, until);
    p->space.reserved_end = until;
}

void partition_make_space(partition *p, const segment *s, int fd, uint64_t bytes) {
    if (p->space.allocate_ahead) grow(p, s, fd, s->log_bytes + bytes);
    else if (p->space.reserve_ahead && bytes >= RESERVE_BATCH_BYTES) reserve(p, s, fd, s->log_bytes + bytes);
}

void partition_space_begins(partition *p) {
    p->space.allocate_ahead = p->level == LEVEL_DURABLE && p->history.segments.count > 0;
    p->space.reserve_ahead = p->level != LEVEL_DURABLE;
    p->space.reserved_end = 0;
}

bool partition_has_refused(const partition *p) {
    bool refused = p->space.stale_end > 0 && !p->space.stale_zeroed && (p->large == NULL || p->state != 0);
    return refused && p->history.segments.count > 0 && !p->closed;
}
