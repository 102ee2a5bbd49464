/* A large batch on its way (partition_append_part). What is written of it stands behind the records of the active
 * segment, like the bytes of a failed write: polls do not see it, and an append of something else cuts it. */
#ifndef SHARDD_PARTITION_LARGE_APPEND_H
#define SHARDD_PARTITION_LARGE_APPEND_H
#include "log/record.h"

typedef struct large_append {
    const uint8_t *messages;
    uint64_t segment, log_end; /* where it was begun: start of the active segment, its bytes, the next offset */
    uint64_t first_offset, timestamp;
    uint64_t assigned, written; /* bytes */
    uint32_t records;           /* assigned */
    index_entry *entries;       /* of these records */
    uint32_t cuts;              /* of the space when it was begun: another number, and its bytes may be gone */
    bool anew;                  /* it was begun a second time */
    uint32_t status;            /* why a part could not be written */
} large_append;
#endif
