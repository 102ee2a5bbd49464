/* Stored offsets of one partition: the table in memory and the operations. The file: offsets_files.c. */
#include "log/offsets.h"

#include "base/assert.h"
#include "log/offsets_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 8u
#define LOWERED_AT_ONCE 256u /* places: 32 KiB of the file */
#define READ_NOTED_US UINT64_C(86400000000)

static uint32_t slot_of(const offsets *o, uint8_t kind, uint32_t id) {
    uint64_t key = id ^ ((uint64_t)kind << 32);
    return (uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (o->capacity - 1);
}

static offset_entry *find(const offsets *o, uint8_t kind, uint32_t id) {
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
    o->slots[entry->place] = i;
    o->count++;
    return &o->entries[i];
}

static int reserve_slot(offsets *o, uint32_t place) {
    if (place < o->slots_capacity) return 0;
    ASSERT(place < OFFSETS_PLACES_MAX);
    uint32_t capacity = o->slots_capacity > 0 ? o->slots_capacity : CAPACITY_MIN;
    while (capacity <= place) capacity *= 2;
    uint32_t *grown = realloc(o->slots, capacity * sizeof(*grown));
    if (grown == NULL) return -1;
    memset(grown + o->slots_capacity, 0xff, (capacity - o->slots_capacity) * sizeof(*grown));
    o->slots = grown;
    o->slots_capacity = capacity;
    return 0;
}

/* Room for one more at a load of at most 3/4, which is to lie at `at` in the file. */
static int reserve(offsets *o, uint32_t at) {
    if (reserve_slot(o, at) != 0) return -1;
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
            o->slots[o->entries[hole].place] = hole;
            hole = i;
        }
    }
    o->entries[hole] = (offset_entry){0};
    o->count--;
}

bool offsets_get(const offsets *o, uint8_t kind, uint32_t id, uint64_t *value) {
    const offset_entry *entry = find(o, kind, id);
    if (entry == NULL) return false;
    *value = entry->value;
    return true;
}

bool offsets_is_of(const offsets *o, uint32_t id, uint64_t name) {
    const offset_entry *entry = name != 0 ? find(o, OFFSET_CONSUMER, id) : NULL;
    return entry == NULL || entry->use.name == 0 || entry->use.name == name;
}

uint64_t offsets_lowest(offsets *o) {
    if (o->lowest_known) return o->lowest;
    o->lowest = UINT64_MAX;
    for (uint32_t i = 0; i < o->capacity; i++)
        if (o->entries[i].kind != 0 && o->entries[i].value < o->lowest) o->lowest = o->entries[i].value;
    o->lowest_known = true;
    return o->lowest;
}

/* An entry has had `before` (UINT64_MAX: it is new) and has `after` now (UINT64_MAX: it is gone). */
static void lowest_changed(offsets *o, uint64_t before, uint64_t after) {
    if (after <= o->lowest) o->lowest = after;
    else if (before <= o->lowest) o->lowest_known = false;
}

/* ---- places of the file ---- */

/* Without memory it is found again at the next opening. */
static void give_place(offsets *o, uint32_t place, uint8_t half) {
    if (o->free_count == o->free_capacity) {
        uint32_t capacity = o->free_capacity > 0 ? o->free_capacity * 2 : CAPACITY_MIN;
        free_place *grown = realloc(o->free_places, capacity * sizeof(*grown));
        if (grown == NULL) return;
        o->free_places = grown;
        o->free_capacity = capacity;
    }
    o->free_places[o->free_count++] = (free_place){place, half};
}

/* The one that the next store takes. */
static free_place next_place(const offsets *o) {
    return o->free_count > 0 ? o->free_places[o->free_count - 1] : (free_place){o->places, 1};
}

static void take_place(offsets *o) {
    if (o->free_count > 0) o->free_count--;
    else o->places++;
}

/* ---- opening ---- */

typedef struct loading {
    offsets *o;
    int fd;
    const offsets_scan *scan;
    uint64_t now_us;
    free_place *doubles; /* older entries of a consumer that has another one: a deletion was lost with the power */
    uint32_t doubles_count;
} loading;

static offset_use use_of(const loading *l, const offsets_place *what) {
    offset_use use = what->use;
    if (use.used_us == 0) use.used_us = l->now_us;
    return use;
}

