/* See watch.h. */
#include "core/watch.h"

#include "core/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HEAP_FIRST 64u
#define SHARDS_PER_WORD 64u

struct watch {
    watch *next, *previous; /* at its place */
    watch *next_of;         /* of its watcher */
    watcher *of;
    watch_place *place;
};

struct watch_place {
    watch_place *next; /* in its bucket */
    uint64_t ns, seen; /* seen: where polls end, of a partition here */
    uint32_t owner;
    bool firing;
    watch *first;
    uint64_t peers[SHARED_SHARDS_MAX / SHARDS_PER_WORD]; /* who asks for a partition here */
};

int watches_open(watches *w) {
    w->places = calloc(WATCH_BUCKETS, sizeof *w->places);
    return w->places != NULL ? 0 : -ENOMEM;
}

void watches_close(watches *w) {
    for (uint32_t n = 0; w->places != NULL && n < WATCH_BUCKETS; n++)
        for (watch_place *p = w->places[n], *next; p != NULL; p = next) {
            next = p->next;
            for (watch *each = p->first, *following; each != NULL; each = following) {
                following = each->next;
                free(each);
            }
            free(p);
        }
    free(w->places);
    free(w->heap);
    *w = (watches){0};
}

/* ---- the heap ---- */

static void put_at(watches *w, uint32_t at, watcher *of) {
    w->heap[at] = of;
    of->at = at + 1;
}

static void rise(watches *w, uint32_t at, watcher *of) {
    for (uint32_t above; at > 0 && w->heap[above = (at - 1) / 2]->until_us > of->until_us; at = above)
        put_at(w, at, w->heap[above]);
    put_at(w, at, of);
}

static void sink(watches *w, uint32_t at, watcher *of) {
    for (uint32_t below; (below = 2 * at + 1) < w->count; at = below) {
        if (below + 1 < w->count && w->heap[below + 1]->until_us < w->heap[below]->until_us) below++;
        if (w->heap[below]->until_us >= of->until_us) break;
        put_at(w, at, w->heap[below]);
    }
    put_at(w, at, of);
}

static bool grow(watches *w) {
    uint32_t capacity = w->capacity > 0 ? w->capacity * 2 : HEAP_FIRST;
    watcher **larger = realloc(w->heap, capacity * sizeof(watcher *));
    if (larger == NULL) return false;
    w->heap = larger;
    w->capacity = capacity;
    return true;
}

bool watcher_enter(core *k, watcher *of, uint32_t user_id, int64_t until_us) {
    watches *w = &k->watches;
    uint32_t *of_user = &w->by_user[user_id % ROUTE_USER_PLACES];
    if (w->count >= WATCHERS_MAX || *of_user >= WATCHERS_OF_USER_MAX) return false;
    if (w->count == w->capacity && !grow(w)) return false;
    ++*of_user;
    of->user_id = user_id;
    of->until_us = until_us;
    of->watches = NULL;
    rise(w, w->count++, of);
    return true;
}

static void leave_heap(watches *w, watcher *of) {
    uint32_t at = of->at - 1;
    watcher *last = w->heap[--w->count];
    of->at = 0;
    w->by_user[of->user_id % ROUTE_USER_PLACES]--;
    if (last == of) return;
    if (at > 0 && w->heap[(at - 1) / 2]->until_us > last->until_us) rise(w, at, last);
    else sink(w, at, last);
}

/* ---- places ---- */

static watch_place **link_of(core *k, uint64_t ns) {
    uint64_t mixed = (ns * 0x9E3779B97F4A7C15u) >> 32;
    watch_place **link = &k->watches.places[mixed % WATCH_BUCKETS];
    while (*link != NULL && (*link)->ns != ns) link = &(*link)->next;
    return link;
}

static watch_place *place_of(core *k, uint64_t ns, uint32_t owner) {
    watch_place **link = link_of(k, ns);
    if (*link == NULL) {
        *link = calloc(1, sizeof **link);
        if (*link == NULL) return NULL;
        (*link)->ns = ns;
        (*link)->owner = owner;
    }
    return *link;
}

static watch_place *place_here(core *k, owned *o) {
    watch_place *p = place_of(k, o->ns, k->options.shard);
    if (p != NULL && !o->watched) {
        o->watched = true;
        p->seen = partition_polls_end(o->p);
    }
    return p;
}

static bool has_peers(const watch_place *p) {
    uint64_t any = 0;
    for (uint32_t i = 0; i < sizeof p->peers / sizeof p->peers[0]; i++) any |= p->peers[i];
    return any != 0;
}

