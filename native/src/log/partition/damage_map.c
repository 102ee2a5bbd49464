/* See damage_map.h. */
#include "log/partition/damage_map.h"

#include <stdlib.h>
#include <string.h>

/* Place of the first range that ends behind `offset`. */
static uint32_t place_of(const damage_map *m, uint64_t offset) {
    uint32_t low = 0, high = m->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (m->ranges[middle].end > offset) high = middle;
        else low = middle + 1;
    }
    return low;
}

const damaged_range *damage_from_slow(const damage_map *m, uint64_t offset) {
    uint32_t i = place_of(m, offset);
    return i < m->count ? &m->ranges[i] : NULL;
}

/* Puts a range that no other overlaps before the i-th. Growing a neighbour of its kind costs no place. */
static bool put(damage_map *m, uint32_t i, uint64_t start, uint64_t end, bool isolated) {
    damaged_range *before = i > 0 ? &m->ranges[i - 1] : NULL;
    damaged_range *behind = i < m->count ? &m->ranges[i] : NULL;
    if (before != NULL && (before->end != start || before->isolated != isolated)) before = NULL;
    if (behind != NULL && (behind->start != end || behind->isolated != isolated)) behind = NULL;
    if (before != NULL && behind != NULL) {
        before->end = behind->end;
        memmove(behind, behind + 1, (--m->count - i) * sizeof(*behind));
    } else if (before != NULL) {
        before->end = end;
    } else if (behind != NULL) {
        behind->start = start;
    } else if (m->count == DAMAGED_MAX) {
        return false;
    } else {
        memmove(m->ranges + i + 1, m->ranges + i, (m->count++ - i) * sizeof(*m->ranges));
        m->ranges[i] = (damaged_range){start, end, isolated};
    }
    return true;
}

bool damage_add(damage_map *m, uint64_t start, uint64_t end, bool isolated) {
    if (m->ranges == NULL) m->ranges = malloc(DAMAGED_MAX * sizeof(*m->ranges));
    if (m->ranges == NULL) return false;
    for (uint64_t at = start; at < end;) {
        uint32_t i = place_of(m, at);
        const damaged_range *next = i < m->count ? &m->ranges[i] : NULL;
        bool meets = next != NULL && next->start < end;
        uint64_t piece_end = meets ? next->start : end, known_end = meets ? next->end : end;
        if (piece_end > at && !put(m, i, at, piece_end, isolated)) return false;
        at = known_end; /* what is known keeps its kind */
    }
    return true;
}

uint64_t damage_skip_isolated_slow(const damage_map *m, uint64_t offset) {
    for (uint32_t i = place_of(m, offset); i < m->count; i++) {
        if (m->ranges[i].start > offset || !m->ranges[i].isolated) break;
        offset = m->ranges[i].end;
    }
    return offset;
}

uint64_t damage_next_isolated_slow(const damage_map *m, uint64_t offset) {
    for (uint32_t i = place_of(m, offset); i < m->count; i++)
        if (m->ranges[i].isolated) return m->ranges[i].start;
    return UINT64_MAX;
}

uint64_t damage_before(const damage_map *m, uint64_t offset) {
    uint64_t at = offset;
    for (uint32_t i = place_of(m, at > 0 ? at - 1 : 0) + 1; i-- > 0;) {
        if (i >= m->count || m->ranges[i].end != at) break;
        at = m->ranges[i].start;
        if (!m->ranges[i].isolated) return at;
    }
    return offset;
}

/* The ranges that are passed over: isolated ones only, or all unreadable ones. */
static bool passed_over(const damaged_range *r, bool damaged_too) { return damaged_too || r->isolated; }

uint64_t damage_last_of_dense(const damage_map *m, uint64_t end, uint64_t count, bool damaged_too) {
    for (uint32_t i = m->count; i-- > 0;) {
        const damaged_range *r = &m->ranges[i];
        if (!passed_over(r, damaged_too) || r->start >= end) continue;
        uint64_t behind = r->end < end ? end - r->end : 0;
        if (behind >= count) break;
        count -= behind;
        end = r->start;
    }
    return end - (count < end ? count : end);
}

const damaged_range *damage_passed_over_below(const damage_map *m, uint64_t end, bool damaged_too) {
    for (uint32_t i = m->count; i-- > 0;)
        if (passed_over(&m->ranges[i], damaged_too) && m->ranges[i].start < end) return &m->ranges[i];
    return NULL;
}

void damage_forget(damage_map *m, uint64_t offset) {
    uint32_t gone = place_of(m, offset);
    if (gone == 0) return;
    m->count -= gone;
    memmove(m->ranges, m->ranges + gone, m->count * sizeof(*m->ranges));
}

void damage_free(damage_map *m) {
    free(m->ranges);
    *m = (damage_map){0};
}
