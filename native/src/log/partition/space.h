/* Space of the active log behind its records.
 *
 * At `durable` the file grows ahead of its records with zeros, so that a sync need not commit a new length
 * (docs/adr/0007-levels.md). At the other levels blocks are reserved behind its end when large batches come: the file
 * keeps its length, and the kernel need not find a block for each page that is written (docs/adr/0104). A file system
 * that refuses costs only speed. */
#ifndef SHARDD_PARTITION_SPACE_H
#define SHARDD_PARTITION_SPACE_H
#include <stdbool.h>
#include <stdint.h>

typedef struct space {
    uint64_t reserved_end; /* the active .log has blocks up to here; 0: not known */
    uint64_t stale_end;    /* the active .log has bytes behind its records up to here; 0: it has no such bytes */
    bool stale_zeroed;     /* these bytes are zero, hence no records: allocated ahead, or left by a failed write */
    bool allocate_ahead;   /* at `durable`, until the file system refuses; again with the next segment */
    bool reserve_ahead;    /* the same at the other levels */
    struct room *room;
} space;
#endif
