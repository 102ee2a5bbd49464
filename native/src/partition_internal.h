/* What a partition is made of; private to partition*.c. */
#ifndef SHARDD_PARTITION_INTERNAL_H
#define SHARDD_PARTITION_INTERNAL_H
#include "index_cache.h"
#include "offsets.h"
#include "partition.h"
#include "partition_status.h"
#include "segment.h"

#define INDEX_FLUSH_ENTRIES 256u       /* entries that wait before they are written */
#define DAMAGED_MAX 1024u              /* offsets known to be damaged */
#define DIRECTORY_LEVELS 7u            /* the partition's directory and the ancestors that a sync covers */
#define STATS_STORE(p, field, value)                                                          \
    do {                                                                                      \
        if ((p)->stats != NULL)                                                               \
            atomic_store_explicit(&(p)->stats->field, (value), memory_order_release);         \
    } while (0)

struct partition {
    uint64_t ns;
    uint64_t incarnation;
    char *directory;
    const disk *disk;
    partition_stats *stats;
    id_source *ids;
    uint64_t segment_size_bytes;
    partition_level level;

    uint64_t next_offset;
    uint64_t size_bytes;     /* of all segments */
    uint64_t messages;       /* in all segments */
    uint64_t last_timestamp; /* of the last record; never falls */
    segment_set segments;
    index_cache index;       /* of the active segment */
    uint64_t stale_end;      /* the active .log has bytes of a failed write up to here; 0: none */
    bool stale_zeroed;       /* and they are zero, hence no records */
    bool roll_pending;       /* the active segment is sealed, the next one could not be made yet */

    uint64_t *damaged; /* ascending; NULL until the first */
    uint32_t damaged_count;
    offsets offsets;
    poll_cursor *cursors; /* of answers on their way */

    uint64_t durable_offset;
    uint64_t sync_target; /* durable_offset when the running sync succeeds */
    uint32_t dirty_from;  /* no segment before this place is dirty */
    uint8_t dirty_directories; /* bit i: names in the i-th ancestor (0: the partition's directory) changed */
    bool sync_running, sync_failed;
    uint64_t found_end; /* `durable`: readable although the sync at opening failed; 0: it did not */
    bool sync_covers; /* the running sync has all names, logs and offsets */

    bool closed;
    uint32_t state;
    uint32_t references;
};

/* Where polls and stored offsets end: what is acknowledged, as far as this file knows. */
static inline uint64_t partition_visible_end(const partition *p)
{
    if (p->level != LEVEL_DURABLE)
        return p->next_offset;
    return p->durable_offset > p->found_end ? p->durable_offset : p->found_end;
}
/* All fields of the statistics slot but the incarnation. */
void partition_publish(const partition *p);
/* Syncs what an acknowledgement needs before it returns, as far as descriptors can be had. */
void partition_sync_now(partition *p);
/* Writes waiting index entries. 0, or 4007 (an EIO poisons). */
uint32_t partition_index_flush(partition *p);
/* Byte position in the .log where record `k` of the segment starts (k == count: where the log ends). False when the
 * index cannot be read or contradicts the log: every answer keeps 64 bytes for each record on both sides, so no caller
 * reads over an end. */
bool partition_border(partition *p, segment *s, uint64_t k, uint64_t *position);
typedef enum index_key { INDEX_KEY_END_POSITION, INDEX_KEY_TIMESTAMP } index_key;
/* First record in [low, high) of the segment whose key is >= bound; `high` when none is. False as above. */
bool partition_index_search(partition *p, segment *s, uint64_t low, uint64_t high, index_key key, uint64_t bound,
                            uint64_t *found);
#endif
