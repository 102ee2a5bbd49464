/* What of a partition is not readable: ranges of offsets, ascending, that neither overlap nor (of one kind)
 * touch. */
#include "log/partition/inside.h"

#include <stdlib.h>
#include <string.h>

/* Place of the first range that ends behind `offset`. */
static uint32_t place_of(const partition *p, uint64_t offset) {
    uint32_t low = 0, high = p->damage.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->damage.ranges[middle].end > offset) high = middle;
        else low = middle + 1;
    }
    return low;
}

const damaged_range *partition_damage_from(const partition *p, uint64_t offset) {
    uint32_t i = place_of(p, offset);
    return i < p->damage.count ? &p->damage.ranges[i] : NULL;
}

/* Puts a range that no other overlaps before the i-th. Growing a neighbour of its kind costs no place. */
static bool put(partition *p, uint32_t i, uint64_t start, uint64_t end, bool isolated) {
    damaged_range *before = i > 0 ? &p->damage.ranges[i - 1] : NULL;
    damaged_range *behind = i < p->damage.count ? &p->damage.ranges[i] : NULL;
    if (before != NULL && (before->end != start || before->isolated != isolated)) before = NULL;
    if (behind != NULL && (behind->start != end || behind->isolated != isolated)) behind = NULL;
    if (before != NULL && behind != NULL) {
        before->end = behind->end;
        memmove(behind, behind + 1, (--p->damage.count - i) * sizeof(*behind));
    } else if (before != NULL) {
        before->end = end;
    } else if (behind != NULL) {
        behind->start = start;
    } else if (p->damage.count == DAMAGED_MAX) {
        return false;
    } else {
        memmove(p->damage.ranges + i + 1, p->damage.ranges + i, (p->damage.count++ - i) * sizeof(*p->damage.ranges));
        p->damage.ranges[i] = (damaged_range){start, end, isolated};
    }
    return true;
}

bool partition_withhold(partition *p, uint64_t start, uint64_t end, bool isolated) {
    if (p->damage.ranges == NULL) p->damage.ranges = malloc(DAMAGED_MAX * sizeof(*p->damage.ranges));
    if (p->damage.ranges == NULL) return false;
    for (uint64_t at = start; at < end;) {
        uint32_t i = place_of(p, at);
        const damaged_range *next = i < p->damage.count ? &p->damage.ranges[i] : NULL;
        bool meets = next != NULL && next->start < end;
        uint64_t piece_end = meets ? next->start : end, known_end = meets ? next->end : end;
        if (piece_end > at && !put(p, i, at, piece_end, isolated)) return false;
        at = known_end; /* what is known keeps its kind */
    }
    return true;
}

uint64_t partition_skip_isolated(const partition *p, uint64_t offset) {
    for (uint32_t i = place_of(p, offset); i < p->damage.count; i++) {
        if (p->damage.ranges[i].start > offset || !p->damage.ranges[i].isolated) break;
        offset = p->damage.ranges[i].end;
    }
    return offset;
}

uint64_t partition_next_isolated(const partition *p, uint64_t offset) {
    for (uint32_t i = place_of(p, offset); i < p->damage.count; i++)
        if (p->damage.ranges[i].isolated) return p->damage.ranges[i].start;
    return UINT64_MAX;
}

uint64_t partition_before_damage(const partition *p, uint64_t offset) {
    uint64_t at = offset;
    for (uint32_t i = place_of(p, at > 0 ? at - 1 : 0) + 1; i-- > 0;) {
        if (i >= p->damage.count || p->damage.ranges[i].end != at) break;
        at = p->damage.ranges[i].start;
        if (!p->damage.ranges[i].isolated) return at;
    }
    return offset;
}

/* Which ranges are passed over: isolated ones only, or all that nobody can read. */
static bool passed_over(const damaged_range *r, bool damaged_too) { return damaged_too || r->isolated; }

uint64_t partition_last_of_dense(const partition *p, uint64_t end, uint64_t count, bool damaged_too) {
    for (uint32_t i = p->damage.count; i-- > 0;) {
        const damaged_range *r = &p->damage.ranges[i];
        if (!passed_over(r, damaged_too) || r->start >= end) continue;
        uint64_t behind = r->end < end ? end - r->end : 0;
        if (behind >= count) break;
        count -= behind;
        end = r->start;
    }
    return end - (count < end ? count : end);
}

const damaged_range *partition_passed_over_below(const partition *p, uint64_t end, bool damaged_too) {
    for (uint32_t i = p->damage.count; i-- > 0;)
        if (passed_over(&p->damage.ranges[i], damaged_too) && p->damage.ranges[i].start < end)
            return &p->damage.ranges[i];
    return NULL;
}

void partition_forget_damage(partition *p, uint64_t offset) {
    uint32_t gone = place_of(p, offset);
    if (gone == 0) return;
    p->damage.count -= gone;
    memmove(p->damage.ranges, p->damage.ranges + gone, p->damage.count * sizeof(*p->damage.ranges));
}
