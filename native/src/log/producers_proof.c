/* See producers_proof.h. */
#include "log/producers_proof.h"

#include "base/bytes.h"
#include "base/checksum.h"

#include <string.h>

#define SLOT_BYTES_FIRST 32u /* of the versions before 3 */
#define DURABLE_BIT (UINT32_C(1) << 31)
#define BATCHES_UNKNOWN (DURABLE_BIT - 2) /* and more; UINT32_MAX: not known, at another level */

uint64_t producers_check(uint64_t incarnation, uint64_t producer, const uint8_t *bytes, size_t length) {
    uint8_t all[16 + ENTRY_HEAD_BYTES];
    memcpy(all, &incarnation, 8);
    memcpy(all + 8, &producer, 8);
    memcpy(all + 16, bytes, length);
    return checksum_64(all, 16 + length);
}

bool producers_is_zero(const uint8_t *at, size_t length) { return at[0] == 0 && memcmp(at, at + 1, length - 1) == 0; }

bool producers_layout_of(const uint8_t *content, size_t length, producers_layout *out) {
    if (length < PRODUCERS_HEAD_BYTES || memcmp(content, PRODUCERS_MAGIC, 8) != 0) return false;
    *out = (producers_layout){.version = load_u32(content + 8), .slot_bytes = SLOT_BYTES};
    if (out->version < VERSION) out->slot_bytes = SLOT_BYTES_FIRST;
    out->entry_bytes = ENTRY_HEAD_BYTES + PRODUCER_SLOTS * out->slot_bytes;
    return out->version >= VERSION_FIRST && out->version <= VERSION && load_u32(content + 12) == out->entry_bytes;
}

static producer_slot slot_in(const producers_layout *l, const uint8_t *at) {
    producer_slot s = {.sequence = load_u64(at),
                       .first_offset = load_u64(at + 8),
                       .count = load_u32(at + 16),
                       .epoch = load_u32(at + 20)};
    s.running = l->version < VERSION ? s.sequence : load_u64(at + 24);
    s.digest = l->version < VERSION ? 0 : load_u64(at + 32);
    return s;
}

bool producers_slot(const producers_layout *l, uint64_t incarnation, uint64_t producer, const uint8_t *at,
                    producer_slot *out) {
    size_t checked = l->slot_bytes - 8;
    *out = slot_in(l, at);
    return load_u64(at + checked) == producers_check(incarnation, producer, at, checked) && out->epoch != UINT32_MAX;
}

bool producers_there(const producer_slot *s, uint64_t end) {
    return s->first_offset <= end && s->count <= end - s->first_offset;
}

bool producers_ends_inside(const producer_slot *s, uint64_t end) {
    return s->first_offset < end && s->count > end - s->first_offset;
}

bool producers_end_inside(const uint8_t *content, size_t length, uint64_t incarnation, uint64_t end) {
    producers_layout l;
    if (!producers_layout_of(content, length, &l)) return false;
    for (uint64_t at = PRODUCERS_HEAD_BYTES; at + l.entry_bytes <= length; at += l.entry_bytes) {
        const uint8_t *slot = content + at + ENTRY_HEAD_BYTES;
        for (uint32_t i = 0; i < PRODUCER_SLOTS; i++, slot += l.slot_bytes) {
            producer_slot s = slot_in(&l, slot); /* nearly all are before the end: no checksum is computed for them */
            if (producers_ends_inside(&s, end) && producers_slot(&l, incarnation, load_u64(content + at), slot, &s))
                return true;
        }
    }
    return false;
}

/* ---- what the halves say ---- */

typedef struct half {
    bool there, durable; /* the second: written at that level */
    uint32_t number;
    uint64_t end, proven, batches; /* UINT64_MAX: not known how many */
} half;

uint32_t producers_half_batches(uint64_t batches, bool durable) {
    uint32_t known = batches < BATCHES_UNKNOWN ? (uint32_t)batches : BATCHES_UNKNOWN;
    if (durable) return DURABLE_BIT | known;
    return known < BATCHES_UNKNOWN ? known : UINT32_MAX;
}

bool producers_half_unflag(uint8_t half[HALF_BYTES]) {
    uint32_t batches = load_u32(half + 20);
    if ((batches & DURABLE_BIT) == 0 || batches == UINT32_MAX) return false;
    batches = producers_half_batches(batches & ~DURABLE_BIT, false);
    memcpy(half + 20, &batches, sizeof batches);
    return true;
}