static void drop_unused(core *k, watch_place *p) {
    if (p->firing || p->first != NULL || has_peers(p)) return;
    owned *o = p->owner == k->options.shard ? core_owned(k, p->ns) : NULL;
    if (o != NULL) o->watched = false;
    *link_of(k, p->ns) = p->next;
    free(p);
}

bool watcher_watch(core *k, watcher *of, const route_partition *r) {
    bool here = r->owner == k->options.shard;
    owned *o = here ? core_owned(k, r->ns) : NULL;
    if (here && (o == NULL || o->incarnation != r->incarnation)) return false;
    watch *w = malloc(sizeof *w);
    watch_place *p = w == NULL ? NULL : here ? place_here(k, o) : place_of(k, r->ns, r->owner);
    if (p == NULL) {
        free(w);
        return false;
    }
    *w = (watch){.next = p->first, .next_of = of->watches, .of = of, .place = p};
    if (w->next != NULL) w->next->previous = w;
    p->first = w;
    of->watches = w;
    return here || k->remote->watch(k->remote, r->owner, r->ns, r->incarnation);
}

void watcher_leave(core *k, watcher *of) {
    if (of->at == 0) return;
    leave_heap(&k->watches, of);
    while (of->watches != NULL) {
        watch *w = of->watches;
        watch_place *p = w->place;
        of->watches = w->next_of;
        if (w->next != NULL) w->next->previous = w->previous;
        if (w->previous != NULL) w->previous->next = w->next;
        else p->first = w->next;
        free(w);
        drop_unused(k, p);
    }
}

/* ---- what wakes ---- */

static void wake(core *k, watcher *of) {
    watcher_leave(k, of);
    of->woken(of);
}

static void fire(core *k, watch_place *p) {
    p->firing = true;
    while (p->first != NULL) wake(k, p->first->of);
    p->firing = false;
    for (uint32_t shard = 0; has_peers(p); shard++) {
        uint64_t bit = UINT64_C(1) << shard % SHARDS_PER_WORD;
        if ((p->peers[shard / SHARDS_PER_WORD] & bit) != 0) k->remote->tell(k->remote, shard, p->ns);
        p->peers[shard / SHARDS_PER_WORD] &= ~bit;
    }
    drop_unused(k, p);
}

void watches_moved(owned *o) {
    watch_place *p = *link_of(o->core, o->ns);
    if (p != NULL && partition_polls_end(o->p) != p->seen) fire(o->core, p);
}

void watches_ended(owned *o) { watches_told(o->core, o->ns); }

void watches_told(core *k, uint64_t ns) {
    watch_place *p = *link_of(k, ns);
    if (p != NULL) fire(k, p);
}

void watches_expire(core *k) {
    while (watches_next_us(&k->watches) <= k->now_us) wake(k, k->watches.heap[0]);
}

bool watches_asked(core *k, uint32_t shard, uint64_t ns, uint64_t incarnation) {
    owned *o = core_owned(k, ns);
    watch_place *p = o != NULL && o->incarnation == incarnation ? place_here(k, o) : NULL;
    if (p == NULL) return false;
    p->peers[shard / SHARDS_PER_WORD] |= UINT64_C(1) << shard % SHARDS_PER_WORD;
    return true;
}

/* Those whose namespace or owner is that one. Who is woken waits again in a later turn. */
static void fire_all(core *k, uint64_t ns, uint32_t shift, int64_t owner) {
    for (uint32_t n = 0; k->watches.count > 0 && n < WATCH_BUCKETS; n++)
        for (watch_place *p = k->watches.places[n]; p != NULL;) {
            bool meant = p->first != NULL && (owner >= 0 ? p->owner == (uint32_t)owner : p->ns >> shift == ns);
            if (meant) { /* may remove others of the bucket */
                p->firing = true;
                while (p->first != NULL) wake(k, p->first->of);
                p->firing = false;
                drop_unused(k, p);
            }
            p = meant ? k->watches.places[n] : p->next;
        }
}

void watches_wake_topic(core *k, uint64_t ns) { fire_all(k, ns >> 20, 20, -1); }
void watches_wake_stream(core *k, uint32_t stream_id) { fire_all(k, stream_id, 32, -1); }
void watches_owner_down(core *k, uint32_t shard) { fire_all(k, 0, 0, shard); }

void watches_wake_all(core *k) {
    while (k->watches.count > 0) wake(k, k->watches.heap[k->watches.count - 1]);
}

void watches_wake_user(core *k, uint32_t user_id) {
    watcher *first = NULL;
    for (uint32_t i = 0; i < k->watches.count; i++) { /* a wake moves the heap */
        watcher *of = k->watches.heap[i];
        if (of->user_id != user_id) continue;
        of->next = first;
        first = of;
    }
    for (watcher *next; first != NULL; first = next) {
        next = first->next;
        wake(k, first);
    }
}
