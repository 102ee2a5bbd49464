/* The stored offsets of consumers, beside the log: while they cannot be read, polls of consumers wait for that. */
#ifndef SHARDD_PARTITION_STORED_OFFSETS_H
#define SHARDD_PARTITION_STORED_OFFSETS_H
#include "log/offsets.h"
#include "log/partition/side.h"
#include "log/partition/sync_progress.h"

typedef struct stored_offsets {
    offsets table;
    partition_side side;
    uint64_t opened_end; /* of the log when it was opened: no stored offset of that time is above it */
} stored_offsets;

/* Reads the file; `stored_offsets_error` says what became of it. True: some offsets were lowered, a sync is due. */
bool stored_offsets_open(stored_offsets *o, uint64_t now_us, bool writes);
/* Tries once more, now and then, what could not be read. 0, or errno: they are not known. */
int stored_offsets_look(stored_offsets *o, uint64_t now_us, bool writes);
/* Their descriptor, for a sync. True when they are not dirty any more. */
bool stored_offsets_collect(stored_offsets *o, sync_collection *c);

static inline int stored_offsets_error(const stored_offsets *o) { return o->side.error; }
static inline offsets *stored_offsets_table(stored_offsets *o) { return &o->table; }
static inline const offsets *stored_offsets_known(const stored_offsets *o) { return &o->table; }
/* Before the first stored_offsets_open(). */
static inline void stored_offsets_set_end(stored_offsets *o, uint64_t end) { o->opened_end = end; }
/* The lowest stored offset, the last message that the slowest consumer has processed; UINT64_MAX: there is no offset.
 * `unknown`: the answer as long as they cannot be read. */
static inline uint64_t stored_offsets_lowest(stored_offsets *o, uint64_t unknown) {
    return o->side.error == 0 ? offsets_lowest(&o->table) : unknown;
}
static inline bool stored_offsets_are_dirty(const stored_offsets *o) {
    return o->table.dirty || o->table.directory_dirty;
}
/* Whether their name is new since the last call. */
static inline bool stored_offsets_take_name(stored_offsets *o) {
    bool is_new = o->table.directory_dirty;
    o->table.directory_dirty = false;
    return is_new;
}
#endif
