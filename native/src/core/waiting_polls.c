/* See waiting_polls.h. */
#include "core/waiting_polls.h"

#include "base/clock.h"
#include "core/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HEAP_FIRST 64u
#define SHARDS_PER_WORD 64u
#define WAKES_BETWEEN_LOOKS 16u /* at the clock */
#define ASKED_FOR_US 10000      /* an owner that has not answered is asked again after this time */

/* Where polls wait: a partition, or the users whose ids share a place. */
struct waiting_poll_place {
    waiting_poll_place *next;     /* in its bucket */
    waiting_poll_place *in_topic; /* in the bucket of its topic */
    waiting_poll_place **link;    /* the pointer to it in that bucket; NULL: a place of users */
    waiting_poll_place *next_due;
    uint64_t ns, seen; /* seen: the offset behind the last message for polls, of a partition here */
    uint64_t due;      /* polls up to this number are to be woken */
    int64_t asked_us;  /* when its owner was asked; 0: not asked, or the owner has answered */
    uint32_t owner;
    bool queued; /* polls of this place are to be woken */
    waiting_poll_entry *first, *last;
    uint64_t peers[SHARED_SHARDS_MAX / SHARDS_PER_WORD]; /* shards that ask to be woken by a partition here */
};

int waiting_polls_open(waiting_polls *w) {
    w->places = calloc(WAITING_POLL_BUCKETS, sizeof(waiting_poll_place *));
    w->topics = calloc(WAITING_POLL_BUCKETS, sizeof(waiting_poll_place *));
    w->users = calloc(ROUTE_USER_PLACES, sizeof(waiting_poll_place));
    return w->places != NULL && w->topics != NULL && w->users != NULL ? 0 : -ENOMEM;
}

void waiting_polls_close(waiting_polls *w) {
    for (uint32_t n = 0; w->places != NULL && n < WAITING_POLL_BUCKETS; n++)
        for (waiting_poll_place *p = w->places[n], *next; p != NULL; p = next) {
            next = p->next;
            for (waiting_poll_entry *each = p->first, *following; each != NULL; each = following) {
                following = each->next;
                free(each);
            }
            free(p);
        }
    free(w->places);
    free(w->topics);
    free(w->users);
    free(w->heap);
    *w = (waiting_polls){0};
}

/* ---- the heap ---- */

static void put_at(waiting_polls *w, uint32_t at, waiting_poll *of) {
    w->heap[at] = of;
    of->at = at + 1;
}

static void rise(waiting_polls *w, uint32_t at, waiting_poll *of) {
    for (uint32_t above; at > 0 && w->heap[above = (at - 1) / 2]->until_us > of->until_us; at = above)
        put_at(w, at, w->heap[above]);
    put_at(w, at, of);
}

static void sink(waiting_polls *w, uint32_t at, waiting_poll *of) {
    for (uint32_t below; (below = 2 * at + 1) < w->count; at = below) {
        if (below + 1 < w->count && w->heap[below + 1]->until_us < w->heap[below]->until_us) below++;
        if (w->heap[below]->until_us >= of->until_us) break;
        put_at(w, at, w->heap[below]);
    }
    put_at(w, at, of);
}

static bool grow(waiting_polls *w) {
    uint32_t capacity = w->capacity > 0 ? w->capacity * 2 : HEAP_FIRST;
    waiting_poll **larger = realloc(w->heap, capacity * sizeof(waiting_poll *));
    if (larger == NULL) return false;
    w->heap = larger;
    w->capacity = capacity;
    return true;
}

static void leave_heap(waiting_polls *w, waiting_poll *of) {
    uint32_t at = of->at - 1;
    waiting_poll *last = w->heap[--w->count];
    of->at = 0;
    w->by_user[of->user_id % ROUTE_USER_PLACES]--;
    if (last == of) return;
    if (at > 0 && w->heap[(at - 1) / 2]->until_us > last->until_us) rise(w, at, last);
    else sink(w, at, last);
}

/* ---- places ---- */

static uint32_t bucket_of(uint64_t key) { return (key * 0x9E3779B97F4A7C15u >> 32) % WAITING_POLL_BUCKETS; }
static uint64_t topic_of(uint64_t ns) { return ns >> 20; }

static waiting_poll_place **link_of(core *k, uint64_t ns) {
    waiting_poll_place **link = &k->waiting_polls.places[bucket_of(ns)];
    while (*link != NULL && (*link)->ns != ns) link = &(*link)->next;
    return link;
}

