/* The stored offsets of consumers. */
#ifndef SHARDD_PARTITION_STORED_OFFSETS_H
#define SHARDD_PARTITION_STORED_OFFSETS_H
#include "log/offsets.h"
#include "log/partition/side.h"

typedef struct stored_offsets {
    offsets table;
    partition_side side;
    uint64_t opened_end; /* of the log when it was opened: no stored offset of that time is above it */
} stored_offsets;
#endif
