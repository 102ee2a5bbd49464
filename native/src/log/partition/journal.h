/* The journal of level `memory`: acknowledged records that the file does not have yet, as they will stand in it. The
 * operations write it in front of the batch that would fill it, before a poll that reaches it, by the message saver, at
 * a flush, at a roll and at the close. While it cannot be written it stays, and batches that do not fit are refused. */
#ifndef SHARDD_PARTITION_JOURNAL_H
#define SHARDD_PARTITION_JOURNAL_H
#include "log/partition.h"

#include <sys/uio.h>

typedef struct journal {
    uint8_t *bytes; /* the newest records of the active segment; the file ends before them */
    size_t capacity;
    uint64_t length, records; /* length: in bytes */
    uint64_t bytes_max, records_max;
    journal_memory *memory;
} journal;

/* `memory` may be NULL: blocks come from malloc. With maxima of 0 the journal takes nothing. */
void journal_open(journal *j, journal_memory *memory, uint64_t bytes_max, uint64_t records_max);
/* Copies a group. False: the journal would be full, or there is no memory; it goes to the file with this group. */
bool journal_take(journal *j, const struct iovec *batches, size_t count, uint64_t bytes, uint64_t records);
/* Gives the block back: its records are in the file, or go with the partition. */
void journal_free(journal *j);

static inline bool journal_is_empty(const journal *j) { return j->length == 0; }
static inline uint64_t journal_bytes(const journal *j) { return j->length; }
static inline uint64_t journal_records(const journal *j) { return j->records; }
/* Its records, for the write in front of a group. */
static inline struct iovec journal_part(const journal *j) {
    return (struct iovec){.iov_base = j->bytes, .iov_len = j->length};
}
/* The file has its records. The block stays. */
static inline void journal_written(journal *j) { j->length = j->records = 0; }
#endif
