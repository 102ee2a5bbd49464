/* See state.h. */
#include "log/partition/state.h"

#include "log/files.h"

void partition_publish(const partition *p) {
    STATS_STORE(p, size_bytes, log_start_served_bytes(&p->start));
    STATS_STORE(p, messages_count, log_start_served_messages(&p->start));
    STATS_STORE(p, segments_count, partition_segments(p));
    STATS_STORE(p, durable_offset, progress_durable_end(&p->sync));
    STATS_STORE(p, first_offset, partition_first_offset(p));
    STATS_STORE(p, state, p->state);
    STATS_STORE(p, unseen, partition_unseen(p));
    STATS_STORE(p, next_offset, history_end(&p->history));
}

void partition_poison(partition *p, uint32_t status) {
    if (p->state != 0) /* the first reason stays */
        return;
    p->state = status;
    STATS_STORE(p, state, status);
}

uint32_t partition_refused(partition *p, int error) {
    if (file_error_poisons(error)) partition_poison(p, STATUS_CANNOT_WRITE_TO_FILE);
    return p->state != 0 ? p->state : (uint32_t)STATUS_CANNOT_WRITE_TO_FILE;
}

bool partition_has_refused(const partition *p) {
    bool refused = space_has_refused(&p->space) && (p->large == NULL || p->state != 0);
    return refused && history_count(&p->history) > 0 && !p->closed;
}

uint64_t partition_first_offset(const partition *p) {
    if (history_count(&p->history) == 0) return 0;
    return log_start_first(&p->start, history_segment(&p->history, 0)->start_offset);
}

uint32_t partition_segments(const partition *p) {
    return history_count(&p->history) > 0 ? history_count(&p->history) - log_start_hidden(&p->start) : 1;
}

void partition_plan_roll(partition *p) {
    const segment *s = history_active(&p->history);
    uint64_t age = retention_limits(&p->retention)->segment_age_us;
    bool grows_old = age > 0 && s != NULL && s->count > 0 && partition_began(s) <= UINT64_MAX - age;
    roll_set_end(&p->roll, grows_old ? partition_began(s) + age : UINT64_MAX);
}

uint64_t partition_known_start(const partition *p) {
    uint64_t first = history_count(&p->history) > 0 ? history_segment(&p->history, 0)->start_offset : 0;
    return log_start_known(&p->start, first, progress_durable_end(&p->sync));
}
