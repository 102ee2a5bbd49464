/* Recovery of one partition whose directory needs no decision: everything in it is known, its manifests are whole, and
 * behind the last checkpoint there are valid records up to the end of the file, or to zeros that were allocated ahead.
 * That is nearly every partition of nearly every start, so it takes a few system calls. Whatever is not so is left to
 * shardd/log/recovery.py, which knows all rules and tells the operator; nothing has been changed then but such zeros,
 * which may be cut off, and indexes, which may be made anew, at any time. */
#ifndef SHARDD_RECOVER_H
#define SHARDD_RECOVER_H
#include "log/partition.h"

typedef struct recovered_partition {
    segment_info *segments;
    bool *sealed; /* by segment: its manifest says so */
    size_t segments_count;
    uint32_t *groups; /* that have a stored offset; the partition reads the offsets itself */
    size_t groups_count;
    uint64_t scanned_bytes;
    uint64_t log_start;   /* the highest that a manifest knows */
    uint64_t durable_end; /* the last checkpoint: everything below it was on the device; 0: there is none */
} recovered_partition;

/* True: `out` holds all that partition_open needs, recover_free() frees it. False: it needs more care. `boot`: of this
 * machine. */
bool recover_partition(const char *directory, uint64_t incarnation, const uint8_t boot[PRODUCERS_BOOT_BYTES],
                       recovered_partition *out);
void recover_free(recovered_partition *found);
#endif
