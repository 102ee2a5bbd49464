/* A large batch on its way (partition_append_part). What is written of it stands behind the records of the active
 * segment, like the bytes of a failed write: polls do not see it, and an append of something else cuts it. */
#ifndef SHARDD_PARTITION_LARGE_APPEND_H
#define SHARDD_PARTITION_LARGE_APPEND_H
#include "log/partition.h"

/* Where a log ends. What is written of a batch stands behind it as long as nothing of this changes. */
typedef struct log_tail {
    uint64_t segment, bytes, next_offset; /* start of the active segment, its bytes */
    uint32_t cuts;                        /* space_cuts() */
} log_tail;

typedef struct large_append {
    const uint8_t *messages;
    log_tail tail; /* where it was begun */
    uint64_t timestamp;
    uint64_t assigned, written; /* bytes */
    uint32_t records;           /* assigned */
    index_entry *entries;       /* of these records */
    bool anew;                  /* it was begun a second time */
    uint32_t status;            /* why a part could not be written */
} large_append;

/* NULL: no memory. */
large_append *large_append_begin(const append_batch *b, log_tail tail, uint64_t timestamp);
void large_append_free(large_append *a);
/* Whether it is this batch and may be begun once more, with `large_append_is_anew`. */
bool large_append_may_begin_anew(const large_append *a, const append_batch *b);
/* What is written of the batch stands where its next part has to follow. */
bool large_append_stands(const large_append *a, const append_batch *b, log_tail tail, uint64_t last_timestamp);
/* Assigns whole records up to the end of the next part; one that is longer, too. `count`: of the active segment. */
void large_append_assign(large_append *a, const append_batch *b, id_source *ids, uint64_t count);
/* The next part, and where it goes in the log. */
struct iovec large_append_part(const large_append *a, const append_batch *b, uint64_t *position);
/* Makes the answer of a batch that is written; its index entries go to `entries`. The timestamp of its last message. */
uint64_t large_append_end(const large_append *a, append_batch *b, index_entry *entries);

static inline bool large_append_is_of(const large_append *a, const append_batch *b) {
    return a->messages == b->messages;
}
static inline void large_append_is_anew(large_append *a) { a->anew = true; }
static inline void large_append_failed(large_append *a, uint32_t status) { a->status = status; }
static inline uint32_t large_append_status(const large_append *a) { return a->status; }
static inline uint64_t large_append_timestamp(const large_append *a) { return a->timestamp; }
static inline uint64_t large_append_written(const large_append *a) { return a->written; }
static inline void large_append_wrote(large_append *a, uint64_t length) { a->written += length; }
#endif
