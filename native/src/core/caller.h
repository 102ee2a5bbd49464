/* Who asked: one interface for a connection (net/), another shard (peer/) and Python. The core knows no other way to
 * answer.
 *
 * A caller is a small value that the core copies and keeps as long as a request is at work. It hears exactly once how
 * its request ended: status, committed, a window with `last`, gone, again or dropped; also after a cancel, and also
 * when the worker that owns the partition dies (peer/forward.c: a status, or `gone` when nobody can know). Before that
 * it may be told where its request is parked. A parked request waits without end: the caller's own clocks decide when
 * it has waited long enough, and then it cancels. */
#ifndef SHARDD_CALLER_H
#define SHARDD_CALLER_H
#include "core/session.h"
#include "log/producers.h"

typedef struct caller caller;
typedef struct pending pending;

/* What a parked request waits for. */
typedef enum pending_wait {
    WAITS_FOR_NOTHING, /* it is at work */
    WAITS_FOR_MEMORY,  /* of the pool */
    WAITS_FOR_DEVICE,  /* its sync */
    WAITS_FOR_RECORDS, /* of a segment that keeps them elsewhere */
    WAITS_FOR_PEER     /* the owner on another shard */
} pending_wait;

typedef struct pending_calls {
    void (*cancel)(pending *p); /* nobody wants the answer: `dropped` follows, now or when nothing is read any more */
    void (*next)(pending *p);   /* the window was sent; NULL where there are none */
} pending_calls;

/* A request at work for a caller; embedded in the object that does the work. */
struct pending {
    const pending_calls *calls;
    pending_wait waits_for;
    uint32_t memory_shard; /* in whose pool its windows lie */
};

/* Facts about the whole answer of a poll, known before its first byte leaves. */
typedef struct poll_summary {
    uint32_t partition;
    bool is_sparse; /* offsets without a message are no loss */
    uint64_t current_offset, total_bytes, total_count, last_offset;
    uint64_t incarnation, first_offset; /* of the partition: its history, and where that begins by now */
} poll_summary;

/* Some whole records of an answer. The head that the caller wrote stands before the first ones. */
typedef struct answer_window {
    const uint8_t *bytes;
    size_t length;
    uint8_t *block;     /* the caller frees it (output_free); NULL: it belongs to the pending, which hears `next` */
    bool last;          /* the request ends with it */
    poll_summary whole; /* with the last one: total_count, last_offset */
} answer_window;

typedef struct caller_calls {
    void (*status)(const caller *to, uint32_t status);
    void (*committed)(const caller *to, uint64_t offset);
    /* NULL for who sends no batches of producers and asks for nothing (producer_batch). */
    void (*produced)(const caller *to, const produced *made);
    void (*window)(const caller *to, const answer_window *w); /* when it was sent, pending_next for one more */
    void (*gone)(const caller *to);    /* no end can be told: a part of the answer is out, or nobody knows the effect */
    void (*again)(const caller *to);   /* not carried out: what the request was routed by is old, ask once more */
    void (*dropped)(const caller *to); /* after a cancel */
    void (*parked)(const caller *to, pending *p); /* NULL: no more */
    bool (*wanted)(const caller *to);             /* false: it is not worth waiting for the answer */
    /* Somebody else reads the records of the request for long: moves them out of scarce memory. False: dropped. */
    bool (*lend)(const caller *to, uint8_t **records);
    /* Of a poll with `one_window`: its records become what the caller reads, in place. Their new length. */
    size_t (*convert)(const caller *to, uint8_t *records, size_t length);
    void (*put_head)(const caller *to, uint8_t *at, const poll_summary *whole); /* `head_bytes` of them */
} caller_calls;

struct caller {
    const caller_calls *calls;
    void *owner;      /* of the implementation */
    session *session; /* whose memberships the request moves; NULL: none */
    uint64_t connection, sequence;
    uint32_t shard, generation;
    uint16_t place;     /* of the request among those of its connection that are under way */
    uint8_t dialect;    /* of who writes that head, wherever the records are read; 0: none */
    uint8_t head_bytes; /* room before the first records of a poll */
    bool one_window;    /* its polls end with their first window: how long that is becomes known by `convert` */
};

/* How a request ended whose answer may have to wait for the device. */
typedef struct outcome {
    uint32_t status;
    bool committed; /* a STORE: `offset` counts from now on */
    uint64_t offset;
    produced made; /* a SEND of a producer, or that asks for something: its answer, when the status is 0 */
} outcome;

void caller_end(const caller *to, const outcome *o);
void caller_status(const caller *to, uint32_t status);
void caller_window(const caller *to, const answer_window *w);
void caller_again(const caller *to);
static inline void caller_gone(const caller *to) { to->calls->gone(to); }
static inline void caller_dropped(const caller *to) { to->calls->dropped(to); }
static inline void caller_parked(const caller *to, pending *p) { to->calls->parked(to, p); }
static inline void pending_cancel(pending *p) { p->calls->cancel(p); }
static inline void pending_next(pending *p) { p->calls->next(p); }
#endif