static int keep_newer(loading *l, offset_entry *entry, uint32_t place, const offsets_place *what) {
    uint8_t data[OFFSETS_ENTRY_BYTES];
    offsets_place before;
    free_place *doubles = realloc(l->doubles, (l->doubles_count + 1) * sizeof(*doubles));
    if (doubles == NULL) return -1;
    l->doubles = doubles;
    uint32_t bytes = l->scan->entry_bytes;
    if (offsets_read_places(l->o->disk, l->fd, bytes, entry->place, 1, data) != 0) return -1;
    offsets_decode_place(data, bytes, &before);
    bool newer = what->sequence > before.sequence;
    doubles[l->doubles_count++] = newer ? (free_place){entry->place, entry->half} : (free_place){place, what->half};
    if (!newer) return 0;
    if (!offset_shares_reserve(&l->o->shares, what->use.owner)) return -1;
    offset_shares_pass(&l->o->shares, entry->use.owner, what->use.owner);
    entry->value = what->value;
    entry->use = use_of(l, what);
    entry->place = place;
    entry->half = what->half;
    l->o->slots[place] = (uint32_t)(entry - l->o->entries);
    return 0;
}

static int load(void *context, uint32_t number, const offsets_place *what) {
    loading *l = context;
    if (what->state == OFFSETS_PLACE_FREE) give_place(l->o, number, what->half);
    if (what->state != OFFSETS_PLACE_TAKEN) return 0; /* what is lost stays as it is */
    offset_entry *entry = find(l->o, what->kind, what->id);
    if (reserve_slot(l->o, number) != 0) return -1;
    if (entry != NULL) return keep_newer(l, entry, number, what);
    if (reserve(l->o, number) != 0 || !offset_shares_reserve(&l->o->shares, what->use.owner)) return -1;
    offset_shares_pass(&l->o->shares, 0, what->use.owner);
    place(l->o, &(offset_entry){what->value, use_of(l, what), 0, what->id, number, what->kind, what->half});
    return 0;
}

/* Without it they would come back when the newer one is deleted. Best effort. */
static void forget_doubles(const loading *l) {
    if (l->o->old) return; /* they are not taken over */
    for (uint32_t i = 0; i < l->doubles_count && offsets_file(l->o) >= 0; i++) {
        const free_place *f = &l->doubles[i];
        if (offsets_file_put(l->o, f->place, !f->half, &(offsets_half){0}) == 0) give_place(l->o, f->place, !f->half);
    }
}

static void forget_owners(offsets *o) {
    offset_shares_clear(&o->shares);
    free(o->victims.list);
    o->victims.list = NULL;
    o->victims.count = 0;
}

static void forget(offsets *o) {
    offsets_file_close(o);
    forget_owners(o);
    free(o->entries);
    free(o->slots);
    free(o->free_places);
    o->entries = NULL;
    o->slots = NULL;
    o->free_places = NULL;
    o->slots_capacity = o->capacity = o->count = o->places = o->free_count = o->free_capacity = 0;
    o->sequence = 0;
    o->exists = o->dirty = o->directory_dirty = o->lowest_known = o->old = false;
}

int offsets_open(offsets *o, uint64_t now_us) {
    offsets_scan scan;
    loading l = {.o = o, .scan = &scan, .now_us = now_us, .fd = offsets_file_open(o, O_RDONLY)};
    if (l.fd < 0) return errno == ENOENT ? offsets_file_early(o) : -1;
    int result = offsets_scan_file(o->disk, l.fd, o->incarnation, &scan, load, &l), error = errno;
    o->disk->close(o->disk->context, l.fd);
    if (result == 0 && scan.head == OFFSETS_HEAD_UNKNOWN) result = -1, error = EPROTO;
    if (result == 0 && scan.head != OFFSETS_HEAD_UNBORN && scan.head != OFFSETS_HEAD_FOREIGN) {
        o->exists = o->dirty = o->directory_dirty = true;
        o->old = scan.entry_bytes == OFFSETS_FIRST_ENTRY_BYTES;
        o->places = scan.places;
        o->sequence = scan.sequence;
        forget_doubles(&l);
    } else if (result == 0) {
        o->free_count = 0;
        result = offsets_file_early(o);
        error = errno;
    }
    free(l.doubles);
    if (result != 0) forget(o); /* what is in it is not known */
    errno = error;
    return result;
}

