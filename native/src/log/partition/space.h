/* Space of the active log behind its records.
 *
 * At `durable` the file grows ahead of its records with zeros, so that a sync need not commit a new length
 * (docs/adr/0007-levels.md). At the other levels blocks are reserved behind its end when large batches come: the file
 * keeps its length, and the kernel need not find a block for each page that is written (docs/adr/0104). A file system
 * that refuses costs only speed. */
#ifndef SHARDD_PARTITION_SPACE_H
#define SHARDD_PARTITION_SPACE_H
#include "log/files.h"

#define ALLOCATE_AHEAD_BYTES (1u << 20) /* at `durable`: the log grows in such steps */
#define RESERVE_BYTES_MIN (1u << 20)    /* at the other levels: blocks behind the end of a log of that many bytes, */
#define RESERVE_BYTES_MAX (8u << 20)    /* so many at most, */
#define RESERVE_BATCH_BYTES (32u << 10) /* when so many are appended at once */

typedef struct space {
    uint64_t reserved_end; /* the active .log has blocks up to here; 0: not known */
    uint64_t stale_end;    /* the active .log has bytes behind its records up to here; 0: it has no such bytes */
    bool stale_zeroed;     /* these bytes are zero, hence no records: allocated ahead, or left by a failed write */
    bool allocate_ahead;   /* at `durable`, until the file system refuses; again with the next segment */
    bool reserve_ahead;    /* the same at the other levels */
    uint32_t cuts;         /* grows with each cut: bytes behind the records may be gone */
    struct room *room;
} space;

/* A new active segment, or another level. */
void space_begins(space *sp, bool durable, bool has_segment);
/* Makes space for `bytes` behind `log_bytes` of records, in a segment of at most `segment_bytes`. */
void space_make(space *sp, const disk *d, int fd, uint64_t log_bytes, uint64_t bytes, uint64_t segment_bytes);
/* Cuts what the log holds behind `file_end`. 0 or errno. */
int space_cut(space *sp, const disk *d, int fd, uint64_t file_end);
/* Removes what a failed write left behind `file_end`. Where cutting does not work the bytes become zeros, because a
 * recovery would take whole records among them for the next offsets. 0 or errno. */
int space_cut_back(space *sp, const disk *d, int fd, uint64_t file_end);
/* Gives back the blocks behind `file_end`, also those that a process before this one reserved. */
void space_give_back(space *sp, const disk *d, int fd, uint64_t file_end);

static inline void space_is_unreserved(space *sp) { sp->reserved_end = 0; }
static inline bool space_has_reserved(const space *sp) { return sp->reserved_end > 0; }
static inline bool space_has_stale(const space *sp) { return sp->stale_end > 0; }
static inline uint32_t space_cuts(const space *sp) { return sp->cuts; }
/* A batch of so many bytes is worth a call of space_make(). */
static inline bool space_is_wanted(const space *sp, uint64_t bytes) {
    return sp->allocate_ahead || bytes >= RESERVE_BATCH_BYTES;
}
static inline bool space_allocates_ahead(const space *sp) { return sp->allocate_ahead; }
/* Bytes behind the records could be taken for some. */
static inline bool space_must_cut(const space *sp, uint64_t file_end, bool durable) {
    return sp->stale_end > file_end && !(sp->stale_zeroed && durable);
}
/* A write that failed, or a part of a large batch, reached `end`. */
static inline void space_left_behind(space *sp, uint64_t end) {
    if (end > sp->stale_end) sp->stale_end = end;
    sp->stale_zeroed = false;
}
/* Records reach `file_end` now. */
static inline void space_overwritten(space *sp, uint64_t file_end) {
    if (sp->stale_end <= file_end) sp->stale_end = 0;
}
/* The log may hold records that were refused. */
static inline bool space_has_refused(const space *sp) { return sp->stale_end > 0 && !sp->stale_zeroed; }
#endif
