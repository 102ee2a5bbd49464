/* What a partition says of itself and of its segments. */
#include "log/partition/state.h"

#include "log/segment_reader.h"

uint64_t partition_namespace(const partition *p) { return p->ns; }

uint64_t partition_incarnation(const partition *p) { return p->files.incarnation; }

uint64_t partition_next_offset(const partition *p) { return history_end(&p->history); }

bool partition_is_sparse(const partition *p) { return history_is_sparse(&p->history); }

uint64_t partition_active_start(const partition *p) {
    return history_count(&p->history) > 0 ? history_active(&p->history)->start_offset : history_end(&p->history);
}

bool partition_next_start(const partition *p, uint64_t start, uint64_t *next) {
    const segment *s = history_find(&p->history, start);
    if (s == NULL || s == history_active(&p->history)) return false;
    *next = s[1].start_offset;
    return true;
}

uint64_t partition_unsaved_bytes(const partition *p) { return journal_bytes(&p->journal); }

uint64_t partition_size_bytes(const partition *p) { return log_start_served_bytes(&p->start); }

uint64_t partition_messages(const partition *p) { return log_start_served_messages(&p->start); }

uint32_t partition_state(const partition *p) { return p->state; }

partition_level partition_level_of(const partition *p) { return p->level; }

uint64_t partition_suspect(const partition *p) { return history_suspect(&p->history); }

uint64_t partition_segment_of(const partition *p, uint64_t offset) {
    const segment *s = history_find(&p->history, offset);
    return s != NULL ? s->start_offset : 0;
}

uint32_t partition_segment_count(const partition *p) { return history_count(&p->history); }

bool partition_segment(const partition *p, uint32_t i, segment_info *out) {
    if (i >= history_count(&p->history)) return false;
    const segment *s = history_segment(&p->history, i);
    bool active = i + 1 == history_count(&p->history);
    *out = (segment_info){.start_offset = s->start_offset,
                          .log_bytes = active ? partition_file_end(p, s) : s->log_bytes,
                          .count = active ? s->count - journal_records(&p->journal) : s->count,
                          .first_timestamp = s->first_timestamp,
                          .last_timestamp = s->last_timestamp,
                          .absent = s->absent,
                          .layout = s->layout,
                          .counted_us = s->counted_us};
    return true;
}

bool partition_change_layout(partition *p, uint64_t start_offset, const segment_layout *layout) {
    segment *s = history_find(&p->history, start_offset);
    bool sealed = s != NULL && s->start_offset == start_offset && s != history_active(&p->history);
    return sealed && !p->closed && segment_change_layout(s, layout);
}

void partition_surveyed(partition *p, uint64_t start_offset, uint64_t first_timestamp) {
    segment *s = history_find(&p->history, start_offset);
    if (s != NULL && s->start_offset == start_offset && s->count > 0) s->first_timestamp = first_timestamp;
}

/* ---- damage ---- */

bool partition_withhold(partition *p, uint64_t start, uint64_t end, bool isolated) {
    return damage_add(&p->damage, start, end, isolated);
}

const damaged_range *partition_damage_from(const partition *p, uint64_t offset) {
    return damage_from(&p->damage, offset);
}
