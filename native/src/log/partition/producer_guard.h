/* What a partition knows of the producers whose batches it stores once. */
#ifndef SHARDD_PARTITION_PRODUCER_GUARD_H
#define SHARDD_PARTITION_PRODUCER_GUARD_H
#include "log/partition/side.h"
#include "log/producers.h"

typedef struct producer_guard {
    producers *known; /* NULL: no producer has sent a batch */
    producer_memory *memory;
    partition_side side;
    bool unproduced; /* the partition had no record when it was opened */
    bool covering;   /* the running sync brings log and producers to the device */
} producer_guard;
#endif
