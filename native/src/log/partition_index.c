/* Index entries of the active segment on their way into its .index file. */
#include "log/partition_internal.h"

#include "log/partition_files.h"

#include <errno.h>

uint32_t partition_index_flush(partition *p) {
    index_cache *c = &p->index;
    uint32_t waiting = index_cache_waiting(c);
    if (waiting == 0) return 0;
    if (p->state != 0) /* no more writes; the entries stay readable here, a recovery makes the index anew */
        return STATUS_CANNOT_SAVE_INDEX_TO_SEGMENT;
    segment *s = segment_active(&p->segments);
    int fd = segment_fd(&p->segments, s, SEGMENT_INDEX);
    struct iovec part = {.iov_base = c->entries + (c->flushed - c->first),
                         .iov_len = (size_t)waiting * INDEX_ENTRY_SIZE};
    if (fd >= 0) {
        s->index_dirty = true;
        partition_dirty_active(p);
    }
    if (fd < 0 || file_write(p->disk, fd, &part, 1, c->flushed * INDEX_ENTRY_SIZE, NULL) != 0) {
        if (file_error_poisons(errno)) partition_poison(p, STATUS_CANNOT_SAVE_INDEX_TO_SEGMENT);
        return STATUS_CANNOT_SAVE_INDEX_TO_SEGMENT; /* all of them wait on; the next flush writes over what arrived */
    }
    c->flushed += waiting;
    index_cache_trim(c, INDEX_CACHE_MAX);
    return 0;
}
