#include "net/shares.h"

#include "base/assert.h"
#include "net/net.h"

#include <stdlib.h>

#define PARTIAL_BUDGET_MIN (16u << 20)
#define ANONYMOUS_PART 4u /* the crowd without a login has one part in so many */

void shares_open(net *n) {
    uint64_t pool = pool_capacity(n->core->pool), budget = pool / 64;
    if (budget < PARTIAL_BUDGET_MIN) budget = pool / 4 < PARTIAL_BUDGET_MIN ? pool / 4 : PARTIAL_BUDGET_MIN;
    pot *logged_in = &n->pots[BUFFERS_LOGGED_IN], *anonymous = &n->pots[BUFFERS_ANONYMOUS];
    logged_in->budget = budget;
    logged_in->hard_limit = 2 * budget + n->send_bytes_max;
    if (logged_in->hard_limit < pool / 8) logged_in->hard_limit = pool / 8;
    anonymous->budget = budget / ANONYMOUS_PART;
    anonymous->hard_limit = 2 * anonymous->budget;
}

void shares_close(net *n) {
    for (uint32_t set = 0; set < BUFFER_SETS; set++)
        for (uint32_t bucket = 0; bucket < POT_BUCKETS; bucket++)
            for (share *s = n->pots[set].buckets[bucket], *next; s != NULL; s = next) {
                next = s->next_in_bucket;
                free(s);
            }
}

static share **place_of(pot *p, uint64_t key) {
    share **place = &p->buckets[(key ^ key >> 32) % POT_BUCKETS];
    while (*place != NULL && (*place)->key != key) place = &(*place)->next_in_bucket;
    return place;
}

static share *owner_of(conn *c) {
    if (c->memory.share != NULL) return c->memory.share;
    pot *p = &c->net->pots[c->session.authenticated ? BUFFERS_LOGGED_IN : BUFFERS_ANONYMOUS];
    uint64_t key = c->session.authenticated ? c->network ^ (c->session.user_id + 1ull) * 0x9e3779b97f4a7c15ull
                                            : c->network;
    share **place = place_of(p, key);
    if (*place == NULL) *place = calloc(1, sizeof **place);
    share *s = *place != NULL ? *place : &p->common;
    if (s->connections++ == 0) {
        s->pot = p;
        s->key = key;
        p->owners++;
    }
    c->memory.share = s;
    return s;
}

static uint64_t part_of_one(const pot *p) { return p->budget / (p->owners > 0 ? p->owners : 1); }

static uint64_t taken(const share *s) { return s->bytes + s->armed; }

bool share_may_grow(conn *c) {
    share *s = owner_of(c);
    pot *p = s->pot;
    if (p->bytes + p->armed < p->budget || taken(s) < part_of_one(p)) return true;
    if (p->privileged == NULL && p->waiting == NULL) {
        p->privileged = c;
        p->privileged_since_us = c->core->now_us;
    }
    return p->privileged == c;
}

/* ---- holders, by when they began to hold ---- */

static void enter_holders(share *s, conn *c) {
    c->memory.next_holder = NULL;
    c->memory.previous_holder = s->newest;
    if (s->newest != NULL) s->newest->memory.next_holder = c;
    else s->oldest = c;
    s->newest = c;
}

static void leave_holders(share *s, conn *c) {
    if (c->memory.previous_holder != NULL) c->memory.previous_holder->memory.next_holder = c->memory.next_holder;
    else s->oldest = c->memory.next_holder;
    if (c->memory.next_holder != NULL) c->memory.next_holder->memory.previous_holder = c->memory.previous_holder;
    else s->newest = c->memory.previous_holder;
}

void share_give_back(conn *c, uint32_t bytes) {
    share *s = c->memory.share;
    if (bytes > c->memory.held_bytes) bytes = c->memory.held_bytes; /* counted out before, when it was closed for it */
    if (bytes == 0) return;
    ASSERT(s->bytes >= bytes && s->pot->bytes >= bytes);
    c->memory.held_bytes -= bytes;
    s->bytes -= bytes;
    s->pot->bytes -= bytes;
    if (c->memory.held_bytes == 0) leave_holders(s, c);
}

bool share_hold(conn *c, uint32_t bytes) {
    if (bytes == 0) return true;
    share *s = owner_of(c);
    pot *p = s->pot;
    if (c->memory.held_bytes == 0) enter_holders(s, c);
    c->memory.held_bytes += bytes;
    s->bytes += bytes;
    p->bytes += bytes;
    while (p->bytes > p->hard_limit && s->bytes > part_of_one(p) && s->oldest != NULL) {
        conn *oldest = s->oldest;
        share_give_back(oldest, oldest->memory.held_bytes); /* its memory follows when it is freed, in this turn */
        c->core->counters.evicted++;
        c->net->evict(oldest);
    }
    return !c->closing;
}

