/* The partitions that this shard owns: open addressing by namespace, references counted. */
#ifndef SHARDD_PARTITION_TABLE_H
#define SHARDD_PARTITION_TABLE_H
#include "core/fence.h"
#include "core/route.h"
#include "core/send_limits.h"
#include "log/partition.h"

typedef struct core core;
typedef struct held held;
typedef struct large_batch large_batch;

struct owned { /* a partition of this shard; reference counted: table, routes, jobs, staged batches */
    core *core;
    partition *p;
    uint64_t ns, incarnation;
    uint32_t references;
    bool has_waiting_polls;   /* waiting_polls.h */
    bool removed;             /* it is closed: nobody who still has it may ask it for anything */
    fences fences;            /* of the consumer groups */
    bool judged;              /* sends are looked at before they are appended (once_changed) */
    bool readonly;            /* they are refused (4010); polls and offsets go on */
    bool paused;              /* the next one that is not of Liftbridge ends that: EVENT_RESUMED */
    send_limits *send_limits; /* NULL: none */
    uint32_t send_place;      /* there */
    bool poison_reported;
    uint64_t active_reported; /* start of the active segment when Python last heard of a sealed one */
    struct {
        bool dirty;
        bool waits; /* for its sync, or it runs */
        bool by_caller;
        bool everything;              /* the next sync takes the indexes along */
        uint64_t begun;               /* number of its last sync */
        held *held_first, *held_last; /* answers that wait for one, ascending by its number */
        struct owned *next_dirty, *next_pending;
    } sync;
    struct {
        uint32_t first, last; /* index + 1 into the staged batches; 0 none */
        bool special;         /* one of them is of a producer, or asks for something */
        struct owned *next_touched;
    } staged;
    struct {
        large_batch *first, *last; /* the first one is written in parts, what came behind it waits */
        struct owned *next;
    } parts;
};

typedef struct partition_table {
    owned **slots;
    uint32_t capacity, used;
} partition_table;

int partitions_open(partition_table *t); /* 0 or -ENOMEM */
owned *partitions_find(const partition_table *t, uint64_t ns);
int partitions_enter(partition_table *t, owned *o); /* 0, -EEXIST, -ENOMEM; the table takes over the reference */
void partitions_remove(partition_table *t, const owned *o); /* gives the reference back to the caller */
void owned_release(owned *o);
void drop_route_partition(route_partition *r);
#endif
