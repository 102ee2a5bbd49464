/* Steps of the retention: the log start moves with age and limits, segments are sealed early so that they can go, and
 * files of what lies before the log start leave. The caller chooses the partition and the pace. */
#include "log/partition/inside.h"

#include "log/expiry_clock.h"
#include "log/partition/lookup.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

#define SETTLE_US 1000000 /* what was acknowledged within this time is not taken away */
#define DROPPED_MAX 64u   /* segments in a step for their bytes */

/* What was acknowledged a second ago by a clock that nobody sets, or at most a quarter more than that. */
static void settle(partition *p, int64_t now) {
    const unsigned looks = sizeof(p->retention.settling) / sizeof(p->retention.settling[0]);
    const uint64_t end = partition_visible_end(p); /* a sync that failed takes it back: later ones have a second anew */
    unsigned oldest = 0;
    int64_t newest_us = 0;
    if (p->retention.settled > end) p->retention.settled = end;
    for (unsigned i = 0; i < looks; i++) {
        if (p->retention.settling[i].end > end) p->retention.settling[i].end = end;
        int64_t at_us = p->retention.settling[i].at_us;
        if (at_us != 0 && now - at_us >= SETTLE_US && p->retention.settling[i].end > p->retention.settled)
            p->retention.settled = p->retention.settling[i].end;
        if (at_us < p->retention.settling[oldest].at_us) oldest = i;
        if (at_us > newest_us) newest_us = at_us;
    }
    if (newest_us != 0 && now - newest_us < SETTLE_US / (int64_t)looks) return;
    p->retention.settling[oldest].at_us = now;
    p->retention.settling[oldest].end = end;
}

/* Limits of size and count win over stored offsets that cannot be read: those may never be read again. What passes by
 * itself is tried again here; meanwhile all stored offsets count as behind. */
static bool known_to_hold(partition *p) { return partition_have_offsets(p) == 0 || side_passes(p->offsets.side.error); }

/* Stored offsets hold back what a limit by size or count wants to go for as long as the topic says. */
static bool limit_start(partition *p, uint64_t wanted) {
    uint64_t now = expiry_clock_now(p->clock);
    if (wanted > p->retention.settled) wanted = p->retention.settled;
    if (wanted <= partition_first_offset(p)) return true;
    bool held;
    if (!known_to_hold(p)) return partition_move_start(p, wanted), true;
    if (!partition_unless_held(p, now, p->retention.limits.size_held_us, &wanted, &held)) return false;
    p->retention.limit_held |= held;
    partition_move_start(p, wanted);
    return true;
}

/* Messages count, not offsets: those at which nothing can be read (behind a torn tail there may be as many as fit into
 * its bytes) push out no message that can. */
static void limit_count(partition *p) {
    uint64_t wanted;
    if (p->retention.limits.messages_max == 0 || p->start.served_messages <= p->retention.limits.messages_max) return;
    bool known = partition_last_whole(p, p->history.next_offset, p->retention.limits.messages_max, &wanted);
    p->history.missing.want.length = 0; /* an index that cannot be read now is asked for again by the next step */
    if (known) limit_start(p, wanted);
}

static void limit_bytes(partition *p) {
    for (unsigned n = 0;
         n < DROPPED_MAX && p->retention.limits.bytes_max > 0 && p->start.served_bytes > p->retention.limits.bytes_max;
         n++)
        if (partition_drop_oldest(p) == 0) return;
}

static bool has_aged(const partition *p, const segment *s, uint64_t age, uint64_t now) {
    return expiry_clock_reaches(p->clock, partition_began(s), age) <= now;
}

/* Its times are further ahead than such an age: when it was begun nothing tells, and by them it would grow for ever. */
static bool is_astray(const partition *p, const segment *s, uint64_t age, uint64_t now) {
    uint64_t began = partition_began(s);
    return age > 0 && began > now && began - now > age && partition_is_ahead(p, began, now);
}

/* A segment whose oldest message has expired grows no further, so that it can go; nor does one that is too old. */
static void roll_on_age(partition *p) {
    const segment *s = segment_active(&p->history.segments);
    bool aged = p->retention.limits.expiry_us > 0 || roll_grows_old(&p->roll);
    if (!aged || s == NULL || s->count == 0 || roll_is_wanted(&p->roll)) return;
    uint64_t now = expiry_clock_now(p->clock);
    bool expired = p->retention.limits.expiry_us > 0 && has_aged(p, s, p->retention.limits.expiry_us, now);
    bool astray = is_astray(p, s, p->retention.limits.expiry_us, now) ||
                  is_astray(p, s, p->retention.limits.segment_age_us, now);
    bool old = roll_is_old(&p->roll, now) && has_aged(p, s, p->retention.limits.segment_age_us, now);
    if (!expired && !astray && !old) return;
    if (partition_roll(p, now) != 0) roll_wanted(&p->roll);
}

void partition_lease(partition *p, uint64_t offset) { p->retention.leased = offset; }

