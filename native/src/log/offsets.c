/* Consumer offsets of one partition: the table and the operations. Files: offsets_files.c. */
#include "log/offsets.h"

#include "base/assert.h"
#include "log/offsets_files.h"
#include "log/partition.h"

#include <errno.h>
#include <stdlib.h>

#define CAPACITY_MIN 8u

static uint32_t slot_of(const offsets *o, uint8_t kind, uint32_t id) {
    uint64_t key = id ^ ((uint64_t)kind << 32);
    return (uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (o->capacity - 1);
}

offset_entry *offsets_find(const offsets *o, uint8_t kind, uint32_t id) {
    if (o->count == 0) return NULL;
    for (uint32_t i = slot_of(o, kind, id); o->entries[i].kind != 0; i = (i + 1) & (o->capacity - 1))
        if (o->entries[i].id == id && o->entries[i].kind == kind) return &o->entries[i];
    return NULL;
}

/* Places an entry that is not in the table. */
static offset_entry *place(offsets *o, const offset_entry *entry) {
    uint32_t i = slot_of(o, entry->kind, entry->id);
    while (o->entries[i].kind != 0) i = (i + 1) & (o->capacity - 1);
    o->entries[i] = *entry;
    o->count++;
    return &o->entries[i];
}

/* Room for one more at a load of at most 3/4. */
static int reserve(offsets *o) {
    if ((uint64_t)(o->count + 1) * 4 <= (uint64_t)o->capacity * 3) return 0;
    offsets grown = *o;
    grown.capacity = o->capacity > 0 ? o->capacity * 2 : CAPACITY_MIN;
    grown.count = 0;
    grown.entries = grown.capacity > o->capacity ? calloc(grown.capacity, sizeof(*grown.entries)) : NULL;
    if (grown.entries == NULL) {
        errno = ENOMEM;
        return -1;
    }
    for (uint32_t i = 0; i < o->capacity; i++)
        if (o->entries[i].kind != 0) place(&grown, &o->entries[i]);
    free(o->entries);
    *o = grown;
    return 0;
}

/* Linear probing without tombstones: the entries behind the hole move up. */
static void erase(offsets *o, offset_entry *entry) {
    uint32_t mask = o->capacity - 1, hole = (uint32_t)(entry - o->entries);
    for (uint32_t i = (hole + 1) & mask; o->entries[i].kind != 0; i = (i + 1) & mask) {
        uint32_t home = slot_of(o, o->entries[i].kind, o->entries[i].id);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            o->entries[hole] = o->entries[i];
            hole = i;
        }
    }
    o->entries[hole] = (offset_entry){0};
    o->count--;
}

bool offsets_get(const offsets *o, uint8_t kind, uint32_t id, uint64_t *value) {
    const offset_entry *entry = offsets_find(o, kind, id);
    if (entry == NULL) return false;
    *value = entry->value;
    return true;
}

int offsets_load(offsets *o, uint8_t kind, uint32_t id, uint64_t value) {
    offset_entry *entry = offsets_find(o, kind, id);
    if (entry != NULL) {
        entry->value = value;
        return 0;
    }
    if (reserve(o) != 0) return -1;
    /* What a killed process wrote may be in the page cache only. */
    place(o, &(offset_entry){.value = value, .id = id, .kind = kind, .dirty = true});
    o->dirty++;
    o->dirty_directories |= OFFSETS_DIRTY_PARTITION | OFFSETS_DIRTY_PARENT |
                            (kind == OFFSET_CONSUMER ? OFFSETS_DIRTY_CONSUMERS : OFFSETS_DIRTY_GROUPS);
    return 0;
}

uint32_t offsets_store(offsets *o, uint8_t kind, uint32_t id, uint64_t value) {
    offset_entry *entry = offsets_find(o, kind, id);
    if (entry == NULL && reserve(o) != 0) return STATUS_CANNOT_WRITE_TO_FILE;
    bool known = entry != NULL;
    offset_entry fresh = {.value = value, .id = id, .kind = kind};
    if (!known) entry = &fresh;
    ASSERT(kind == OFFSET_CONSUMER || kind == OFFSET_GROUP);
    uint32_t status = offset_file_write(o, entry, value);
    if (status != 0) return status;
    entry->value = value;
    if (!entry->dirty) {
        entry->dirty = true;
        o->dirty++;
    }
    if (!known) place(o, entry);
    return 0;
}

uint32_t offsets_delete(offsets *o, uint8_t kind, uint32_t id) {
    offset_entry *entry = offsets_find(o, kind, id);
    if (entry == NULL) return STATUS_CONSUMER_OFFSET_NOT_FOUND;
    if (offset_file_remove(o, kind, id) != 0) return STATUS_CANNOT_DELETE_CONSUMER_OFFSET_FILE;
    offset_file_close(o, entry);
    ASSERT(!entry->dirty || o->dirty > 0);
    if (entry->dirty) o->dirty--;
    erase(o, entry);
    return 0;
}

void offsets_discard_file(offsets *o, uint8_t kind, uint32_t id) { offset_file_remove(o, kind, id); }

void offsets_free(offsets *o) {
    for (uint32_t i = 0; i < o->capacity; i++)
        if (o->entries[i].kind != 0) offset_file_close(o, &o->entries[i]);
    free(o->entries);
    o->entries = NULL;
    o->capacity = o->count = o->dirty = o->dirty_directories = 0;
}
