/* See expiry_clock.h. */
#include "log/expiry_clock.h"

#include "base/clock.h"

#define STEADY_BASE_US (INT64_C(1) << 50) /* what is older than the boot has a time, too */
#define PAIR_TRIES 8
#define PAIR_SPAN_US 1000 /* a process that waits for the CPU between its looks at two clocks sees no jump */

static uint64_t wall(void *context) {
    (void)context;
    return clock_wall_us();
}

static int64_t since_boot(void *context) {
    (void)context;
    return clock_boot_us();
}

expiry_clock expiry_clock_of_system(void) { return (expiry_clock){.wall_us = wall, .monotonic_us = since_boot}; }

static shared_clock *state_of(expiry_clock *c) { return c->shared != NULL ? c->shared : &c->own; }

static int64_t boot_us(const expiry_clock *c) { return c->monotonic_us(c->context); }

static uint64_t distance(int64_t a, int64_t b) { return a > b ? (uint64_t)(a - b) : (uint64_t)(b - a); }

/* How far the wall clock is ahead of the time since the boot, both of one moment, which is `*now`. */
static int64_t wall_ahead_at(const expiry_clock *c, int64_t *now) {
    int64_t found = 0, shortest = INT64_MAX;
    for (int i = 0; i < PAIR_TRIES && shortest > PAIR_SPAN_US; i++) {
        int64_t before = boot_us(c), wall_us = (int64_t)c->wall_us(c->context), span = boot_us(c) - before;
        if (span >= shortest) continue;
        shortest = span;
        *now = before;
        found = wall_us - before;
    }
    return found;
}

/* Whether it goes by the wall clock from now on. `*begins`: the jump that it doubts is another one than before. */
static bool follows(clock_track *t, int64_t now, int64_t wall_ahead, uint64_t jump_max_us, bool *begins) {
    int64_t since = t->doubted_since_us;
    uint64_t far = distance(wall_ahead, t->ahead_us);
    *begins = false;
    if (jump_max_us == 0 || far < CLOCK_STEP_US) return true;
    *begins = since == 0 || distance(wall_ahead, t->doubted_ahead_us) >= CLOCK_STEP_US;
    if (*begins) t->doubted_since_us = since = now > 0 ? now : 1;
    t->doubted_ahead_us = wall_ahead;
    return (uint64_t)(now - since) >= (far < jump_max_us ? far : jump_max_us);
}

static void believe(clock_track *t, int64_t wall_ahead) {
    t->ahead_us = wall_ahead;
    t->doubted_since_us = 0;
}

static bool is_forward(const clock_track *t, int64_t wall_ahead) { return wall_ahead - t->ahead_us >= CLOCK_STEP_US; }

/* Only the wall clock of a boot makes the tracks differ. */
static bool tracks_differ(const shared_clock *s) {
    return distance(s->believed.ahead_us, s->stamps.ahead_us) >= CLOCK_STEP_US;
}

/* The first time of a track in this boot, at least. */
static uint64_t boot_time_of(const clock_track *t) { return t->ahead_us > 0 ? (uint64_t)t->ahead_us : 0; }

/* From when on the times of a track are too early, when the wall clock is right. */
static uint64_t wrong_since(const shared_clock *s, const clock_track *t) {
    if (t == &s->stamps && tracks_differ(s)) return boot_time_of(t); /* wrong since the boot, maybe */
    return (uint64_t)(t->doubted_since_us + t->ahead_us);
}

/* What has these times is older by them than it is. */
static void remember_doubt(shared_clock *s, uint64_t first_us, int64_t now, int64_t wall_ahead) {
    clock_doubt *d = &s->doubts[s->doubts_ended % SHARED_DOUBTS];
    int64_t ahead = s->believed.ahead_us;
    d->ended_us = 0;
    d->first_us = first_us;
    d->ended_us = (uint64_t)(now + (wall_ahead > ahead ? wall_ahead : ahead));
    s->doubts_ended++;
}