/* The first of the segments before the log start whose files stay for a reader. */
static uint32_t first_leased(const partition *p) {
    uint32_t i = 0;
    while (i < p->start.hidden && p->history.segments.items[i + 1].start_offset <= p->retention.leased) i++;
    return i;
}

/* Takes away files of segments before the log start. */
static uint32_t remove_hidden(partition *p, const char *trash, uint32_t *removed) {
    uint64_t reading = partition_first_read(p);
    uint32_t status = 0, leased = first_leased(p);
    while (status == 0 && *removed < CLEAN_SEGMENTS_MAX && *removed < leased) {
        segment *s = &p->history.segments.items[*removed];
        uint64_t end = s[1].start_offset;
        if (end > p->start.synced || end > p->retention.settled || reading < end || partition_window_holds(p, end))
            break;
        if (partition_remove_files(p, s, trash)) ++*removed;
        else status = STATUS_CANNOT_DELETE_FILE;
    }
    partition_forget_segments(p, *removed);
    return status;
}

uint32_t partition_clean(partition *p, int64_t monotonic_us, const char *trash, partition_cleaned *out) {
    *out = (partition_cleaned){0};
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (p->state != 0 || p->history.segments.count == 0) return p->state;
    settle(p, monotonic_us);
    out->held = p->retention.limit_held; /* since the step before, by the size of the topic */
    p->retention.limit_held = false;
    partition_expire_due(p);
    limit_count(p);
    limit_bytes(p);
    roll_on_age(p);
    partition_write_start(p);
    uint32_t status = remove_hidden(p, trash, &out->removed);
    for (uint32_t i = first_leased(p); i < p->start.hidden; i++)
        out->leased_bytes += p->history.segments.items[i].log_bytes;
    out->held |= p->retention.held || p->retention.limit_held;
    out->ahead = partition_is_ahead(p, p->history.last_timestamp, partition_now(p));
    uint64_t passed = p->offsets.side.error == 0 ? offsets_lowest(&p->offsets.table) : UINT64_MAX;
    out->overtaken = passed != UINT64_MAX && passed + 1 < partition_first_offset(p);
    uint64_t end = p->start.hidden > 0 ? p->history.segments.items[1].start_offset : 0;
    out->unsynced = end > p->start.synced && end <= p->retention.settled;
    out->pending = p->start.hidden > 0 || p->start.written < p->start.offset;
    return status;
}

/* ---- by size: the caller chooses the partition ---- */

static bool may_drop(partition *p) {
    uint64_t end = p->history.segments.items[p->start.hidden + 1].start_offset, wanted = end;
    uint64_t now = expiry_clock_now(p->clock);
    bool held = false, free = end <= p->retention.settled;
    if (free && known_to_hold(p))
        free = partition_unless_held(p, now, p->retention.limits.size_held_us, &wanted, &held);
    p->retention.limit_held |= held;
    return free && wanted == end;
}

bool partition_oldest_segment(partition *p, partition_oldest *out) {
    *out = (partition_oldest){0};
    if (p->closed || p->state != 0 || p->history.segments.count == 0) return false;
    segment *s = &p->history.segments.items[p->start.hidden];
    uint64_t first = partition_counted(p, s, s->first_timestamp, partition_now(p));
    *out = (partition_oldest){.first_timestamp = first,
                              .bytes = s->log_bytes - p->start.hidden_bytes,
                              .only_active = p->start.hidden + 1 == p->history.segments.count};
    const segment *next = out->only_active ? NULL : s + 1;
    out->waits = (next != NULL ? next->start_offset : p->history.next_offset) > p->retention.settled;
    return !out->only_active && may_drop(p);
}

uint64_t partition_drop_oldest(partition *p) {
    partition_oldest oldest;
    if (!partition_oldest_segment(p, &oldest)) return 0;
    uint64_t before = p->start.served_bytes;
    partition_move_start(p, p->history.segments.items[p->start.hidden + 1].start_offset);
    return before - p->start.served_bytes;
}

bool partition_slowest(const partition *p, uint8_t *kind, uint32_t *id, uint64_t *value) {
    const offset_entry *slowest = NULL;
    for (uint32_t i = 0; i < p->offsets.table.capacity; i++) {
        const offset_entry *e = &p->offsets.table.entries[i];
        if (e->kind != 0 && (slowest == NULL || e->value < slowest->value)) slowest = e;
    }
    if (slowest == NULL) return false;
    *kind = slowest->kind;
    *id = slowest->id;
    *value = slowest->value;
    return true;
}

uint32_t partition_roll_early(partition *p) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    const segment *s = segment_active(&p->history.segments);
    if (p->state != 0 || s == NULL || s->count == 0 || roll_is_wanted(&p->roll) ||
        p->retention.settled < p->history.next_offset)
        return p->state;
    uint32_t status = partition_roll(p, p->history.last_timestamp);
    if (status != 0) roll_wanted(&p->roll);
    return status;
}
