/* Steps of the retention: the log start moves with age and limits, segments are sealed early so that they can go, and
 * files of what lies before the log start leave. The caller chooses the partition and the pace. */
#include "log/partition/inside.h"

#include "log/expiry_clock.h"
#include "log/partition/lookup.h"
#include "log/partition/save.h"
#include "log/partition/state.h"

#define DROPPED_MAX 64u /* segments in a step for their bytes */

/* Limits of size and count win over stored offsets that cannot be read: those may never be read again. What passes by
 * itself is tried again here; meanwhile all stored offsets count as behind. */
static bool known_to_hold(partition *p) {
    return partition_have_offsets(p) == 0 || side_passes(stored_offsets_error(&p->offsets));
}

/* Stored offsets hold back what a limit by size or count wants to go for as long as the topic says. */
static bool limit_start(partition *p, uint64_t wanted) {
    uint64_t now = expiry_clock_now(p->clock);
    if (wanted > retention_settled(&p->retention)) wanted = retention_settled(&p->retention);
    if (wanted <= partition_first_offset(p)) return true;
    bool held;
    if (!known_to_hold(p)) return partition_move_start(p, wanted), true;
    if (!partition_unless_held(p, now, retention_limits(&p->retention)->size_held_us, &wanted, &held)) return false;
    retention_limit_holds(&p->retention, held);
    partition_move_start(p, wanted);
    return true;
}

/* Messages count, not offsets: those at which nothing can be read (behind a torn tail there may be as many as fit into
 * its bytes) push out no message that can. */
static void limit_count(partition *p) {
    uint64_t wanted;
    if (retention_limits(&p->retention)->messages_max == 0 ||
        log_start_served_messages(&p->start) <= retention_limits(&p->retention)->messages_max)
        return;
    bool known = partition_last_whole(p, history_end(&p->history), retention_limits(&p->retention)->messages_max,
                                      &wanted);
    history_forget_missing(&p->history); /* an index that cannot be read now is asked for again by the next step */
    if (known) limit_start(p, wanted);
}

static void limit_bytes(partition *p) {
    for (unsigned n = 0; n < DROPPED_MAX && retention_limits(&p->retention)->bytes_max > 0 &&
                         log_start_served_bytes(&p->start) > retention_limits(&p->retention)->bytes_max;
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
    const segment *s = history_active(&p->history);
    bool aged = retention_limits(&p->retention)->expiry_us > 0 || roll_grows_old(&p->roll);
    if (!aged || s == NULL || s->count == 0 || roll_is_wanted(&p->roll)) return;
    uint64_t now = expiry_clock_now(p->clock);
    bool expired = retention_limits(&p->retention)->expiry_us > 0 &&
                   has_aged(p, s, retention_limits(&p->retention)->expiry_us, now);
    bool astray = is_astray(p, s, retention_limits(&p->retention)->expiry_us, now) ||
                  is_astray(p, s, retention_limits(&p->retention)->segment_age_us, now);
    bool old = roll_is_old(&p->roll, now) && has_aged(p, s, retention_limits(&p->retention)->segment_age_us, now);
    if (!expired && !astray && !old) return;
    if (partition_roll(p, now) != 0) roll_wanted(&p->roll);
}

void partition_lease(partition *p, uint64_t offset) { retention_lease(&p->retention, offset); }

/* The first of the segments before the log start whose files stay for a reader. */
static uint32_t first_leased(const partition *p) {
    uint32_t i = 0;
    while (i < log_start_hidden(&p->start) &&
           !retention_is_leased(&p->retention, history_segment(&p->history, i + 1)->start_offset))
        i++;
    return i;
}

/* Takes away files of segments before the log start. */
static uint32_t remove_hidden(partition *p, const char *trash, uint32_t *removed) {
    uint64_t reading = partition_first_read(p);
    uint32_t status = 0, leased = first_leased(p);
    while (status == 0 && *removed < CLEAN_SEGMENTS_MAX && *removed < leased) {
        segment *s = history_segment(&p->history, *removed);
        uint64_t end = s[1].start_offset;
        if (end > log_start_synced(&p->start) || end > retention_settled(&p->retention) || reading < end ||
            partition_window_holds(p, end))
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
    if (p->state != 0 || history_count(&p->history) == 0) return p->state;
    retention_settle(&p->retention, monotonic_us, partition_visible_end(p));
    out->held = retention_limit_was_held(&p->retention); /* since the step before, by the size of the topic */
    partition_expire_due(p);
    limit_count(p);
    limit_bytes(p);
    roll_on_age(p);
    partition_write_start(p);
    uint32_t status = remove_hidden(p, trash, &out->removed);
    for (uint32_t i = first_leased(p); i < log_start_hidden(&p->start); i++)
        out->leased_bytes += history_segment(&p->history, i)->log_bytes;
    out->held |= retention_is_held(&p->retention);
    out->ahead = partition_is_ahead(p, history_last_timestamp(&p->history), partition_now(p));
    uint64_t passed = stored_offsets_lowest(&p->offsets, UINT64_MAX);
    out->overtaken = passed != UINT64_MAX && passed + 1 < partition_first_offset(p);
    uint64_t end = log_start_hidden(&p->start) > 0 ? history_segment(&p->history, 1)->start_offset : 0;
    out->unsynced = end > log_start_synced(&p->start) && end <= retention_settled(&p->retention);
    out->pending = log_start_hidden(&p->start) > 0 || log_start_is_unwritten(&p->start);
    return status;
}

/* ---- by size: the caller chooses the partition ---- */

static bool may_drop(partition *p) {
    uint64_t end = history_segment(&p->history, log_start_hidden(&p->start) + 1)->start_offset, wanted = end;
    uint64_t now = expiry_clock_now(p->clock);
    bool held = false, free = end <= retention_settled(&p->retention);
    if (free && known_to_hold(p))
        free = partition_unless_held(p, now, retention_limits(&p->retention)->size_held_us, &wanted, &held);
    retention_limit_holds(&p->retention, held);
    return free && wanted == end;
}

bool partition_oldest_segment(partition *p, partition_oldest *out) {
    *out = (partition_oldest){0};
    if (p->closed || p->state != 0 || history_count(&p->history) == 0) return false;
    segment *s = history_segment(&p->history, log_start_hidden(&p->start));
    uint64_t first = partition_counted(p, s, s->first_timestamp, partition_now(p));
    *out = (partition_oldest){.first_timestamp = first,
                              .bytes = s->log_bytes - log_start_hidden_bytes(&p->start),
                              .only_active = log_start_hidden(&p->start) + 1 == history_count(&p->history)};
    const segment *next = out->only_active ? NULL : s + 1;
    out->waits = (next != NULL ? next->start_offset : history_end(&p->history)) > retention_settled(&p->retention);
    return !out->only_active && may_drop(p);
}

uint64_t partition_drop_oldest(partition *p) {
    partition_oldest oldest;
    if (!partition_oldest_segment(p, &oldest)) return 0;
    uint64_t before = log_start_served_bytes(&p->start);
    partition_move_start(p, history_segment(&p->history, log_start_hidden(&p->start) + 1)->start_offset);
    return before - log_start_served_bytes(&p->start);
}

uint32_t partition_roll_early(partition *p) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    const segment *s = history_active(&p->history);
    if (p->state != 0 || s == NULL || s->count == 0 || roll_is_wanted(&p->roll) ||
        retention_settled(&p->retention) < history_end(&p->history))
        return p->state;
    uint32_t status = partition_roll(p, history_last_timestamp(&p->history));
    if (status != 0) roll_wanted(&p->roll);
    return status;
}
