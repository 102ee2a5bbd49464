/* The shared region: one sparse memfd made by the supervisor, mapped by every worker.
 *
 *   offset                      size                    content
 *   0                           4096                    header: magic, shards, size of a descriptor, seed; at 64 the
 *                                                       shared_clock (log/expiry_clock.h)
 *   4096                        shards * 4096           worker pages (worker_page in links.h)
 *   ...                         65536 * 4               balanced partitioning counters: next partition (24 bits), shard
 *                                                       that took the turn before (8)
 *   ...                         shards * 2 * 16384 * 4  connections by address (admission.h), rows of each worker (u32)
 *   ...                         sizeof(shared_logins)   failed logins, and who logged in (logins.h)
 *   ...                         STATS_SLOTS * 64        partition statistics, written by the owner
 *   ...                         STATS_SLOTS * 4         turns that a partition is owed (i32, core/turns.h)
 *   ...                         shards^2 * ring bytes   descriptor rings, ring [from][to]
 *
 * Nothing here is ever written to disk. Fields that two processes touch are C11 atomics.
 */
#ifndef SHARDD_SHARED_H
#define SHARDD_SHARED_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SHARED_COUNTERS 65536u
#define SHARED_STATS_SLOTS 1048576u
#define SHARED_ADDRESS_ROWS 2u
#define SHARED_ADDRESS_COLUMNS 16384u
#define SHARED_LOGIN_ROWS 2u
#define SHARED_LOGIN_COLUMNS 16384u
#define SHARED_LOGIN_ACCOUNTS 1024u
#define SHARED_LOGIN_PLACES 64u
#define SHARED_SHARDS_MAX 256u

typedef struct login_cell {
    _Atomic uint64_t failures;  /* minute << 32 | count */
    _Atomic uint64_t booked_us; /* the last moment that was given away */
} login_cell;

typedef struct login_place {
    _Atomic uint64_t pair; /* fingerprint of an address and an account; 0: empty */
    _Atomic uint64_t at_us;
} login_place;

/* A whole number of pages; what nobody touched costs no memory. */
typedef struct shared_logins {
    login_cell cells[SHARED_LOGIN_ROWS][SHARED_LOGIN_COLUMNS];
    login_place places[SHARED_LOGIN_ACCOUNTS][SHARED_LOGIN_PLACES];
} shared_logins;
_Static_assert(sizeof(shared_logins) % 4096 == 0, "the statistics behind it stay aligned");

#define SHARED_DOUBTS 4u

/* How far a clock is ahead of CLOCK_BOOTTIME, as far as it is believed. */
typedef struct clock_track {
    _Atomic int64_t ahead_us;
    _Atomic int64_t doubted_ahead_us; /* the wall clock has jumped to this, ... */
    _Atomic int64_t doubted_since_us; /* ... then; 0: it is not doubted */
} clock_track;

/* What is stamped from `first_us` on and before `ended_us` was stored while a clock was doubted that was right. */
typedef struct clock_doubt {
    _Atomic uint64_t first_us, ended_us; /* 0: none */
} clock_doubt;

/* Written by shard 0, read by all; of fields that belong together a reader may see neighbouring moments. */
typedef struct shared_clock {
    _Atomic uint64_t running;
    _Atomic uint64_t jump_max_us; /* a jump is doubted for at most as long; 0: the wall clock is believed */
    clock_track believed, stamps;
    _Atomic uint64_t jumps;  /* that were doubted */
    _Atomic int64_t jump_us; /* how far the wall clock was ahead of the believed one at the last look */
    _Atomic uint64_t doubts_ended;
    clock_doubt doubts[SHARED_DOUBTS]; /* the last ones that ended with a clock that was right */
    _Atomic uint64_t session_number;   /* the last one that was given to a login */
} shared_clock;

/* Statistics of one partition. The owner stores each field with release order;
 * readers may see fields of two neighbouring moments (they are statistics), except that
 * `incarnation` is stored last when a partition opens and zeroed first when it closes. */
typedef struct partition_stats {
    _Atomic uint64_t incarnation;    /* 0 = slot not in use */
    _Atomic uint64_t next_offset;    /* offset of the next message; current offset = next_offset - 1 */
    _Atomic uint64_t size_bytes;     /* bytes of all segments */
    _Atomic uint64_t messages_count; /* messages kept */
    _Atomic uint64_t segments_count; /* 1 for a partition that never got a message */
    _Atomic uint64_t durable_offset; /* next_offset as of the last completed background sync */
    _Atomic uint64_t first_offset;   /* first retained offset */
    _Atomic uint32_t state;          /* 0 healthy, else the wire status that sends get (poisoned) */
    _Atomic uint32_t unseen;         /* messages before next_offset that no poll sees yet (level durable) */
} partition_stats;
_Static_assert(sizeof(partition_stats) == 64, "one cache line");
#endif
