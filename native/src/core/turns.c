/* See turns.h. */
#include "core/turns.h"

/* Whether others than `who` send to the topic in between. What a turn of another shard says counts, too. */
static bool is_crowded(const core *k, route_topic *t, const session *who, bool after_us) {
    if (k->now_us - t->turns.last_us > TURNS_PAUSE_US) t->turns.crowd = 0;
    t->turns.last_us = k->now_us;
    if (who->connection != t->turns.connection || !after_us) {
        t->turns.connection = who->connection;
        t->turns.alone = 0;
        t->turns.crowd += t->turns.crowd < TURNS_CROWD;
    } else if (++t->turns.alone >= TURNS_ALONE) {
        t->turns.crowd = 0;
    }
    return t->turns.crowd >= TURNS_CROWD;
}

static int32_t owed(const core *k, const route_partition *p) {
    return atomic_load_explicit(&k->links.owed[p->slot], memory_order_relaxed);
}

static void owe(core *k, const route_partition *p, int32_t turns) {
    atomic_fetch_add_explicit(&k->links.owed[p->slot], turns, memory_order_relaxed);
}

static uint32_t next_own(route_topic *t) {
    t->turns.own = t->turns.own + 1 < t->own_count ? t->turns.own + 1 : 0;
    return t->own[t->turns.own];
}

/* Of the next few own partitions the one that is owed most. */
static uint32_t neediest(const core *k, route_topic *t) {
    uint32_t found = 0, tries = t->own_count < TURNS_TRIED ? t->own_count : TURNS_TRIED;
    int32_t most = INT32_MIN;
    for (uint32_t tried = 0; tried < tries; tried++) {
        uint32_t own = next_own(t);
        int32_t turns = owed(k, &t->partitions[own]);
        if (turns <= most) continue;
        most = turns;
        found = own;
    }
    next_own(t); /* the first of equals is not always the same */
    return found;
}

uint32_t turns_take(core *k, route_topic *t, const session *who) {
    bool after_us;
    uint32_t turn = links_balance(&k->links, t->counter, t->partitions_count, &after_us);
    bool crowded = is_crowded(k, t, who, after_us);
    const route_partition *theirs = &t->partitions[turn];
    if (theirs->owner == k->options.shard || !crowded || t->own_count == 0) return turn;
    uint32_t instead = neediest(k, t);
    const route_partition *ours = &t->partitions[instead];
    if (owed(k, theirs) >= TURNS_OWED_MAX || owed(k, ours) <= -TURNS_OWED_MAX) return turn;
    owe(k, theirs, 1);
    owe(k, ours, -1);
    k->counters.turns_exchanged++;
    return instead;
}
