/* No message twice: what others ask of the ids of a partition (message_ids.h). */
#include "log/partition/inside.h"

#include "log/expiry_clock.h"

bool partition_has_window(const partition *p) { return message_ids_are_compared(&p->ids); }

bool partition_set_window(partition *p, id_memory *memory, uint64_t entries_max, uint64_t age_us) {
    return message_ids_set_window(&p->ids, memory, entries_max, age_us);
}

bool partition_load_window(partition *p, const uint8_t *entries, size_t count) {
    return message_ids_load(&p->ids, p->clock, entries, count);
}

void partition_expire_ids(partition *p, uint64_t now_us) { message_ids_expire(&p->ids, now_us); }

bool partition_reserve_ids(partition *p, uint64_t count, uint64_t now_us) {
    return message_ids_reserve(&p->ids, count, now_us);
}

bool partition_filter(partition *p, append_batch *b, size_t behind, id_filter *f, id_group *g, uint32_t most,
                      uint64_t now_us) {
    return message_ids_filter(&p->ids, b, behind, f, g, most, now_us);
}

void partition_filter_skips(id_group *g, uint32_t count) {
    g->used += count < g->count - g->used ? count : g->count - g->used;
}

void partition_take_back_ids(partition *p, uint64_t count) { message_ids_take_back(&p->ids, count); }

bool partition_window_holds(partition *p, uint64_t end) {
    if (!message_ids_are_compared(&p->ids)) return false;
    return message_ids_hold(&p->ids, expiry_clock_steady(p->clock), history_end(&p->history), end);
}
