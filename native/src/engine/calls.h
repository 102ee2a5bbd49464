/* Calls of Python: the caller that lives in this process. Each asks one partition, here or at its owner on another
 * shard, and is heard of by events.
 *
 * What a caller sees is what a connection sees: records are checked as those of a SEND and lie in the pool until the
 * partition has them; of a poll there is one window at a time, and its memory is given back when Python asks for the
 * next one. A call that is cancelled keeps its place until the core has let go of it, which EVENT_CALL tells then.
 *
 * Two limits, beyond which a call is refused at once and nothing has happened: calls under way, and the bytes of their
 * records. One batch alone may be as large as a connection's. */
#ifndef SHARDD_CALLS_H
#define SHARDD_CALLS_H
#include "core/core.h"

#define CALLS_MAX 8192u
#define CALLS_POOL_PART 4u /* records of calls take at most one part of the pool in so many */

typedef enum call_outcome {
    CALL_STATUS,      /* it is over; 0: what was asked is done */
    CALL_WINDOW,      /* some records: calls_next for more, or calls_cancel */
    CALL_LAST_WINDOW, /* over with these */
    CALL_GONE,        /* over, and nobody can know how: it may have been carried out */
    CALL_AGAIN,       /* not carried out: the partition is not there (any more, or yet), ask where it is once more */
    CALL_LET_GO       /* cancelled before; its place and its memory are free now */
} call_outcome;

typedef struct call_entry call_entry;

typedef struct calls {
    core *core;
    uint64_t batch_bytes_max; /* index entries and records of an append */
    call_entry *places;
    uint32_t *free_indexes;
    uint32_t free_count;
    uint64_t record_bytes; /* of the pool */
    uint64_t refused;      /* over a limit */
} calls;

/* What Python is shown of a window; valid until calls_took, calls_next or calls_cancel. */
typedef struct call_window {
    const uint8_t *records;
    size_t length;
    poll_summary whole; /* the facts about the whole answer, also with its first window */
} call_window;

int calls_open(calls *c, core *k, uint64_t batch_bytes_max); /* 0 or -ENOMEM */
void calls_close(calls *c);                                  /* memory of the pool goes with it */
/* Each answers what the call is named by in its events; 0: over a limit, nothing has happened. `owner` is a shard.
 * EVENT_CALL follows: `code` is its outcome, `number` the status. */
/* `batch`: `count` index entries, then the records, as behind the metadata of a SEND. It is copied. `made` of the event
 * says where the messages are, when it asks for that (producer_batch). */
uint64_t calls_append(calls *c, uint32_t owner, const partition_request *what, const uint8_t *batch, size_t length);
/* The same for a large batch, in steps: it is checked at once, copied by `calls_fill`, and begins when all is there. */
uint64_t calls_prepare(calls *c, uint32_t owner, const partition_request *what, const uint8_t *batch, size_t length);
size_t calls_batch_bytes(const calls *c, uint64_t token); /* how long that batch is; 0: nothing is left to copy */
/* Copies at most `bytes` more of it. True: there is more. Calls that are over are no error. */
bool calls_fill(calls *c, uint64_t token, const uint8_t *batch, size_t bytes);
uint64_t calls_ask(calls *c, uint32_t owner, const partition_request *what); /* POLL, STORE */
/* Ends when polls may see more of the partition than at this call, when what the user may do has changed, the partition
 * is closed, its owner has died, or after `wait_us`: look at the partition then. Look at it after this call, too:
 * messages that came to a partition of another shard before it do not end it. 0 also when too many polls wait. */
uint64_t calls_wait(calls *c, uint32_t owner, uint64_t ns, uint64_t incarnation, uint32_t user_id, int64_t wait_us);
/* The window behind an event. False: the call was cancelled meanwhile. */
bool calls_window(const calls *c, uint64_t token, call_window *out);
void calls_took(calls *c, uint64_t token); /* that window was copied; with the last one the call is over */
/* Gives it back; EVENT_CALL follows. Unknown ones are no error. False: no memory for that, it has to be cancelled. */
bool calls_next(calls *c, uint64_t token);
/* Nobody wants its end. What was begun may still be carried out. Unknown ones are no error. True: it keeps its place
 * until the owner has answered, and CALL_LET_GO follows; false: no event follows. */
bool calls_cancel(calls *c, uint64_t token);
static inline uint32_t calls_under_way(const calls *c) { return CALLS_MAX - c->free_count; }
#endif
