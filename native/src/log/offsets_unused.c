/* Stored offsets by the time of their last use, in pages of the file. See offsets.h. */
#include "log/offsets.h"

#include <stddef.h>

/* NULL: that place of the file is free. */
static const offset_entry *entry_at(const offsets *o, uint32_t number) {
    uint32_t i = number < o->slots_capacity ? o->slots[number] : UINT32_MAX;
    bool there = i < o->capacity && o->entries[i].kind != 0 && o->entries[i].place == number;
    return there ? &o->entries[i] : NULL;
}

uint32_t offsets_unused(const offsets *o, uint32_t from, uint32_t count, uint64_t before_us,
                        void (*visit)(void *context, const offsets_half *entry), void *context) {
    uint32_t places = from >= o->places ? 0 : o->places - from;
    for (uint32_t i = 0; i < places && i < count; i++) {
        const offset_entry *entry = entry_at(o, from + i);
        if (entry == NULL) continue;
        offset_use use = entry->use;
        use.used_us = offset_last_use(entry);
        if (use.used_us >= before_us) continue;
        visit(context, &(offsets_half){.value = entry->value, .use = use, .id = entry->id, .kind = entry->kind});
    }
    return places > count ? from + count : 0;
}
