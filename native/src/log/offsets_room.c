/* Room for one more stored offset: shares of users, and entries of users that are gone, which make room. */
#include "log/offsets.h"

#include <stdlib.h>
#include <string.h>

/* A user may have as many as are left free, places of users that are gone among them: however many one user stores,
 * half of what is left is there for the next one. */
bool offsets_has_room(offsets *o, uint64_t owner) {
    uint32_t own = offset_shares_count(&o->shares, owner);
    if (o->count < o->count_max && own < o->count_max - o->count) return true;
    uint32_t counted = o->count - offset_shares_gone(&o->shares, o->users);
    if (offset_shares_is_gone(&o->shares, owner)) own = 0; /* its last request is still under way */
    return counted < o->count_max && own < o->count_max - counted;
}

/* Into the list, in which those come first that were used last. */
static void insert(offsets *o, const offset_entry *entry) {
    offset_victim *list = o->victims.list;
    if (o->victims.count == VICTIMS_MAX) {
        if (offset_last_use(entry) >= list[0].used_us) return;
        memmove(list, list + 1, --o->victims.count * sizeof *list);
    }
    uint32_t low = 0, high = o->victims.count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (list[middle].used_us > offset_last_use(entry)) low = middle + 1;
        else high = middle;
    }
    memmove(list + low + 1, list + low, (o->victims.count - low) * sizeof *list);
    list[low] = (offset_victim){.used_us = offset_last_use(entry), .id = entry->id, .kind = entry->kind};
    o->victims.count++;
}

static bool find_victims(offsets *o) {
    if (o->victims.list == NULL) o->victims.list = malloc(VICTIMS_MAX * sizeof *o->victims.list);
    if (o->victims.list == NULL) return false;
    o->victims.count = 0;
    o->victims.version = o->shares.version;
    for (uint32_t i = 0; i < o->capacity; i++)
        if (o->entries[i].kind != 0 && offset_shares_is_gone(&o->shares, o->entries[i].use.owner))
            insert(o, &o->entries[i]);
    return o->victims.count > 0;
}

bool offsets_next_victim(offsets *o, offset_victim *out) {
    bool is_current = o->victims.count > 0 && o->victims.version == o->shares.version;
    if (!is_current && !find_victims(o)) return false;
    *out = o->victims.list[--o->victims.count];
    return true;
}
