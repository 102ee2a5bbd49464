/* See lookup.h. */
#include "log/partition/lookup.h"

/* Goes back over the records of the segment below `end` until `*count` is 0 or its beginning is reached. */
static bool last_of_segment(partition *p, segment *s, uint64_t end, bool damaged_too, uint64_t *count,
                            uint64_t *start) {
    while (*count > 0 && end > s->start_offset) {
        const damaged_range *r = damage_passed_over_below(&p->damage, end, damaged_too);
        uint64_t low = r != NULL && r->end > s->start_offset ? r->end : s->start_offset, first, last;
        if (low < end) {
            if (!history_entry_of(&p->history, s, low, &first) || !history_entry_of(&p->history, s, end, &last))
                return false;
            uint64_t taken = last - first < *count ? last - first : *count;
            *count -= taken;
            if (!history_offset_of(&p->history, s, last - taken, start)) return false;
        }
        end = low > s->start_offset && r->start > s->start_offset ? r->start : s->start_offset;
    }
    return true;
}

static bool last_of(partition *p, uint64_t end, uint64_t count, bool damaged_too, uint64_t *start) {
    *start = history_is_sparse(&p->history) ? end : damage_last_of_dense(&p->damage, end, count, damaged_too);
    if (!history_is_sparse(&p->history)) return true;
    for (uint32_t i = history_count(&p->history); i-- > 0 && count > 0;) {
        segment *s = history_segment(&p->history, i);
        if (s->start_offset >= end) continue;
        if (!last_of_segment(p, s, end < segment_end(s) ? end : segment_end(s), damaged_too, &count, start))
            return false;
    }
    return true;
}

bool partition_last_readable(partition *p, uint64_t end, uint64_t count, uint64_t *start) {
    return last_of(p, end, count, false, start);
}

bool partition_last_whole(partition *p, uint64_t end, uint64_t count, uint64_t *start) {
    return last_of(p, end, count, true, start);
}

bool partition_sparse_pass_over(partition *p, uint64_t *offset) {
    for (bool again = true; again;) {
        segment *s = history_find(&p->history, *offset);
        uint64_t k, before = *offset;
        if (s == NULL || s->absent == 0 || *offset >= segment_end(s)) return true;
        const damaged_range *r = damage_from(&p->damage, *offset);
        if (r != NULL && r->start <= *offset) return true; /* which of them have a record is not known */
        if (!history_entry_of(&p->history, s, *offset, &k) || !history_offset_of(&p->history, s, k, offset))
            return false;
        if (r != NULL && r->start < *offset) *offset = r->start;
        *offset = damage_skip_isolated(&p->damage, *offset);
        again = *offset != before;
    }
    return true;
}
