/* Times ahead of the believed clock: of a partition that has stored something while a wrong one was believed. They
 * never fall, so all that is stored later has such times, too. They say nothing about age; the time of sealing does
 * (docs/adr/0135-times-that-are-ahead.md). */
#include "log/partition/inside.h"

#include "log/expiry_clock.h"

uint64_t partition_now(const partition *p) { return p->clock != NULL ? expiry_clock_now(p->clock) : 0; }

/* After a boot stamps may rightly be ahead of what is believed. */
bool partition_is_ahead(const partition *p, uint64_t timestamp, uint64_t now) {
    if (p->clock == NULL || timestamp < now || timestamp - now < CLOCK_STEP_US) return false;
    uint64_t stamps = expiry_clock_stamp(p->clock);
    return timestamp > stamps && timestamp - stamps >= CLOCK_STEP_US;
}

uint64_t partition_counted_at(const partition *p, uint64_t timestamp, uint64_t now) {
    return partition_is_ahead(p, timestamp, now) ? now : 0;
}

static uint64_t least(uint64_t timestamp, uint64_t counted_us) {
    return counted_us != 0 && counted_us < timestamp ? counted_us : timestamp;
}

uint64_t partition_counted(const partition *p, segment *s, uint64_t timestamp, uint64_t now) {
    if (s == history_active(&p->history)) return partition_is_ahead(p, timestamp, now) ? now : timestamp;
    /* sealed before anybody could see it: it counts from now on */
    if (partition_is_ahead(p, least(s->last_timestamp, s->counted_us), now)) s->counted_us = now;
    return timestamp > now ? least(timestamp, s->counted_us) : timestamp;
}

uint64_t partition_began(const segment *s) { return least(s->first_timestamp, s->counted_us); }
