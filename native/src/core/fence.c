/* See fence.h. */
#include "core/fence.h"

#include <stdlib.h>

bool fences_pass(fences *f, uint32_t group, uint64_t generation) {
    if (generation == 0) return true;
    for (uint32_t i = 0; i < f->count; i++) {
        if (f->entries[i].group != group) continue;
        if (generation < f->entries[i].generation) return false;
        f->entries[i].generation = generation;
        return true;
    }
    if (f->count == f->capacity) {
        uint32_t capacity = f->capacity > 0 ? f->capacity * 2 : 4;
        fence *larger = realloc(f->entries, capacity * sizeof *larger);
        if (larger == NULL) return false; /* what is not remembered may not act */
        f->entries = larger;
        f->capacity = capacity;
    }
    f->entries[f->count++] = (fence){.group = group, .generation = generation};
    return true;
}

void fences_drop(fences *f, uint32_t group) {
    for (uint32_t i = 0; i < f->count; i++)
        if (f->entries[i].group == group) {
            f->entries[i] = f->entries[--f->count];
            return;
        }
}

void fences_free(fences *f) {
    free(f->entries);
    *f = (fences){0};
}
