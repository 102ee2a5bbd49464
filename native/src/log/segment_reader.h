/* How the records of a segment lie: one table of operations for each layout (docs/formats.md#manifest).
 *
 * Above it every segment is a plain log: records back to back, and an index with positions in them. What leads to a
 * record (searches, windows, checks) is written once, in partition/history.c and partition/poll.c. Below it records are
 * where the layout has them; it hands them out as *records in some memory*: a descriptor and a position, or a block.
 * Nothing that it says is evidence: whoever reads verifies every record.
 *
 * Only sealed segments have a layout other than plain. Single-threaded, as partition.h. */
#ifndef SHARDD_SEGMENT_READER_H
#define SHARDD_SEGMENT_READER_H
#include "io/io.h"
#include "log/record.h"
#include "log/segment.h"

typedef enum segment_answer {
    SEGMENT_READY,
    SEGMENT_WAIT,       /* somebody has to bring it here first: `fetch`, then ask again */
    SEGMENT_DAMAGED,    /* what is stored fails a check of the layout */
    SEGMENT_UNREADABLE, /* the files cannot be opened or read */
} segment_answer;

/* Bytes of the plain log in some memory, until they are released. */
typedef struct segment_records {
    uint64_t length;
    const uint8_t *block; /* where they are, or NULL: they are in a file */
    int fd;
    uint64_t position;
    void (*release)(struct segment_records *r); /* of the layout; NULL: there is nothing to release */
    void *held;                                 /* what it releases */
} segment_records;

typedef enum segment_part { SEGMENT_PART_INDEX, SEGMENT_PART_LOG } segment_part;

/* What was not here: entries [from, from + length) of the index, or such bytes of the plain log. */
typedef struct segment_want {
    segment_part part;
    uint64_t from, length;
} segment_want;

/* Somebody waits for a fetch; embedded in what waits. From the `fetch` that said true until `resume` or
 * segment_wait_cancel it belongs to the layout. */
typedef struct segment_wait {
    void (*resume)(struct segment_wait *w); /* on the loop, never inside of `fetch`: ask again, whatever came of it */
    void (*forget)(struct segment_wait *w); /* of the layout: there will be no resume */
    struct segment_wait *next, *previous;   /* of the layout */
    void *fetch;                            /* likewise */
    struct { /* likewise: why its last fetch has brought nothing, until it is told; length 0: it has */
        uint64_t segment, position, length;
        segment_answer answer;
    } failed;
} segment_wait;

struct segment_layout {
    const char *suffix; /* of the file with the records */
    uint8_t bits;       /* in the manifest (log/manifest.h) */
    /* Entries [first, first + count) of the index. */
    segment_answer (*entries)(segment_set *set, segment *s, uint64_t first, uint32_t count, index_entry *out);
    /* `length` bytes of the plain log from `position` on; both lie inside of it. */
    segment_answer (*records)(segment_set *set, segment *s, uint64_t position, uint64_t length, segment_records *out);
    /* Begins to bring here what was asked for. False: it cannot (no memory). NULL where nothing ever waits. */
    bool (*fetch)(segment_set *set, segment *s, const segment_want *want, segment_wait *w);
};

/* .log and .index, byte for byte what they seem to be (segment_plain.c); sparse ones, too. */
extern const segment_layout segment_plain;
/* .blocks and .index (log/blocks.h): blocks are unpacked into the cache of the worker (segment_compressed.c). */
extern const segment_layout segment_compressed;
/* An operation of the kind OPERATION_UNPACK has completed; its owner. */
void segment_compressed_on_read(void *fetch, int result);

/* The layout with these bits; NULL: none that this program knows. */
const segment_layout *segment_layout_of(uint32_t bits);
/* Copies [from, from + length) of the records as far as they are in memory; how much that was. Does not wait. */
size_t segment_records_take(const segment_records *r, io *i, void *to, uint64_t from, size_t length);
/* The same from the device, with an operation: at least a byte, 0 at the end of the file, or -errno. */
void segment_records_read(const segment_records *r, io *i, operation *op, void *to, uint64_t from, uint32_t length);
/* Also for what was released before, or never handed out (all zero). */
static inline void segment_records_release(segment_records *r) {
    void (*release)(segment_records *) = r->release;
    r->release = NULL;
    if (release != NULL) release(r);
}
/* Copies a few bytes of the plain log; may wait for the device, as an index does. */
segment_answer segment_peek(segment_set *set, segment *s, uint64_t position, void *to, size_t length);
static inline void segment_wait_cancel(segment_wait *w) { w->forget(w); }
#endif
