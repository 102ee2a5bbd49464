/* A file beside the log, of stored offsets or of producers: it never decides whether the log can be read. A file that
 * cannot be read costs its own kind, until it can be (docs/adr/0108-side-files.md). */
#ifndef SHARDD_PARTITION_SIDE_H
#define SHARDD_PARTITION_SIDE_H
#include <stdbool.h>
#include <stdint.h>

typedef struct partition_side {
    int error;       /* why the file could not be read, errno; 0: it could */
    int64_t next_us; /* when it is tried again, at the earliest */
} partition_side;

/* Whether it is time to try once more what has failed. */
bool side_is_due(partition_side *side);
void side_failed(partition_side *side, int error);
/* Room, descriptors, memory: an error that passes by itself. */
bool side_passes(int error);
/* Not made by this server, or not for it: never moved. */
bool side_is_foreign(int error);
#endif