/* ---- operations ---- */

/* Opens the file. 0, 10006, 3023. */
static uint32_t have_file(offsets *o) {
    if (offsets_file(o) >= 0) return 0;
    bool refused = errno == ENOSPC || errno == EDQUOT || errno == ENOMEM || errno == EFBIG || errno == EIO;
    return refused ? STATUS_CANNOT_WRITE_TO_FILE : STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE;
}

/* For one more of this user. Where the table is full, and not of entries that count, the one goes that belongs to a
 * user that is gone and was not used for longest; it may have been used or deleted since the walk that found it.
 * 0, 3023, or the status of a write. */
static uint32_t make_room(offsets *o, uint64_t owner) {
    if (!offsets_has_room(o, owner)) return STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE;
    if (o->count < o->count_max) return 0;
    offset_victim victim;
    while (offsets_next_victim(o, &victim)) {
        const offset_entry *entry = find(o, victim.kind, victim.id);
        if (entry == NULL || offset_last_use(entry) != victim.used_us) continue;
        if (!offset_shares_is_gone(&o->shares, entry->use.owner)) continue;
        if (offsets_delete(o, victim.kind, victim.id) != 0) return STATUS_CANNOT_WRITE_TO_FILE;
        o->users->removed++;
        return 0;
    }
    return STATUS_CANNOT_WRITE_TO_FILE; /* without memory */
}

bool offsets_has_place(offsets *o, uint8_t kind, uint32_t id, uint64_t owner) {
    return find(o, kind, id) != NULL || offsets_has_room(o, owner);
}

static uint32_t store_new(offsets *o, uint8_t kind, uint32_t id, uint64_t value, const offset_use *use) {
    uint32_t status = make_room(o, use->owner);
    if (status != 0) return status;
    free_place to = next_place(o);
    if (to.place >= OFFSETS_PLACES_MAX) return STATUS_CANNOT_OPEN_CONSUMER_OFFSETS_FILE;
    if (reserve(o, to.place) != 0 || !offset_shares_reserve(&o->shares, use->owner)) return STATUS_CANNOT_WRITE_TO_FILE;
    offsets_half content = {.value = value, .use = *use, .id = id, .kind = kind};
    status = offsets_file_put(o, to.place, !to.half, &content);
    if (status != 0) return status;
    take_place(o);
    offset_shares_pass(&o->shares, 0, use->owner);
    place(o, &(offset_entry){value, *use, 0, id, to.place, kind, !to.half});
    lowest_changed(o, UINT64_MAX, value);
    return 0;
}

/* The next half of an entry. */
static uint32_t put(offsets *o, offset_entry *entry, uint64_t value, const offset_use *use) {
    offsets_half content = {.value = value, .use = *use, .id = entry->id, .kind = entry->kind};
    if (!offset_shares_reserve(&o->shares, use->owner)) return STATUS_CANNOT_WRITE_TO_FILE;
    uint32_t status = offsets_file_put(o, entry->place, !entry->half, &content);
    if (status != 0) return status;
    offset_shares_pass(&o->shares, entry->use.owner, use->owner);
    entry->half = !entry->half;
    entry->use = *use;
    return 0;
}

uint32_t offsets_store(offsets *o, uint8_t kind, uint32_t id, uint64_t value, const offset_use *use) {
    ASSERT(kind == OFFSET_CONSUMER || kind == OFFSET_GROUP);
    uint32_t status = have_file(o);
    if (status != 0) return status;
    offset_entry *entry = find(o, kind, id);
    if (entry == NULL) return store_new(o, kind, id, value, use);
    status = put(o, entry, value, use);
    if (status != 0) return status;
    lowest_changed(o, entry->value, value);
    entry->value = value;
    return 0;
}

