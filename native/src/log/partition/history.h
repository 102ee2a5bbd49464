/* The segments of a partition, the newest entries of its index, and the end of the log. */
#ifndef SHARDD_PARTITION_HISTORY_H
#define SHARDD_PARTITION_HISTORY_H
#include "log/index_cache.h"
#include "log/segment.h"
#include "log/segment_reader.h"

typedef struct history {
    segment_set segments;
    index_cache index; /* of the active segment */
    uint64_t next_offset;
    uint64_t last_timestamp; /* of the last record, or the birth of the active segment; never falls */
    uint64_t suspect;        /* start of the segment whose index was last seen to contradict its log */
    struct {                 /* what the running poll or window misses; length 0: nothing */
        segment_want want;
        uint64_t segment; /* its start */
    } missing;
} history;
#endif
