/* Waiting polls: polls that found nothing and wait for messages, each at some partitions, here or on other shards
 * (docs/adr/0057).
 *
 * A waiting poll is woken once: by the first change of one of its partitions, by its deadline, or by a change of its
 * rights. It is in no list then; its owner executes the poll again, which may wait again. A partition without waiting
 * polls costs a send one look at a flag. A partition of another shard has a place here; its owner remembers which
 * shards ask, and wakes each of them once. Deadlines are a heap, so no pass looks at all waiting polls.
 *
 * The polls of a place are in the order in which they began to wait. A change of the place wakes the polls that were
 * there before it: the first WAKES_AT_ONCE at once, the others in slices (waiting_polls_run), the oldest first. */
#ifndef SHARDD_WAITING_POLLS_H
#define SHARDD_WAITING_POLLS_H
#include "base/shared.h"
#include "core/route.h"

#define WAITING_POLL_PARTITIONS_MAX 1000u
#define WAITING_POLL_BUCKETS 4096u
#define WAKES_AT_ONCE 64u

typedef struct core core;
typedef struct waiting_poll waiting_poll;
typedef struct waiting_poll_place waiting_poll_place;

/* A waiting poll in the list of one place. */
typedef struct waiting_poll_entry {
    struct waiting_poll_entry *next, *previous; /* at its place */
    struct waiting_poll_entry *next_of_poll;
    waiting_poll *poll;
    waiting_poll_place *place;
} waiting_poll_entry;

struct waiting_poll {
    void (*woken)(waiting_poll *);
    int64_t until_us;
    uint64_t number; /* polls are numbered as they begin to wait */
    uint32_t user_id;
    uint32_t at; /* index + 1 in the heap; 0: it does not wait */
    waiting_poll_entry *entries;
    waiting_poll_entry as_user;
};

typedef struct waiting_polls_limits {
    uint32_t all;     /* waiting polls of a shard */
    uint32_t of_user; /* users whose ids share a place (ROUTE_USER_PLACES) count together */
} waiting_polls_limits;

typedef struct waiting_polls {
    waiting_poll_place **places; /* buckets, by namespace */
    waiting_poll_place **topics; /* the same places, by topic */
    waiting_poll_place *users;   /* ROUTE_USER_PLACES */
    waiting_poll_place *first_due, *last_due;
    waiting_poll **heap; /* by deadline */
    uint64_t number;
    uint32_t count, capacity;
    uint32_t by_user[ROUTE_USER_PLACES];
} waiting_polls;

int waiting_polls_open(waiting_polls *w); /* 0 or -ENOMEM */
void waiting_polls_close(waiting_polls *w);

/* The poll begins to wait. False: too many polls wait, or there is no memory. */
bool waiting_poll_enter(core *k, waiting_poll *w, uint32_t user_id, int64_t until_us);
/* The poll waits at one more partition. False: it cannot wait there now. Messages that came to a partition of another
 * shard before this call wake no poll: look at the partition once more. */
bool waiting_poll_add(core *k, waiting_poll *w, const route_partition *p);
void waiting_poll_leave(core *k, waiting_poll *w);

/* Wakes the polls at a partition if polls see more of it than before. */
void waiting_polls_wake(owned *o);
void waiting_polls_ended(owned *o); /* the partition is closed */
/* Wakes polls whose deadline is over or whose place has changed, as many as the time allows. */
void waiting_polls_run(core *k, int64_t until_us);
static inline int64_t waiting_polls_next_us(const waiting_polls *w) {
    if (w->first_due != NULL) return 0;
    return w->count > 0 ? w->heap[0]->until_us : INT64_MAX;
}
/* The worker no longer remembers the rights and places of a user, a topic, a stream, or of all. */
void waiting_polls_wake_user(core *k, uint32_t user_id);
void waiting_polls_wake_topic(core *k, uint64_t ns);
void waiting_polls_wake_stream(core *k, uint32_t stream_id);
void waiting_polls_wake_all(core *k);

/* Between shards. A shard asks to be woken by a partition of this one. False: wake it now. */
bool waiting_polls_asked(core *k, uint32_t shard, uint64_t ns, uint64_t incarnation);
void waiting_polls_told(core *k, uint64_t ns);          /* the owner of the partition wakes this shard */
void waiting_polls_owner_down(core *k, uint32_t shard); /* the next owner does not know which shards ask */
#endif