static waiting_poll_place *place_of(core *k, uint64_t ns, uint32_t owner) {
    waiting_poll_place **link = link_of(k, ns);
    if (*link != NULL) return *link;
    waiting_poll_place *p = calloc(1, sizeof *p), **topic = &k->waiting_polls.topics[bucket_of(topic_of(ns))];
    if (p == NULL) return NULL;
    p->ns = ns;
    p->owner = owner;
    p->in_topic = *topic;
    p->link = topic;
    if (*topic != NULL) (*topic)->link = &p->in_topic;
    return *topic = *link = p;
}

static waiting_poll_place *place_here(core *k, owned *o) {
    waiting_poll_place *p = place_of(k, o->ns, k->options.shard);
    if (p != NULL && !o->has_waiting_polls) {
        o->has_waiting_polls = true;
        p->seen = partition_polls_end(o->p);
    }
    return p;
}

static bool has_peers(const waiting_poll_place *p) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < sizeof p->peers / sizeof p->peers[0]; i++) any |= p->peers[i];
    return any != 0;
}

static void drop_unused(core *k, waiting_poll_place *p) {
    if (p->link == NULL || p->queued || p->first != NULL || has_peers(p)) return;
    owned *o = p->owner == k->options.shard ? core_owned(k, p->ns) : NULL;
    if (o != NULL) o->has_waiting_polls = false;
    *link_of(k, p->ns) = p->next;
    *p->link = p->in_topic;
    if (p->in_topic != NULL) p->in_topic->link = p->link;
    free(p);
}

static void enter_place(waiting_poll_entry *w, waiting_poll_place *p, waiting_poll *of) {
    *w = (waiting_poll_entry){.previous = p->last, .poll = of, .place = p};
    if (p->last != NULL) p->last->next = w;
    else p->first = w;
    p->last = w;
}

static void leave_place(core *k, waiting_poll_entry *w) {
    waiting_poll_place *p = w->place;
    if (w->next != NULL) w->next->previous = w->previous;
    else p->last = w->previous;
    if (w->previous != NULL) w->previous->next = w->next;
    else p->first = w->next;
    drop_unused(k, p);
}

/* ---- waiting polls ---- */

bool waiting_poll_enter(core *k, waiting_poll *of, uint32_t user_id, int64_t until_us) {
    waiting_polls *w = &k->waiting_polls;
    uint32_t user = user_id % ROUTE_USER_PLACES;
    const waiting_polls_limits *most = &k->options.waiting_polls;
    if (w->count >= most->all || w->by_user[user] >= most->of_user) return false;
    if (w->count == w->capacity && !grow(w)) return false;
    w->by_user[user]++;
    of->user_id = user_id;
    of->until_us = until_us;
    of->entries = NULL;
    of->number = ++w->number;
    enter_place(&of->as_user, &w->users[user], of);
    rise(w, w->count++, of);
    return true;
}

bool waiting_poll_add(core *k, waiting_poll *of, const route_partition *r) {
    bool here = r->owner == k->options.shard;
    owned *o = here ? core_owned(k, r->ns) : NULL;
    if (here && (o == NULL || o->incarnation != r->incarnation)) return false;
    waiting_poll_entry *w = malloc(sizeof *w);
    waiting_poll_place *p = w == NULL ? NULL : here ? place_here(k, o) : place_of(k, r->ns, r->owner);
    if (p == NULL) {
        free(w);
        return false;
    }
    enter_place(w, p, of);
    w->next_of_poll = of->entries;
    of->entries = w;
    if (here || (p->asked_us > 0 && k->now_us - p->asked_us < ASKED_FOR_US)) return true; /* a crowd asks once */
    if (!k->remote->ask_wake(k->remote, r->owner, r->ns, r->incarnation)) return false;
    p->asked_us = k->now_us;
    return true;
}

void waiting_poll_leave(core *k, waiting_poll *of) {
    if (of->at == 0) return;
    leave_heap(&k->waiting_polls, of);
    leave_place(k, &of->as_user);
    while (of->entries != NULL) {
        waiting_poll_entry *w = of->entries;
        of->entries = w->next_of_poll;
        leave_place(k, w);
        free(w);
    }
}

/* ---- what wakes ---- */

static void wake(core *k, waiting_poll *of) {
    waiting_poll_leave(k, of);
    of->woken(of);
}

static bool has_due(const waiting_poll_place *p) { return p->first != NULL && p->first->poll->number <= p->due; }

