/* The segments of one partition and their open files.
 *
 * Descriptors are opened when they are needed and closed least recently used first: at most SEGMENT_FILES_PER_PARTITION
 * pairs of one partition and the worker's budget of pairs (file_cache.h). Pinned pairs (a cursor reads them) and pairs
 * not synced since their last write (their descriptor may hold the only report of a failed write-back) stay open above
 * the limits.
 * Single-threaded, as partition.h.
 */
#ifndef SHARDD_SEGMENT_H
#define SHARDD_SEGMENT_H
#include "io/disk.h"
#include "log/file_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEGMENT_FILES_PER_PARTITION 64u

typedef struct segment_files segment_files;
typedef struct segment_layout segment_layout; /* segment_reader.h */

typedef struct segment {
    const segment_layout *layout; /* how it is read */
    uint64_t start_offset;
    uint64_t log_bytes; /* acknowledged bytes of the plain log: nothing beyond them is ever read */
    uint64_t count;     /* records, and entries of the index */
    uint64_t absent;    /* offsets without a record, which the manifest explains; 0: dense, entry k is start + k */
    uint64_t first_timestamp, last_timestamp; /* an empty segment carries those of the record before it */
    uint64_t counted_us;                      /* 0, or with times ahead of the believed clock what that said when the
                                                 segment was sealed; of the active one, when it was begun */
    segment_files *files;                     /* NULL: not open */
    bool log_dirty, index_dirty;              /* written since the last sync */
    bool manifest_dirty;                      /* not synced since it was made */
    uint64_t unpacked;                        /* its number in the cache of unpacked blocks; 0: none yet */
    uint64_t pages;                           /* likewise, in that of pages of indexes */
} segment;

typedef struct segment_set { /* ascending by start offset, the last one is active */
    segment *items;
    uint32_t count, capacity;
    uint32_t open;             /* pairs */
    bool read_only;            /* the active segment too */
    bool closed;               /* pairs are closed as soon as nobody pins them */
    bool sparse;               /* a segment has, or had, offsets without a record */
    struct segment_wait *asks; /* who asks now, and has waited perhaps; NULL: nobody that waits */
    const disk *disk;
    file_cache *files; /* of the worker; outlives the set */
    const char *directory;
} segment_set;

/* Manifests are opened when they are written, never kept open. */
typedef enum segment_file { SEGMENT_LOG, SEGMENT_INDEX, SEGMENT_MANIFEST } segment_file;
#define SEGMENT_FILES_OPEN 2 /* log and index */

static inline uint64_t segment_end(const segment *s) /* exclusive */
{
    return s->start_offset + s->count + s->absent;
}
/* The records of a sealed segment have another layout from now on; whoever reads next opens its files. False: somebody
 * reads it, or it waits for a sync. */
bool segment_change_layout(segment *s, const segment_layout *layout);
/* Adds a segment behind the last one. NULL and errno ENOMEM. Moves the segments in memory. */
segment *segment_add(segment_set *set, uint64_t start_offset, const segment_layout *layout);
/* The last segment that starts at or before `offset`; NULL when there is none. */
segment *segment_find(const segment_set *set, uint64_t offset);
static inline segment *segment_active(const segment_set *set) {
    return set->count > 0 ? &set->items[set->count - 1] : NULL;
}
/* Makes the files of a new active segment and adds it. An existing .log is taken over only when empty. 0 or -1. */
int segment_create(segment_set *set, uint64_t start_offset, const segment_layout *layout);
/* Descriptor of the .log or .index, opened when it is not; owned by the set. -1 and errno. */
int segment_fd(segment_set *set, segment *s, segment_file which);
/* The descriptor if it is open, else -1. */
int segment_fd_if_open(const segment *s, segment_file which);
/* "log", or as its layout calls it, "index" or "manifest". */
const char *segment_suffix(const segment *s, segment_file which);
void segment_path(const segment_set *set, const segment *s, segment_file which, char *out, size_t size);
void segment_path_of(const segment_set *set, uint64_t start_offset, const char *suffix, char *out, size_t size);
/* Of a segment that is still to be made. */
void segment_manifest_path(const segment_set *set, uint64_t start_offset, char *out, size_t size);
/* Keeps the files of an open segment open until they were unpinned as often. They stay where they are in memory. */
segment_files *segment_pin(segment *s);
void segment_unpin(segment_files *f);
/* Closes what the limits do not allow and a sync has made clean. */
void segment_set_trim(segment_set *set);
/* Takes the first `count` segments out of the set; none of them may be pinned. Their files are the caller's. */
void segment_remove_front(segment_set *set, uint32_t count);
/* Closes every pair that is not pinned now, the others at their last unpin. */
void segment_set_close(segment_set *set);
/* Closes everything and frees the memory. */
void segment_set_free(segment_set *set);
#endif