void share_arm(conn *c, uint32_t bytes) {
    if (bytes == c->memory.armed_bytes) return;
    share *s = owner_of(c);
    s->armed += bytes - (uint64_t)c->memory.armed_bytes;
    s->pot->armed += bytes - (uint64_t)c->memory.armed_bytes;
    c->memory.armed_bytes = bytes;
}

void share_leave(conn *c) {
    share *s = c->memory.share;
    if (s == NULL) return;
    share_stop_waiting(c);
    share_arm(c, 0);
    share_give_back(c, c->memory.held_bytes);
    if (s->pot->privileged == c) s->pot->privileged = NULL;
    c->memory.share = NULL;
    if (--s->connections > 0) return;
    ASSERT(s->pot->owners > 0 && s->bytes == 0 && s->armed == 0);
    s->pot->owners--;
    if (s == &s->pot->common) return;
    *place_of(s->pot, s->key) = s->next_in_bucket;
    free(s);
}

/* ---- waiting ---- */

static void queue_owner(pot *p, share *s) {
    s->next_waiting = NULL;
    if (p->waiting == NULL) p->waiting = s;
    else p->waiting_last->next_waiting = s;
    p->waiting_last = s;
}

static void unqueue_owner(pot *p, const share *s) {
    share *before = NULL, *at = p->waiting;
    while (at != s) {
        before = at;
        at = at->next_waiting;
    }
    if (before == NULL) p->waiting = s->next_waiting;
    else before->next_waiting = s->next_waiting;
    if (p->waiting_last == s) p->waiting_last = before;
}

void share_wait(conn *c) {
    share *s = owner_of(c);
    c->core->counters.throttled++;
    c->memory.throttled = true;
    c->clocks.throttled_us = c->core->now_us;
    c->memory.next_throttled = NULL;
    c->memory.previous_throttled = s->waiting_last;
    if (s->waiting == NULL) {
        queue_owner(s->pot, s);
        s->waiting = c;
    } else {
        s->waiting_last->memory.next_throttled = c;
    }
    s->waiting_last = c;
}

void share_stop_waiting(conn *c) {
    share *s = c->memory.share;
    if (!c->memory.throttled) return;
    c->memory.throttled = false;
    if (c->memory.previous_throttled != NULL)
        c->memory.previous_throttled->memory.next_throttled = c->memory.next_throttled;
    else s->waiting = c->memory.next_throttled;
    if (c->memory.next_throttled != NULL)
        c->memory.next_throttled->memory.previous_throttled = c->memory.previous_throttled;
    else s->waiting_last = c->memory.previous_throttled;
    if (s->waiting == NULL) unqueue_owner(s->pot, s);
}

static bool may_go_on(net *n, pot *p, const share *s, conn *c) {
    if (p->privileged == c || p->bytes + p->armed < p->budget || taken(s) < part_of_one(p)) return true;
    if (p->privileged != NULL) return false;
    p->privileged = c;
    p->privileged_since_us = n->core->now_us;
    return true;
}

/* Every waiting owner has one turn. True when some connection went on. */
static bool run_lap(net *n, pot *p) {
    bool any = false;
    for (share *last = p->waiting_last; p->waiting != NULL;) {
        share *s = p->waiting;
        conn *c = s->waiting;
        bool is_last = s == last;
        if (may_go_on(n, p, s, c)) {
            any = true;
            share_stop_waiting(c);
            c->clocks.progress_us += n->core->now_us - c->clocks.throttled_us; /* waiting was not its own doing */
            c->clocks.frame_us += n->core->now_us - c->clocks.throttled_us;
            n->go_on(c);
        }
        if (p->waiting == s) { /* the next one's turn */
            unqueue_owner(p, s);
            queue_owner(p, s);
        }
        if (is_last) break;
    }
    return any;
}

void shares_run(net *n) {
    for (uint32_t set = 0; set < BUFFER_SETS; set++)
        while (n->pots[set].waiting != NULL && run_lap(n, &n->pots[set])) continue;
}

bool share_contended(const conn *c) {
    const share *s = c->memory.share;
    if (s == NULL || s->pot->waiting == NULL || (c->memory.held_bytes == 0 && c->memory.armed_bytes == 0)) return false;
    return s->waiting != NULL || taken(s) > part_of_one(s->pot);
}

uint64_t shares_bytes(const net *n) { return n->pots[0].bytes + n->pots[1].bytes; }

uint64_t shares_waiting(const net *n) {
    uint64_t count = 0;
    for (uint32_t set = 0; set < BUFFER_SETS; set++)
        for (const share *s = n->pots[set].waiting; s != NULL; s = s->next_waiting)
            for (const conn *c = s->waiting; c != NULL; c = c->memory.next_throttled) count++;
    return count;
}
