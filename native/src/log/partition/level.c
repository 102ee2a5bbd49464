/* The level of an open partition changes. What was acknowledged before is neither lost nor hidden by it:
 *
 *   from `memory`    the journal is written first; while it cannot be, it stays and goes with the next write, and
 *                    nothing is acknowledged at the new level before it
 *   to `durable`     polls go on showing what they showed; all that is there is as good as dirty, so the first sync
 *                    that acknowledges something has it, too
 *   from `durable`   the space ahead goes; polls show what is written; answers that are held wait for their sync */
#include "log/partition/inside.h"

#include "log/partition/save.h"
#include "log/partition/state.h"

uint32_t partition_set_level(partition *p, partition_level level) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (p->level == level) return 0;
    uint32_t status = p->level == LEVEL_MEMORY ? partition_save(p) : 0;
    uint64_t shown = partition_visible_end(p);
    if (p->level == LEVEL_DURABLE && p->state == 0) partition_cut_ahead(p); /* what stays is cut by the next append */
    if (space_has_reserved(&p->space)) partition_give_back(p);
    p->level = level;
    if (level != LEVEL_DURABLE) guard_not_durable(&p->producers);
    space_begins(&p->space, level == LEVEL_DURABLE, history_count(&p->history) > 0);
    if (level == LEVEL_DURABLE) {
        progress_found(&p->sync, shown);
        if (history_count(&p->history) > 0) /* at the other levels an ancestor that somebody else made is left to him */
            progress_mark_all_directories(&p->sync);
    }
    partition_publish(p);
    return status;
}

uint64_t partition_polls_end(const partition *p) {
    return p->level == LEVEL_DURABLE ? partition_visible_end(p) : history_end(&p->history);
}
