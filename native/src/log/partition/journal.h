/* The journal of level `memory`: acknowledged records that the file does not have yet, as they will stand in it. The
 * operations write it in front of the batch that would fill it, before a poll that reaches it, by the message saver, at
 * a flush, at a roll and at the close. While it cannot be written it stays, and batches that do not fit are refused. */
#ifndef SHARDD_PARTITION_JOURNAL_H
#define SHARDD_PARTITION_JOURNAL_H
#include "log/partition.h"

typedef struct journal {
    uint8_t *bytes; /* the newest records of the active segment; the file ends before them */
    size_t capacity;
    uint64_t length, records; /* length: in bytes */
    uint64_t bytes_max, records_max;
    journal_memory *memory;
} journal;
#endif
