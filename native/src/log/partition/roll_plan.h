/* When the active segment is sealed and the next one is made. */
#ifndef SHARDD_PARTITION_ROLL_PLAN_H
#define SHARDD_PARTITION_ROLL_PLAN_H
#include <stdbool.h>
#include <stdint.h>

typedef struct roll_plan {
    uint64_t size_bytes;    /* at which segments are sealed, */
    uint64_t default_bytes; /* where the topic has no limit of its own */
    uint64_t at_us;         /* when the active segment is too old to grow; UINT64_MAX: never, or it is empty */
    bool pending;           /* the active segment is sealed, the next one could not be made yet */
} roll_plan;
#endif