static half half_in(const uint8_t *content, uint64_t incarnation, uint32_t i) {
    const uint8_t *at = content + COVERED_AT + (size_t)i * HALF_BYTES;
    uint32_t batches = load_u32(at + 20);
    half h = {.there = load_u64(at + 24) == producers_check(incarnation, 0, at, 24),
              .durable = (batches & DURABLE_BIT) != 0 && batches != UINT32_MAX,
              .number = load_u32(at + 16),
              .end = load_u64(at),
              .proven = load_u64(at + 8),
              .batches = batches & ~DURABLE_BIT};
    if (h.batches >= BATCHES_UNKNOWN) h.batches = UINT64_MAX;
    return h;
}

typedef struct slot_counts {
    uint64_t between; /* batches with messages that end behind `from` and not behind `to` */
    uint64_t others;  /* that may have overwritten one of those */
    bool clear;       /* nothing is torn, and no entry is free */
} slot_counts;

static slot_counts count_slots(const uint8_t *content, size_t length, uint64_t incarnation, uint64_t from,
                               uint64_t to) {
    slot_counts c = {.clear = true};
    producers_layout l;
    if (!producers_layout_of(content, length, &l)) return (slot_counts){0};
    for (uint64_t at = PRODUCERS_HEAD_BYTES; at + l.entry_bytes <= length; at += l.entry_bytes) {
        uint64_t producer = load_u64(content + at);
        producer_slot s;
        if (load_u64(content + at + 56) != producers_check(incarnation, producer, content + at, 56)) {
            c.clear = false;
            continue;
        }
        const uint8_t *slot = content + at + ENTRY_HEAD_BYTES;
        for (uint32_t i = 0; i < PRODUCER_SLOTS; i++, slot += l.slot_bytes) {
            if (!producers_slot(&l, incarnation, producer, slot, &s)) {
                c.clear &= producers_is_zero(slot, l.slot_bytes);
                continue;
            }
            bool there = producers_there(&s, to);
            c.between += there && s.count > 0 && s.first_offset + s.count > from;
            c.others += !there || s.count == 0;
        }
    }
    return c;
}

static slot_counts counts_of(const uint8_t *content, size_t length, uint64_t incarnation, const half *h) {
    return count_slots(content, length, incarnation, h->proven == UINT64_MAX ? 0 : h->proven, h->end);
}

static bool proves(const uint8_t *content, size_t length, uint64_t incarnation, const half *h, uint64_t end) {
    if (!h->there) return false;
    if (h->proven == end) return true;
    if (h->end != end || h->batches == UINT64_MAX) return false;
    return counts_of(content, length, incarnation, h).between == h->batches;
}

bool producers_prove(const uint8_t *content, size_t length, uint64_t incarnation, uint64_t end) {
    for (uint32_t i = 0; i < 2; i++) {
        half h = half_in(content, incarnation, i);
        if (proves(content, length, incarnation, &h, end)) return true;
    }
    return false;
}

/* Where to cut when the sync of `newest` was certainly not over: nothing behind the one before was acknowledged. */
static uint64_t end_before(const uint8_t *content, size_t length, uint64_t incarnation, const half *newest,
                           const half *before, uint64_t end) {
    if (!newest->durable || !before->there || !before->durable || newest->proven == UINT64_MAX) return end;
    uint64_t at = before->end > newest->proven ? before->end : newest->proven; /* up to there polls may have seen */
    if (at > end || !(newest->proven == at || proves(content, length, incarnation, before, at))) return end;
    return at;
}

uint64_t producers_proven_end(const uint8_t *content, size_t length, uint64_t incarnation,
                              const uint8_t boot[PRODUCERS_BOOT_BYTES], uint64_t end, bool torn) {
    producers_layout l;
    if (!producers_layout_of(content, length, &l) || l.version < VERSION_WITHOUT_DIGESTS ||
        load_u64(content + 56) != producers_check(incarnation, 0, content, 56) ||
        memcmp(content + 32, boot, PRODUCERS_BOOT_BYTES) == 0 || producers_prove(content, length, incarnation, end))
        return end;
    half first = half_in(content, incarnation, 0), second = half_in(content, incarnation, 1);
    bool later = second.there && (!first.there || second.number > first.number);
    half newest = later ? second : first, before = later ? first : second;
    const uint8_t *other = content + COVERED_AT + (later ? 0 : HALF_BYTES);
    if (!newest.there || (before.there ? before.number + 1 != newest.number : !producers_is_zero(other, HALF_BYTES)))
        return end;
    slot_counts c = counts_of(content, length, incarnation, &newest);
    if (newest.end > end) /* what is torn may be damage to what was acknowledged */
        return torn ? end : end_before(content, length, incarnation, &newest, &before, end);
    if (newest.batches == c.between || newest.proven == newest.end) return newest.durable ? newest.end : end;
    bool over = newest.batches == UINT64_MAX || !c.clear || c.between + c.others >= newest.batches;
    return over ? end : end_before(content, length, incarnation, &newest, &before, end);
}
