/* Links between the workers of one server: the shared region, descriptor rings, doorbells, leases.
 *
 * Ring [from][to] is single-producer single-consumer and outlives both processes (the supervisor keeps the memfd): what
 * a dead consumer had not taken, its successor takes, but only when the producer admits it (links_admit): by then the
 * producer has dealt with what died with the one before. A descriptor is `posted` by the producer, and either `taken`
 * by the consumer or `cancelled` by the producer; nothing is in between, so the producer always knows whether a
 * request may have had an effect. Bytes never travel in a descriptor: it leases (offset, length) in the sender's pool,
 * which the receiver maps read-only. A lease is valid while the sender's generation (bumped when a worker starts,
 * before it touches its pool) is the one in the descriptor.
 */
#ifndef SHARDD_LINKS_H
#define SHARDD_LINKS_H
#include "base/shared.h"

#include <stdbool.h>

#define LINK_SLOTS 1024u

typedef enum link_operation {
    LINK_SEND = 1, /* lease = records; count, ns, incarnation; assignment, value, consumer_id, handle: the producer
                    * that wants it stored once, number, epoch and digest of the batch; strategy: what it asks for
                    * (producer_batch) */
    LINK_POLL,     /* strategy, value, count, consumer; answered by LINK_WINDOW or LINK_STATUS */
    LINK_STORE,    /* value, consumer */
    LINK_NEXT,     /* the window of `handle` was sent: give the next one, or (flag) the end of the job */
    LINK_STATUS,   /* answer: status */
    LINK_WINDOW,   /* answer: lease = bytes to send, count and value = messages and last offset of the whole poll;
                     * LINK_FLAG_MORE: say LINK_NEXT when sent */
    LINK_ASK_WAKE, /* ns, incarnation: send LINK_WAKE once when polls see more of the partition, or when it closes */
    LINK_WAKE,     /* ns: polls see more of the partition, or it is closed */
} link_operation;

enum {
    LINK_FLAG_MORE = 1,
    LINK_FLAG_AUTO_COMMIT = 2,
    LINK_FLAG_UNKNOWN_PARTITION = 4,
    LINK_FLAG_BROKEN = 8,
    LINK_FLAG_STOP = 16,
    LINK_FLAG_OWN_NAME = 64, /* partition_request.own_name */
    LINK_FLAG_PRODUCED = 32  /* an answer: strategy, count, value, timestamp say what became of a batch (produced) */
};
enum { SLOT_EMPTY = 0, SLOT_POSTED = 1, SLOT_TAKEN = 2, SLOT_CANCELLED = 3 };

typedef struct descriptor {
    _Atomic uint32_t slot_state;
    uint8_t operation;
    uint8_t flags;
    uint8_t strategy;
    uint8_t consumer_kind;
    uint32_t generation; /* of the sender */
    uint32_t status;
    uint64_t connection; /* the requester's connection id */
    uint64_t sequence;   /* the requester's request number on it */
    uint64_t ns;
    uint64_t incarnation;
    uint64_t lease_offset;
    uint64_t lease_length;
    uint64_t value;
    uint64_t handle; /* LINK_WINDOW, LINK_NEXT: the owner's job; LINK_SEND: the digest */
    uint32_t count;
    uint32_t consumer_id;
    uint32_t requester_generation; /* in answers: the generation that asked */
    uint8_t dialect;               /* LINK_POLL: whose head stands before the records; 0: none */
    uint8_t unused[3];
    uint64_t assignment; /* generation of the group's assignment (fence.h); 0: not as a member */
    union {
        uint64_t timestamp; /* of an answer with LINK_FLAG_PRODUCED */
        uint32_t bytes_max; /* LINK_POLL: of the records, but one; 0: no bound */
    };
    uint64_t owner, name; /* LINK_POLL, LINK_STORE: of who stores the offset (offset_user) */
} descriptor;
_Static_assert(sizeof(descriptor) == 128, "two cache lines");

typedef struct link_ring {
    _Alignas(64) _Atomic uint64_t head; /* next slot the producer fills */
    _Atomic uint32_t admitted;          /* the generation of the consumer that may take, as the producer says */
    _Alignas(64) _Atomic uint64_t tail; /* next slot the consumer takes */
    _Alignas(64) descriptor slots[LINK_SLOTS];
} link_ring;

