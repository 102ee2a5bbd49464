#include "engine/engine.h"

#include <stdlib.h>

#define PARTIAL_BUDGET_MIN (16u << 20)
#define ANONYMOUS_PART 4u /* the crowd without a login has one part in so many */

void shares_open(engine *e) {
    uint64_t pool = pool_capacity(e->pool), budget = pool / 64;
    if (budget < PARTIAL_BUDGET_MIN) budget = pool / 4 < PARTIAL_BUDGET_MIN ? pool / 4 : PARTIAL_BUDGET_MIN;
    pot *logged_in = &e->pots[BUFFERS_LOGGED_IN], *anonymous = &e->pots[BUFFERS_ANONYMOUS];
    logged_in->budget = budget;
    logged_in->hard_limit = 2 * budget + e->frame_send_max;
    if (logged_in->hard_limit < pool / 8) logged_in->hard_limit = pool / 8;
    anonymous->budget = budget / ANONYMOUS_PART;
    anonymous->hard_limit = 2 * anonymous->budget;
}

void shares_close(engine *e) {
    for (uint32_t n = 0; n < BUFFER_SETS; n++)
        for (uint32_t bucket = 0; bucket < POT_BUCKETS; bucket++)
            for (share *s = e->pots[n].buckets[bucket], *next; s != NULL; s = next) {
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
    if (c->share != NULL) return c->share;
    pot *p = &c->e->pots[c->authenticated ? BUFFERS_LOGGED_IN : BUFFERS_ANONYMOUS];
    uint64_t key = c->authenticated ? c->network ^ (c->user_id + 1ull) * 0x9e3779b97f4a7c15ull : c->network;
    share **place = place_of(p, key);
    if (*place == NULL) {
        *place = calloc(1, sizeof **place);
        if (*place == NULL) abort();
        (*place)->pot = p;
        (*place)->key = key;
        p->owners++;
    }
    (*place)->connections++;
    c->share = *place;
    return c->share;
}

static uint64_t part_of_one(const pot *p) { return p->budget / (p->owners > 0 ? p->owners : 1); }

static uint64_t taken(const share *s) { return s->bytes + s->armed; }

bool share_may_grow(conn *c) {
    share *s = owner_of(c);
    pot *p = s->pot;
    if (p->bytes + p->armed < p->budget || taken(s) < part_of_one(p)) return true;
    if (p->privileged == NULL && p->waiting == NULL) {
        p->privileged = c;
        p->privileged_since_us = c->e->now_us;
    }
    return p->privileged == c;
}

/* ---- holders, by when they began to hold ---- */

static void enter_holders(share *s, conn *c) {
    c->next_holder = NULL;
    c->previous_holder = s->newest;
    if (s->newest != NULL) s->newest->next_holder = c;
    else s->oldest = c;
    s->newest = c;
}

static void leave_holders(share *s, conn *c) {
    if (c->previous_holder != NULL) c->previous_holder->next_holder = c->next_holder;
    else s->oldest = c->next_holder;
    if (c->next_holder != NULL) c->next_holder->previous_holder = c->previous_holder;
    else s->newest = c->previous_holder;
}

void share_give_back(conn *c, uint32_t bytes) {
    share *s = c->share;
    if (bytes > c->held_bytes) bytes = c->held_bytes; /* counted out before, when it was closed for it */
    if (bytes == 0) return;
    c->held_bytes -= bytes;
    s->bytes -= bytes;
    s->pot->bytes -= bytes;
    if (c->held_bytes == 0) leave_holders(s, c);
}

bool share_hold(conn *c, uint32_t bytes) {
    if (bytes == 0) return true;
    share *s = owner_of(c);
    pot *p = s->pot;
    if (c->held_bytes == 0) enter_holders(s, c);
    c->held_bytes += bytes;
    s->bytes += bytes;
    p->bytes += bytes;
    while (p->bytes > p->hard_limit && s->bytes > part_of_one(p) && s->oldest != NULL) {
        conn *oldest = s->oldest;
        share_give_back(oldest, oldest->held_bytes); /* its memory follows when it is freed, in this turn */
        c->e->counters.evicted++;
        conn_close(oldest);
    }
    return !c->closing;
}

void share_arm(conn *c, uint32_t bytes) {
    if (bytes == c->armed_bytes) return;
    share *s = owner_of(c);
    s->armed += bytes - (uint64_t)c->armed_bytes;
    s->pot->armed += bytes - (uint64_t)c->armed_bytes;
    c->armed_bytes = bytes;
}

void share_leave(conn *c) {
    share *s = c->share;
    if (s == NULL) return;
    share_stop_waiting(c);
    share_arm(c, 0);
    share_give_back(c, c->held_bytes);
    if (s->pot->privileged == c) s->pot->privileged = NULL;
    c->share = NULL;
    if (--s->connections > 0) return;
    *place_of(s->pot, s->key) = s->next_in_bucket;
    s->pot->owners--;
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
    c->e->counters.throttled++;
    c->throttled = true;
    c->throttled_us = c->e->now_us;
    c->next_throttled = NULL;
    c->previous_throttled = s->waiting_last;
    if (s->waiting == NULL) {
        queue_owner(s->pot, s);
        s->waiting = c;
    } else {
        s->waiting_last->next_throttled = c;
    }
    s->waiting_last = c;
}

void share_stop_waiting(conn *c) {
    share *s = c->share;
    if (!c->throttled) return;
    c->throttled = false;
    if (c->previous_throttled != NULL) c->previous_throttled->next_throttled = c->next_throttled;
    else s->waiting = c->next_throttled;
    if (c->next_throttled != NULL) c->next_throttled->previous_throttled = c->previous_throttled;
    else s->waiting_last = c->previous_throttled;
    if (s->waiting == NULL) unqueue_owner(s->pot, s);
}

static bool may_go_on(engine *e, pot *p, const share *s, conn *c) {
    if (p->privileged == c || p->bytes + p->armed < p->budget || taken(s) < part_of_one(p)) return true;
    if (p->privileged != NULL) return false;
    p->privileged = c;
    p->privileged_since_us = e->now_us;
    return true;
}

/* Every waiting owner has one turn. True when some connection went on. */
static bool run_lap(engine *e, pot *p) {
    bool any = false;
    for (share *last = p->waiting_last; p->waiting != NULL;) {
        share *s = p->waiting;
        conn *c = s->waiting;
        bool is_last = s == last;
        if (may_go_on(e, p, s, c)) {
            any = true;
            share_stop_waiting(c);
            c->progress_us += e->now_us - c->throttled_us; /* waiting was not its own doing */
            c->frame_us += e->now_us - c->throttled_us;
            conn_arm_receive(c);
        }
        if (p->waiting == s) { /* the next one's turn */
            unqueue_owner(p, s);
            queue_owner(p, s);
        }
        if (is_last) break;
    }
    return any;
}

void shares_run(engine *e) {
    for (uint32_t n = 0; n < BUFFER_SETS; n++)
        while (e->pots[n].waiting != NULL && run_lap(e, &e->pots[n])) continue;
}

bool share_contended(const conn *c) {
    const share *s = c->share;
    if (s == NULL || s->pot->waiting == NULL || (c->held_bytes == 0 && c->armed_bytes == 0)) return false;
    return s->waiting != NULL || taken(s) > part_of_one(s->pot);
}

uint64_t shares_bytes(const engine *e) { return e->pots[0].bytes + e->pots[1].bytes; }

uint64_t shares_waiting(const engine *e) {
    uint64_t count = 0;
    for (uint32_t n = 0; n < BUFFER_SETS; n++)
        for (const share *s = e->pots[n].waiting; s != NULL; s = s->next_waiting)
            for (const conn *c = s->waiting; c != NULL; c = c->next_throttled) count++;
    return count;
}
