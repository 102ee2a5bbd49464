/* See stored_offsets.h. */
#include "log/partition/stored_offsets.h"

#include <errno.h>

/* The log may have lost what consumers had processed. Best effort in the file: else the next start would skip what is
 * appended until then. The old values are on the device and must not come back behind a log that has grown. True: they
 * were changed, a sync is due. */
static bool lower(stored_offsets *o, bool writes) {
    if (o->opened_end > 0) return offsets_lower(&o->table, o->opened_end - 1, writes) && writes;
    bool any = o->table.count > 0;
    offsets_clear(&o->table, writes);
    return any && writes;
}

bool stored_offsets_open(stored_offsets *o, uint64_t now_us, bool writes) {
    if (offsets_open(&o->table, now_us) != 0) {
        side_failed(&o->side, errno);
        return false;
    }
    o->side.error = 0;
    return lower(o, writes);
}

int stored_offsets_look(stored_offsets *o, uint64_t now_us, bool writes) {
    if (side_is_due(&o->side)) stored_offsets_open(o, now_us, writes);
    return o->side.error;
}

bool stored_offsets_collect(stored_offsets *o, sync_collection *c) {
    if (!o->table.dirty) return true;
    if (c->count == c->max || !sync_collect(c, offsets_duplicate(&o->table))) return false;
    o->table.dirty = false;
    return !o->table.directory_dirty; /* it was gone and is made anew: its name comes with the next sync */
}