/* The jump ahead that ended it was wrong: nothing counts as stored later than now. */
static void end_doubts_by(shared_clock *s, uint64_t now_us) {
    for (uint32_t i = 0; i < SHARED_DOUBTS; i++)
        if (s->doubts[i].ended_us > now_us) s->doubts[i].ended_us = now_us;
}

static void look(expiry_clock *c, shared_clock *s) {
    int64_t now = boot_us(c), wall_ahead = (int64_t)c->wall_us(c->context) - now;
    if (!s->running) {
        wall_ahead = wall_ahead_at(c, &now);
        s->believed.ahead_us = s->stamps.ahead_us = wall_ahead;
        s->running = 1;
        return;
    }
    clock_track *believed = &s->believed, *stamps = &s->stamps;
    if (distance(wall_ahead, believed->ahead_us) >= CLOCK_STEP_US) wall_ahead = wall_ahead_at(c, &now);
    bool begins, nearer = distance(wall_ahead, believed->ahead_us) < distance(stamps->ahead_us, believed->ahead_us);
    bool stamps_follow = follows(stamps, now, wall_ahead, s->jump_max_us, &begins) || nearer;
    bool follow = follows(believed, now, wall_ahead, s->jump_max_us, &begins);
    uint64_t first = UINT64_MAX, also = UINT64_MAX;
    if (stamps_follow && is_forward(stamps, wall_ahead)) first = wrong_since(s, stamps);
    if (follow && is_forward(believed, wall_ahead)) also = wrong_since(s, believed);
    if (also < first) first = also;
    /* before a track moves: a process that is killed in between has kept it */
    if (s->jump_max_us > 0 && first != UINT64_MAX) remember_doubt(s, first, now, wall_ahead);
    if (follow && believed->ahead_us - wall_ahead >= CLOCK_STEP_US) end_doubts_by(s, (uint64_t)(now + wall_ahead));
    if (stamps_follow) believe(stamps, wall_ahead);
    if (follow) believe(believed, wall_ahead);
    if (begins) s->jumps++;
    s->jump_us = believed->doubted_since_us != 0 ? wall_ahead - believed->ahead_us : 0;
}

/* The time of a track. */
static uint64_t now_of(expiry_clock *c, shared_clock *s, const clock_track *t) {
    if (c->shared == NULL || c->looks) look(c, s);
    if (!s->running || s->jump_max_us == 0) return c->wall_us(c->context);
    return (uint64_t)(boot_us(c) + t->ahead_us);
}

uint64_t expiry_clock_now(expiry_clock *c) {
    shared_clock *s = state_of(c);
    return now_of(c, s, &s->believed);
}

uint64_t expiry_clock_stamp(expiry_clock *c) {
    shared_clock *s = state_of(c);
    return now_of(c, s, &s->stamps);
}

uint64_t expiry_clock_steady(expiry_clock *c) { return (uint64_t)(boot_us(c) + STEADY_BASE_US); }

uint64_t expiry_clock_steady_at(expiry_clock *c, uint64_t stamp_us, uint64_t now_us, uint64_t steady_us) {
    uint64_t since = expiry_clock_reaches(c, stamp_us, 0), age = now_us > since ? now_us - since : 0;
    return steady_us > age ? steady_us - age : 0;
}

/* Whether stamps are behind what is believed, since this boot: everything that they are on counts as stored now. */
static bool stamps_lag(const shared_clock *s) {
    return s->running && s->jump_max_us > 0 && s->believed.ahead_us - s->stamps.ahead_us >= CLOCK_STEP_US;
}

uint64_t expiry_clock_first_younger(expiry_clock *c, uint64_t now_us, uint64_t age_us) {
    const shared_clock *s = state_of(c);
    if (now_us < age_us) return 0;
    uint64_t first = now_us - age_us + 1, found = first;
    for (uint32_t i = 0; i < SHARED_DOUBTS; i++) {
        uint64_t ended = s->doubts[i].ended_us, begun = s->doubts[i].first_us;
        if (ended >= first && begun < found) found = begun;
    }
    if (age_us > 0 && stamps_lag(s) && boot_time_of(&s->stamps) < found) found = boot_time_of(&s->stamps);
    return found;
}

