/* Who waits for messages: watchers, each over some partitions, here or on other shards (docs/adr/0057).
 *
 * A watcher is woken once: by the first thing that happens to one of its partitions, by its deadline, or by a change of
 * what it may do. It is out of all lists then, asks again and maybe waits again. A partition without watchers costs a
 * send one look at a flag. What is watched on another shard has a place here; the owner knows which shards ask, and
 * tells each of them once. Deadlines are a heap: nobody looks at who waits.
 *
 * The watches of a place are in the order in which their watchers began to wait. What happens at a place concerns those
 * that were there by then: the first few are woken at once, the others in slices (watches_run), the oldest first. */
#ifndef SHARDD_WATCH_H
#define SHARDD_WATCH_H
#include "base/shared.h"
#include "core/route.h"

#define WATCHES_MAX 1000u /* of one watcher */
#define WATCH_BUCKETS 4096u
#define WAKES_AT_ONCE 64u

typedef struct core core;
typedef struct watcher watcher;
typedef struct watch_place watch_place;

typedef struct watch {
    struct watch *next, *previous; /* at its place */
    struct watch *next_of;         /* of its watcher */
    watcher *of;
    watch_place *place;
} watch;

struct watcher {
    void (*woken)(watcher *);
    int64_t until_us;
    uint64_t number; /* they are numbered as they begin to wait */
    uint32_t user_id;
    uint32_t at; /* index + 1 in the heap; 0: it does not wait */
    watch *watches;
    watch as_user;
};

typedef struct watch_limits {
    uint32_t all;     /* watchers of a shard */
    uint32_t of_user; /* those whose ids share a place (ROUTE_USER_PLACES) count together */
} watch_limits;

typedef struct watches {
    watch_place **places; /* buckets, by namespace */
    watch_place **topics; /* the same places, by topic */
    watch_place *users;   /* ROUTE_USER_PLACES */
    watch_place *first_due, *last_due;
    watcher **heap; /* by deadline */
    uint64_t number;
    uint32_t count, capacity;
    uint32_t by_user[ROUTE_USER_PLACES];
} watches;

int watches_open(watches *w); /* 0 or -ENOMEM */
void watches_close(watches *w);

/* Begins to wait. False: too many do, or no memory. */
bool watcher_enter(core *k, watcher *w, uint32_t user_id, int64_t until_us);
/* One more partition. False: it cannot be watched now. What came before this call to a partition elsewhere is not told:
 * look at it once more. */
bool watcher_watch(core *k, watcher *w, const route_partition *p);
void watcher_leave(core *k, watcher *w);

void watches_moved(owned *o); /* polls may see more of it */
void watches_ended(owned *o); /* it is closed */
/* Wakes whose time is over and whom something concerns, as many as the time allows. */
void watches_run(core *k, int64_t until_us);
static inline int64_t watches_next_us(const watches *w) {
    if (w->first_due != NULL) return 0;
    return w->count > 0 ? w->heap[0]->until_us : INT64_MAX;
}
/* What is remembered of rights and places has ended. */
void watches_wake_user(core *k, uint32_t user_id);
void watches_wake_topic(core *k, uint64_t ns);
void watches_wake_stream(core *k, uint32_t stream_id);
void watches_wake_all(core *k);

/* Between shards. A peer wants to hear of a partition here. False: tell it now. */
bool watches_asked(core *k, uint32_t shard, uint64_t ns, uint64_t incarnation);
void watches_told(core *k, uint64_t ns);          /* by its owner */
void watches_owner_down(core *k, uint32_t shard); /* it remembers nothing */
#endif