/* All polls that wait at the place now are to be woken. */
static void make_due(core *k, waiting_poll_place *p) {
    waiting_polls *w = &k->waiting_polls;
    p->due = w->number;
    if (p->queued || !has_due(p)) return;
    p->queued = true;
    p->next_due = NULL;
    if (w->last_due != NULL) w->last_due->next_due = p;
    else w->first_due = p;
    w->last_due = p;
}

/* The first due place has no polls left to wake. */
static void leave_due(core *k) {
    waiting_polls *w = &k->waiting_polls;
    waiting_poll_place *p = w->first_due;
    w->first_due = p->next_due;
    if (w->first_due == NULL) w->last_due = NULL;
    p->queued = false;
    drop_unused(k, p);
}

static void wake_some(core *k) {
    for (uint32_t n = 0; n < WAKES_AT_ONCE && k->waiting_polls.first_due != NULL; n++)
        if (has_due(k->waiting_polls.first_due)) wake(k, k->waiting_polls.first_due->first->poll);
        else leave_due(k);
}

void waiting_polls_run(core *k, int64_t until_us) {
    waiting_polls *w = &k->waiting_polls;
    for (uint32_t n = 1; waiting_polls_next_us(w) <= k->now_us; n++) {
        if (w->first_due == NULL) wake(k, w->heap[0]);
        else if (has_due(w->first_due)) wake(k, w->first_due->first->poll);
        else leave_due(k);
        if (n % WAKES_BETWEEN_LOOKS == 0 && clock_monotonic_us() > until_us) return;
    }
}

static void fire(core *k, waiting_poll_place *p) {
    for (uint32_t shard = 0; has_peers(p); shard++) {
        uint64_t bit = UINT64_C(1) << shard % SHARDS_PER_WORD;
        if ((p->peers[shard / SHARDS_PER_WORD] & bit) != 0) k->remote->wake(k->remote, shard, p->ns);
        p->peers[shard / SHARDS_PER_WORD] &= ~bit;
    }
    make_due(k, p);
    if (!p->queued) drop_unused(k, p);
    wake_some(k);
}

void waiting_polls_wake(owned *o) {
    waiting_poll_place *p = *link_of(o->core, o->ns);
    uint64_t end = partition_polls_end(o->p);
    if (p == NULL || end == p->seen) return;
    p->seen = end;
    fire(o->core, p);
}

void waiting_polls_ended(owned *o) { waiting_polls_told(o->core, o->ns); }

void waiting_polls_told(core *k, uint64_t ns) {
    waiting_poll_place *p = *link_of(k, ns);
    if (p == NULL) return;
    p->asked_us = 0;
    fire(k, p);
}

bool waiting_polls_asked(core *k, uint32_t shard, uint64_t ns, uint64_t incarnation) {
    owned *o = core_owned(k, ns);
    waiting_poll_place *p = o != NULL && o->incarnation == incarnation ? place_here(k, o) : NULL;
    if (p == NULL) return false;
    p->peers[shard / SHARDS_PER_WORD] |= UINT64_C(1) << shard % SHARDS_PER_WORD;
    return true;
}

void waiting_polls_wake_topic(core *k, uint64_t ns) {
    for (waiting_poll_place *p = k->waiting_polls.topics[bucket_of(topic_of(ns))]; p != NULL; p = p->in_topic)
        if (topic_of(p->ns) == topic_of(ns)) make_due(k, p);
    wake_some(k);
}

void waiting_polls_wake_stream(core *k, uint32_t stream_id) {
    for (uint32_t n = 0; k->waiting_polls.count > 0 && n < WAITING_POLL_BUCKETS; n++)
        for (waiting_poll_place *p = k->waiting_polls.places[n]; p != NULL; p = p->next)
            if (p->ns >> 32 == stream_id) make_due(k, p);
    wake_some(k);
}

void waiting_polls_owner_down(core *k, uint32_t shard) {
    for (uint32_t n = 0; k->waiting_polls.count > 0 && n < WAITING_POLL_BUCKETS; n++)
        for (waiting_poll_place *p = k->waiting_polls.places[n]; p != NULL; p = p->next)
            if (p->owner == shard) {
                p->asked_us = 0;
                make_due(k, p);
            }
    wake_some(k);
}

void waiting_polls_wake_user(core *k, uint32_t user_id) {
    make_due(k, &k->waiting_polls.users[user_id % ROUTE_USER_PLACES]);
    wake_some(k);
}

void waiting_polls_wake_all(core *k) {
    for (uint32_t user = 0; user < ROUTE_USER_PLACES; user++) make_due(k, &k->waiting_polls.users[user]);
    wake_some(k);
}