bool offsets_read(offsets *o, uint8_t kind, uint32_t id, uint64_t now_us, bool writes, uint64_t *value) {
    offset_entry *entry = find(o, kind, id);
    if (entry == NULL) return false;
    *value = entry->value;
    if (now_us > entry->read_us) entry->read_us = now_us;
    if (!writes) return true;
    if (now_us < entry->use.used_us || now_us - entry->use.used_us < READ_NOTED_US) return true;
    offset_use use = entry->use;
    use.used_us = now_us;
    if (offsets_file(o) < 0 || put(o, entry, entry->value, &use) != 0) entry->use = use; /* tried again in a day */
    return true;
}

uint32_t offsets_delete(offsets *o, uint8_t kind, uint32_t id) {
    offset_entry *entry = find(o, kind, id);
    if (entry == NULL) return STATUS_CONSUMER_OFFSET_NOT_FOUND;
    if (have_file(o) != 0 || offsets_file_put(o, entry->place, !entry->half, &(offsets_half){0}) != 0)
        return STATUS_CANNOT_DELETE_CONSUMER_OFFSET_FILE;
    give_place(o, entry->place, !entry->half);
    lowest_changed(o, entry->value, UINT64_MAX);
    offset_shares_pass(&o->shares, entry->use.owner, 0);
    erase(o, entry);
    return 0;
}

void offsets_clear(offsets *o, bool in_file) {
    if (o->count == 0) return;
    forget_owners(o);
    free(o->entries);
    o->entries = NULL;
    o->capacity = o->count = 0;
    o->lowest_known = false;
    if (in_file) offsets_file_make(o);
}

/* Of the place `number` of the file, when it is there that a value above `end` counts. */
static offset_entry *find_above(const offsets *o, uint32_t number, const offsets_place *what, uint64_t end) {
    if (what->state != OFFSETS_PLACE_TAKEN || what->value <= end) return NULL;
    offset_entry *entry = find(o, what->kind, what->id);
    return entry != NULL && entry->place == number ? entry : NULL;
}

/* Places that lie together are read, changed and written at once: 100,000 writes of a half cost half a second. Each
 * half that counted keeps its bytes, so wherever the write is torn every place has its value or the lowered one. */
static void lower_in_file(offsets *o, uint32_t first, uint32_t count, uint64_t end) {
    uint8_t data[LOWERED_AT_ONCE * OFFSETS_ENTRY_BYTES];
    offset_entry *lowered[LOWERED_AT_ONCE] = {NULL};
    uint32_t from = count, to = 0;
    if (offsets_read_places(o->disk, o->fd, OFFSETS_ENTRY_BYTES, first, count, data) != 0) return;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *at = data + (size_t)i * OFFSETS_ENTRY_BYTES;
        offsets_place what;
        offsets_decode_place(at, OFFSETS_ENTRY_BYTES, &what);
        lowered[i] = find_above(o, first + i, &what, end);
        if (lowered[i] == NULL) continue;
        offsets_half half = {
            .value = end, .sequence = ++o->sequence, .use = lowered[i]->use, .id = what.id, .kind = what.kind};
        offsets_encode_half(at + (what.half ? 0 : OFFSETS_HALF_BYTES), &half);
        if (from == count) from = i;
        to = i + 1;
    }
    if (from >= to || offsets_file_write(o, first + from, data + (size_t)from * OFFSETS_ENTRY_BYTES, to - from) != 0)
        return;
    for (uint32_t i = from; i < to; i++)
        if (lowered[i] != NULL) lowered[i]->half = !lowered[i]->half;
}

bool offsets_lower(offsets *o, uint64_t end, bool in_file) {
    bool any = false;
    for (uint32_t i = 0; i < o->capacity && !any; i++) any = o->entries[i].kind != 0 && o->entries[i].value > end;
    if (!any) return false;
    o->lowest_known = false;
    bool old = o->old; /* it is made anew of what is in memory */
    if (in_file && !old && offsets_file(o) >= 0)
        for (uint32_t first = 0; first < o->places; first += LOWERED_AT_ONCE)
            lower_in_file(o, first, o->places - first < LOWERED_AT_ONCE ? o->places - first : LOWERED_AT_ONCE, end);
    for (uint32_t i = 0; i < o->capacity; i++)
        if (o->entries[i].kind != 0 && o->entries[i].value > end) o->entries[i].value = end;
    if (in_file && old) offsets_file(o);
    return true;
}

void offsets_free(offsets *o) { forget(o); }