typedef struct worker_page {
    _Atomic uint32_t generation;
    _Atomic uint32_t sleeping;               /* 1: waits in its ring and wants the doorbell */
    _Atomic uint32_t connections, anonymous; /* open ones, and those of them without a login (admission.h) */
    _Atomic uint32_t output_contended;       /* 1: polls wait for memory that windows in this worker's pool take */
    _Alignas(64) _Atomic uint64_t beat;      /* passes of the loop through the engine */
    _Atomic uint32_t activity;               /* what the loop is at (worker_activity); the supervisor reads both */
} worker_page;

/* Inside of the engine nothing sleeps but calls to files: whoever sleeps there for long waits for a device. */
typedef enum worker_activity { ACTIVITY_STARTING, ACTIVITY_PYTHON, ACTIVITY_ENGINE, ACTIVITY_WAITING } worker_activity;

_Static_assert(sizeof(worker_page) <= 4096, "one page");

typedef struct links {
    uint32_t shard, shards;
    uint32_t generation; /* ours */
    uint8_t *region;
    size_t region_bytes;
    partition_stats *stats;
    _Atomic int32_t *owed; /* by slot of the statistics: turns (core/turns.h) */
    _Atomic uint32_t *counters;
    _Atomic uint32_t *addresses; /* [shard][row][column] (admission.h) */
    shared_logins *logins;       /* (logins.h) */
    shared_clock *clock;         /* (log/expiry_clock.h) */
    uint64_t seed;               /* random, the same for all workers of the server */
    const uint8_t **peer_pools;  /* read-only mappings, [shard]; NULL for ourselves */
    size_t pool_bytes;
    int *doorbells;
    bool *ring_doorbell; /* peers that got a descriptor in this turn */
} links;

size_t links_region_bytes(uint32_t shards);
/* Sizes a fresh memfd and writes the header. 0 or -errno. */
int links_region_format(int fd, uint32_t shards);
/* What time it is from the first look on; before any worker. 0 or -errno. */
int links_write_clock(int fd, const shared_clock *clock);
/* Maps everything, bumps our generation and admits the peers that are there. 0 or -errno. The descriptors stay the
 * caller's. */
int links_open(links *l, uint32_t shard, uint32_t shards, int region_fd, const int *pool_fds, const int *doorbell_fds,
               size_t pool_bytes);
void links_close(links *l);
/* What a worker's page says, for a process that has nothing mapped. 0 or -errno. */
int links_read_beat(int fd, uint32_t shard, uint64_t *beat, uint32_t *activity);

worker_page *links_page(const links *l, uint32_t shard);
link_ring *links_ring(const links *l, uint32_t from, uint32_t to);
/* Posts a copy of `d` (slot_state and generation are filled in). False when the ring is full. `position` (may be NULL):
 * for links_cancel. */
bool links_post(links *l, uint32_t to, const descriptor *d, uint64_t *position);
/* True when what was posted at `position` had not been taken and never will be. */
bool links_cancel(links *l, uint32_t to, uint64_t position);
/* From now on the process of `to` with that generation takes what we have posted and will post, and no other one. Its
 * predecessor is dead, and that has been dealt with. */
void links_admit(links *l, uint32_t to, uint32_t generation);
/* Takes the next descriptor from `from` into `out`. False: none, or `from` has not admitted us. */
bool links_take(links *l, uint32_t from, descriptor *out);
bool links_waiting(const links *l);                               /* anything to take from any peer? */
uint64_t links_depth(const links *l, uint32_t from, uint32_t to); /* descriptors posted and not yet taken */
/* Address of a lease of shard `from`, or NULL when it is impossible (out of range or an older generation). */
const uint8_t *links_lease(const links *l, uint32_t from, const descriptor *d);
bool links_lease_valid(const links *l, uint32_t from, uint32_t generation);
/* Wakes the peers that got something since the last call and sleep. */
void links_ring_doorbells(links *l);
/* Announces that we are about to sleep; false when something arrived meanwhile. */
bool links_sleep(links *l);
void links_wake(links *l);
#define BALANCED_PARTITIONS_MAX 0xffffffu /* the shard that took a turn stands above */
/* The balanced counter of a topic with `partitions` partitions: its value now; then (value + 1) % partitions.
 * `after_us` (may be NULL): this shard has taken the turn before, too. */
uint32_t links_balance(links *l, uint32_t counter, uint32_t partitions, bool *after_us);
/* Whether polls wait for memory of a pool: its worker says so, all read it. */
void links_mark_output_contended(links *l, bool contended);
bool links_output_contended(const links *l, uint32_t shard);
#endif