uint64_t expiry_clock_reaches(expiry_clock *c, uint64_t stamp_us, uint64_t age_us) {
    const shared_clock *s = state_of(c);
    uint64_t since = stamp_us;
    for (uint32_t i = 0; i < SHARED_DOUBTS; i++) {
        uint64_t ended = s->doubts[i].ended_us;
        if (stamp_us >= s->doubts[i].first_us && ended > since) since = ended;
    }
    if (stamps_lag(s) && stamp_us >= boot_time_of(&s->stamps)) {
        uint64_t now = (uint64_t)(boot_us(c) + s->believed.ahead_us);
        if (now > since) since = now;
    }
    return since > UINT64_MAX - age_us ? UINT64_MAX : since + age_us;
}

/* `known`: the time since the boot at which all that was so. */
static void begin_track(clock_track *t, int64_t known, int64_t wall_ahead, uint64_t time_us, uint64_t doubted_us) {
    t->ahead_us = time_us != 0 ? (int64_t)time_us - known : wall_ahead;
    t->doubted_ahead_us = wall_ahead;
    t->doubted_since_us = doubted_us == 0 ? 0 : known > (int64_t)doubted_us ? known - (int64_t)doubted_us : 1;
}

void expiry_clock_begin(expiry_clock *c, const clock_memory *memory) {
    shared_clock *s = state_of(c);
    int64_t now = 0, wall_ahead = wall_ahead_at(c, &now);
    int64_t known = memory->since_boot_us != 0 ? (int64_t)memory->since_boot_us : now;
    if (known > now) known = now; /* of another boot */
    uint64_t believed_us = memory->believed_us != 0 ? memory->believed_us + (uint64_t)(now - known) : 0;
    begin_track(&s->believed, known, wall_ahead, memory->believed_us, memory->believed_doubted_us);
    begin_track(&s->stamps, known, wall_ahead, memory->stamps_us, memory->stamps_doubted_us);
    for (uint32_t i = 0; i < SHARED_DOUBTS; i++) {
        if (memory->doubts[i][1] == 0) continue;
        clock_doubt *d = &s->doubts[s->doubts_ended++ % SHARED_DOUBTS];
        d->first_us = memory->doubts[i][0];
        d->ended_us = memory->doubts[i][1];
        if (believed_us != 0 && d->ended_us > believed_us) d->ended_us = believed_us;
    }
    s->running = 1;
}

static uint64_t doubted_us(const clock_track *t, int64_t now) {
    int64_t since = t->doubted_since_us;
    return since == 0 ? 0 : (uint64_t)(now - since) + 1;
}

void expiry_clock_recall(expiry_clock *c, clock_memory *memory) {
    uint64_t believed_us = expiry_clock_now(c); /* looks */
    shared_clock *s = state_of(c);
    int64_t now = boot_us(c);
    bool goes_by_wall = !s->running || s->jump_max_us == 0;
    *memory = (clock_memory){
        .believed_us = goes_by_wall ? believed_us : (uint64_t)(now + s->believed.ahead_us),
        .stamps_us = goes_by_wall ? believed_us : (uint64_t)(now + s->stamps.ahead_us),
        .believed_doubted_us = doubted_us(&s->believed, now),
        .stamps_doubted_us = doubted_us(&s->stamps, now),
        .since_boot_us = (uint64_t)now,
    };
    uint64_t ended = s->doubts_ended;
    for (uint64_t i = 0; i < SHARED_DOUBTS; i++) { /* the oldest first: `begin` counts on from there */
        const clock_doubt *d = &s->doubts[(ended + i) % SHARED_DOUBTS];
        memory->doubts[i][0] = d->first_us;
        memory->doubts[i][1] = d->ended_us;
    }
}

uint64_t expiry_clock_session_number(expiry_clock *c) {
    shared_clock *s = state_of(c);
    uint64_t now = expiry_clock_now(c), last = s->session_number, next;
    do next = last + 1 > now ? last + 1 : now;
    while (!atomic_compare_exchange_weak(&s->session_number, &last, next));
    return next;
}
