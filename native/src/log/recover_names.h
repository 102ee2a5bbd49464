/* The names in a partition's directory, as a recovery reads them. */
#ifndef SHARDD_RECOVER_NAMES_H
#define SHARDD_RECOVER_NAMES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All names of a directory but "." and "..", in no order. */
typedef struct names {
    int directory;
    bool failed;
    size_t at, length;
    _Alignas(8) char buffer[8192];
} names;
void names_begin(names *list, int directory);
const char *names_next(names *list); /* NULL: the end, or failed; valid until the next call */

typedef enum name_kind {
    NAME_UNKNOWN,
    NAME_LOG,
    NAME_BLOCKS,
    NAME_INDEX,
    NAME_MANIFEST,
    NAME_TORN,
    NAME_TEMPORARY
} name_kind;
/* What a file beside the segments is called after; `start` for what belongs to one. */
name_kind names_parse_segment(const char *name, uint64_t *start);

typedef struct partition_names {
    uint64_t *starts; /* of the logs, in whatever layout, ascending */
    size_t count;
    bool manifest_ahead; /* a manifest without a log behind all logs, at `ahead` */
    uint64_t ahead;
    bool imported, table, producers;
    bool offsets; /* those of format version 1 */
} partition_names;
/* False when there is a name that is not of a healthy partition: unknown, an index without a log and the like. To be
 * freed in both cases. */
bool partition_names_read(partition_names *out, int directory);
void partition_names_free(partition_names *found);
#endif
