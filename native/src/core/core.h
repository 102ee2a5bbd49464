/* The request core of one worker: partitions, routes, what is at work for them, and what it needs of the world. It
 * knows neither sockets nor frames: requests come typed (request.h), answers go to callers (caller.h). Everything here
 * lives on the worker's loop thread.
 *
 *   execute.c  request -> decision (stage, read, store, forward, or somebody else has to decide)
 *   commit.c   one vectored append per partition and turn       reads.c  poll windows: read, verify, give out
 *   sync.c     background fdatasync, group commit of `durable`  output.c memory for windows
 */
#ifndef SHARDD_CORE_H
#define SHARDD_CORE_H
#include "base/pool.h"
#include "core/caller.h"
#include "core/counters.h"
#include "core/partition_table.h"
#include "core/producer_table.h"
#include "core/waiters.h"
#include "core/waiting_polls.h"
#include "io/io.h"
#include "io/links.h"
#include "log/expiry_clock.h"
#include "log/id_window.h"
#include "log/offset_shares.h"
#include "log/room.h"

typedef struct read_job read_job;
typedef struct staged staged;
typedef struct sync_group sync_group;
typedef struct read_line { /* poll jobs, first come first served */
    read_job *first, *last;
} read_line;

/* The way to the owners on other shards (peer/forward.c); without one there are none. */
typedef struct remote {
    /* False: no place for it now, nothing has happened. */
    bool (*forward)(struct remote *r, uint32_t shard, const partition_request *what, const caller *from);
    /* Asks the owner to wake this shard once, when polls see more of a partition. False: no place for it now. */
    bool (*ask_wake)(struct remote *r, uint32_t shard, uint64_t ns, uint64_t incarnation);
    void (*wake)(struct remote *r, uint32_t shard, uint64_t ns); /* the answer */
} remote;

typedef struct core_options {
    uint32_t shard, shards;
    int64_t sync_interval_us;
    int64_t save_interval_us; /* of the journals of `memory`; 0: no saver */
    bool save_syncs;          /* what the saver writes is synced, too */
    uint32_t calls_max;       /* requests of callers that are no connections */
    waiting_polls_limits waiting_polls;
} core_options;

struct core {
    core_options options;
    io io;
    pool *pool;
    links links;
    remote *remote;
    bool *peer_is_down;
    int64_t now_us;
    route_table routes;
    partition_table partitions;
    id_source ids;
    waiter_queue waiters;
    waiting_polls waiting_polls;
    event_queue events;
    journal_memory journals;
    id_memory id_windows; /* of all partitions */
    int64_t ids_swept_us; /* once.c */
    producer_table known_producers;
    producer_memory producing;  /* of all partitions */
    int64_t producers_swept_us; /* producing.c */
    file_cache files;           /* of all partitions */
    expiry_clock expiry;
    known_users users;
    core_counters counters;
    struct { /* commit.c */
        staged *list;
        append_batch *scratch;
        uint32_t count, capacity;
        uint64_t bytes; /* staged */
        owned *touched;
        owned *in_parts, *last_in_parts; /* with large batches, in turn */
        room room;
        bool room_refusal_reported;
    } commit;
    struct { /* sync.c */
        owned *dirty, *pending, *pending_last;
        uint32_t running;
        sync_group *groups; /* of these */
        int64_t next_us, next_save_us;
    } sync;
    struct {                        /* output.c: windows of polls and answers of Python that have not left */
        uint64_t bytes, made_bytes; /* made: of windows, by who sends them */
        bool refused, contended;    /* polls wait for that memory, or it is over its budget */
    } output;
    struct { /* reads.c */
        read_job *jobs;
        read_line bulk[2];     /* READS_WITH_BLOCK, READS_WITHOUT_BLOCK: each has a slice of a turn */
        int64_t bulk_again_us; /* the pool had no block for the first of them */
    } reads;
};

/* What has to be there already: links, pool, io. 0 or -errno. */
int core_open(core *k, const core_options *options);
void core_close_partitions(core *k);
void core_free(core *k);

int core_partition_add(core *k, partition *p);
void core_partition_remove(core *k, uint64_t ns);
/* The level that answers from now on have; those that are held wait for their sync. False: it is not open here. */
bool core_partition_set_level(core *k, uint64_t ns, partition_level level);
static inline owned *core_owned(const core *k, uint64_t ns) { return partitions_find(&k->partitions, ns); }
static inline void core_wait(core *k, waiter *w, bool (*retry)(waiter *)) {
    waiters_add(&k->waiters, w, retry);
    k->counters.memory_waits++;
}
#endif
