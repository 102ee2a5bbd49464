/* The open files of one worker's log: how many may be open, and who closes one when there is no descriptor left. What
 * connections and the rest of the worker do not need is the log's. The engine owns the cache and gives it to its
 * partitions; whoever opens a partition otherwise has one of its own. Single-threaded, as its partitions.
 *
 * It knows no segments and no offsets: they enter themselves into its lists, and `give_up` closes one of them. */
#ifndef SHARDD_FILE_CACHE_H
#define SHARDD_FILE_CACHE_H
#include <stdbool.h>
#include <stdint.h>

#include "log/index_pages.h"
#include "log/unpacked.h"

#define DESCRIPTORS_RESERVED 1024u /* pools, sockets of the bus, syncs on their way, Python */
#define SEGMENT_PAIRS_MAX 8192u
#define OFFSET_FILES_MAX 1024u
#define SYNCS_MAX 64u
#define SPARE_DESCRIPTORS 8u

typedef struct descriptor_budget {
    uint32_t segment_pairs; /* a pair is .log and .index */
    uint32_t offset_files;  /* of partitions */
    uint32_t syncs;         /* partitions that sync at once */
    uint32_t sync_files;    /* files of a partition in one sync */
    uint32_t introductions; /* sockets that are no connections yet (net/introductions.h) */
} descriptor_budget;

typedef struct cached_file { /* a descriptor or a pair; a part of what its owner knows of it */
    struct cached_file *newer, *older;
    bool (*give_up)(struct cached_file *); /* closes it and takes it out of the list; false: it is needed */
} cached_file;

typedef struct file_list { /* by use */
    cached_file *newest, *oldest;
    uint32_t count;
} file_list;

typedef struct file_cache {
    descriptor_budget budget;
    file_list pairs, offset_files;
    bool pairs_short; /* more are open than may be: they are in use, or not synced */
    int spares[SPARE_DESCRIPTORS];
    uint32_t spares_count;
    bool spares_lent;
    index_pages indexes;     /* what they have read of indexes */
    unpacked_cache unpacked; /* what the partitions have read of compressed segments */
} file_cache;

/* For a worker of `connections` connections, and of `introductions` sockets that may become one, under a limit of
 * `limit` descriptors; never less than a few of each, so that a limit that is too low makes the log slow, not dead. */
descriptor_budget file_budget_plan(uint64_t limit, uint64_t connections, uint32_t introductions);
/* The largest budget: for tools and tests. */
#define FILE_BUDGET_LARGEST \
    {.segment_pairs = SEGMENT_PAIRS_MAX, .offset_files = OFFSET_FILES_MAX, .syncs = SYNCS_MAX, .sync_files = SYNCS_MAX}
void file_cache_open(file_cache *c, descriptor_budget budget);
/* With the plan for the limit of this process, and spare descriptors. */
void file_cache_open_for(file_cache *c, uint64_t connections, uint32_t introductions);
/* Every partition that used it is closed. */
void file_cache_close(file_cache *c);

/* Closes a file of the log that nobody uses and that is synced. False: there is none. */
bool file_cache_release_one(file_cache *c);
/* Several of them, for connections that wait. False: none. */
bool file_cache_release_some(file_cache *c);
/* Whether files that are not synced have kept the log above its share since the last question: the sooner they are
 * synced the sooner they can be closed. */
bool file_cache_was_short(file_cache *c);
/* A few descriptors that only syncs may use when there are no others: without one no file could be synced, so none
 * closed. `keep` takes them (again), as far as there are any; between `lend` and `end` whoever wants one gets them. */
void file_cache_spares_keep(file_cache *c);
void file_cache_spares_lend(file_cache *c);
void file_cache_spares_end(file_cache *c);

/* ---- for the owners of the files ---- */
void file_list_add(file_list *list, cached_file *file); /* as the newest */
void file_list_remove(file_list *list, cached_file *file);
void file_list_use(file_list *list, cached_file *file); /* it is the newest now */
/* Gives up the least recently used one that may go. False: none may. */
bool file_list_give_up(file_list *list);
#endif
