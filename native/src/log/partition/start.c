/* The log start of a partition (docs/adr/0040-the-log-start.md): the first message that is served. It moves with the
 * age of messages, with limits, and with segments that go; never back. What lies before it is hidden at once; the files
 * of whole segments follow when a power loss cannot bring a hole instead (clean.c). */
#include "log/partition/inside.h"

#include "base/assert.h"
#include "log/expiry_clock.h"
#include "log/partition/state.h"

#define LOOK_AGAIN_US 100000u /* when an index cannot be read */

static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

/* The figures of what is hidden in the segment of the log start. False: its index cannot be read now. */
static bool hide_within(partition *p, segment *s, uint64_t offset) {
    uint64_t k, position;
    return history_entry_of(&p->history, s, offset, &k) && history_border(&p->history, s, k, &position) &&
           log_start_passes(&p->start, position, k);
}

void partition_move_start(partition *p, uint64_t offset) {
    uint64_t visible = partition_visible_end(p);
    partition_hide(p, offset < visible ? offset : visible);
}

void partition_hide(partition *p, uint64_t offset) {
    if (offset > history_end(&p->history)) offset = history_end(&p->history);
    if (history_count(&p->history) == 0 || offset < partition_first_offset(p)) return;
    segment *s = history_segment(&p->history, log_start_hidden(&p->start)), *active = history_active(&p->history);
    for (; s != active && s[1].start_offset <= offset; s++) log_start_passes_segment(&p->start, s->log_bytes, s->count);
    if (offset > s->start_offset) {
        uint64_t end = segment_end(s);
        if (!hide_within(p, s, offset < end ? offset : end)) offset = s->start_offset;
    }
    log_start_moves(&p->start, offset);
    partition_publish(p);
}

/* ---- by age ---- */

/* The first message that is younger than `age`, the end of the log when none is. False: an index cannot be read now, or
 * contradicts a damaged log; what lies before its segment is older all the same. */
static bool first_younger(partition *p, uint64_t age, uint64_t now, uint64_t *offset) {
    *offset = partition_first_offset(p);
    if (now < age) return true;
    uint64_t t = expiry_clock_first_younger(p->clock, now, age), k = 0;
    for (uint32_t i = log_start_hidden(&p->start); i < history_count(&p->history); i++) {
        segment *s = history_segment(&p->history, i);
        if (s->count == 0 || partition_counted(p, s, s->last_timestamp, now) < t) continue;
        uint64_t found = s->start_offset;
        bool read = s->first_timestamp >= t || history_search(&p->history, s, 0, s->count, INDEX_KEY_TIMESTAMP, t, &k);
        read = read && history_offset_of(&p->history, s, k, &found);
        if (!read) found = s->start_offset;
        if (found > *offset) *offset = found;
        return read;
    }
    *offset = history_end(&p->history);
    return true;
}

/* When the message at the log start expires, or the first one that comes; at most `age` from now on. False as above. */
static bool next_expiry(partition *p, uint64_t age, uint64_t now, uint64_t *at) {
    uint64_t timestamp = history_last_timestamp(&p->history), start = partition_first_offset(p), k;
    if (start < history_end(&p->history)) {
        segment *s = history_find(&p->history, start);
        if (s != NULL && start < segment_end(s)) {
            if (!history_entry_of(&p->history, s, start, &k) || !history_timestamp_of(&p->history, s, k, &timestamp))
                return false;
        } else if (s != NULL) {
            timestamp = s->last_timestamp; /* damage: nothing behind it is older */
        }
        if (s != NULL) timestamp = partition_counted(p, s, timestamp, now);
    }
    if (timestamp > now) timestamp = now; /* nothing is stored later than that */
    *at = expiry_clock_reaches(p->clock, timestamp, age);
    return true;
}

bool partition_unless_held(partition *p, uint64_t now, uint64_t held_age, uint64_t *wanted, bool *held) {
    uint64_t barrier = stored_offsets_lowest(&p->offsets, 0), longest; /* as long as they are unknown all are behind */
    *held = false;
    if (held_age == 0 || barrier == UINT64_MAX || barrier + 1 >= *wanted) return true;
    bool read = first_younger(p, held_age, now, &longest);
    if (longest < barrier + 1) longest = barrier + 1;
    *held = longest < *wanted;
    if (*held) *wanted = longest;
    return read;
}

void partition_expire(partition *p) {
    const partition_limits *limits = retention_limits(&p->retention);
    uint64_t now = expiry_clock_now(p->clock), wanted, at = 0, age = limits->expiry_us;
    uint64_t held_age = sum(age, limits->held_us);
    bool held;
    if (!retention_is_due(&p->retention, now, held_age) || p->closed || history_count(&p->history) == 0) return;
    ASSERT(age > 0);
    bool read = first_younger(p, age, now, &wanted);
    read = partition_unless_held(p, now, held_age, &wanted, &held) && read;
    partition_move_start(p, wanted);
    read = read && next_expiry(p, held ? held_age : age, now, &at);
    history_forget_missing(&p->history); /* what it could not read it asks for again */
    retention_expired(&p->retention, held, read ? at : sum(now, LOOK_AGAIN_US));
}

void partition_set_limits(partition *p, const partition_limits *limits) {
    bool aged = limits->expiry_us > 0 || limits->bytes_max > 0 || limits->segment_age_us > 0;
    ASSERT(!aged || p->clock != NULL);
    retention_set_limits(&p->retention, limits);
    roll_set_size(&p->roll, limits->segment_bytes);
    partition_plan_roll(p);
}
