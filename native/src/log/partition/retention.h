/* Limits of a partition, and what holds them back. */
#ifndef SHARDD_PARTITION_RETENTION_H
#define SHARDD_PARTITION_RETENTION_H
#include "log/partition.h"

typedef struct retention {
    partition_limits limits;
    uint64_t expires_at_us; /* no message expires before; UINT64_MAX: there is no expiry */
    uint64_t settled;       /* acknowledged more than a second ago */
    struct {
        uint64_t end; /* what was acknowledged then */
        int64_t at_us;
    } settling[4];   /* looks of the last second */
    bool held;       /* stored offsets hold back what has expired */
    bool limit_held; /* and what a size or a count wants to go, since the last step */
    uint64_t leased; /* files with messages from there on stay for a reader */
} retention;
#endif
