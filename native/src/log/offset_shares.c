/* Counts of stored offsets by user, and the users that there are. */
#include "log/offset_shares.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 8u

static uint32_t slot_of(uint64_t incarnation, uint32_t capacity) {
    return (uint32_t)((incarnation * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (capacity - 1);
}

static bool is_crowded(uint32_t used, uint32_t capacity) { return (uint64_t)(used + 1) * 4 > (uint64_t)capacity * 3; }

/* ---- users ---- */

static uint64_t *user_slot(uint64_t *slots, uint32_t capacity, uint64_t incarnation) {
    uint32_t i = slot_of(incarnation, capacity);
    while (slots[i] != 0 && slots[i] != incarnation) i = (i + 1) & (capacity - 1);
    return &slots[i];
}

void known_users_begin(known_users *u) {
    ASSERT(u->version == 0);
    u->version = 1;
}

int known_users_add(known_users *u, uint64_t incarnation) {
    ASSERT(incarnation != 0);
    if (is_crowded(u->count, u->capacity)) {
        uint32_t capacity = u->capacity > 0 ? u->capacity * 2 : CAPACITY_MIN;
        uint64_t *grown = capacity > u->capacity ? calloc(capacity, sizeof *grown) : NULL;
        if (grown == NULL) return -1;
        for (uint32_t i = 0; i < u->capacity; i++)
            if (u->slots[i] != 0) *user_slot(grown, capacity, u->slots[i]) = u->slots[i];
        free(u->slots);
        u->slots = grown;
        u->capacity = capacity;
    }
    uint64_t *slot = user_slot(u->slots, u->capacity, incarnation);
    if (*slot == 0) {
        u->count++;
        if (u->version > 0) u->version++;
    }
    *slot = incarnation;
    return 0;
}

bool known_users_has(const known_users *u, uint64_t incarnation) {
    if (u->version == 0) return true;
    return u->count > 0 && *user_slot(u->slots, u->capacity, incarnation) == incarnation;
}

void known_users_end(known_users *u, uint64_t incarnation) {
    if (u->count == 0) return;
    uint64_t *slot = user_slot(u->slots, u->capacity, incarnation);
    if (*slot == 0) return;
    u->count--;
    if (u->version > 0) u->version++;
    uint32_t mask = u->capacity - 1, hole = (uint32_t)(slot - u->slots);
    for (uint32_t i = (hole + 1) & mask; u->slots[i] != 0; i = (i + 1) & mask) {
        uint32_t home = slot_of(u->slots[i], u->capacity);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            u->slots[hole] = u->slots[i];
            hole = i;
        }
    }
    u->slots[hole] = 0;
}

void known_users_free(known_users *u) {
    free(u->slots);
    *u = (known_users){0};
}

/* ---- shares ---- */

static offset_owner *owner_slot(offset_owner *slots, uint32_t capacity, uint64_t incarnation) {
    uint32_t i = slot_of(incarnation, capacity);
    while (slots[i].incarnation != 0 && slots[i].incarnation != incarnation) i = (i + 1) & (capacity - 1);
    return &slots[i];
}

static offset_owner *find(const offset_shares *s, uint64_t owner) {
    if (owner == 0 || s->used == 0) return NULL;
    offset_owner *found = owner_slot(s->slots, s->capacity, owner);
    return found->incarnation == owner ? found : NULL;
}

bool offset_shares_reserve(offset_shares *s, uint64_t owner) {
    if (owner == 0 || find(s, owner) != NULL || !is_crowded(s->used, s->capacity)) return true;
    offset_shares grown = *s;
    uint32_t live = 0;
    for (uint32_t i = 0; i < s->capacity; i++) live += s->slots[i].count > 0;
    for (grown.capacity = CAPACITY_MIN; live * UINT64_C(2) >= grown.capacity;) grown.capacity *= 2;
    grown.slots = calloc(grown.capacity, sizeof *grown.slots);
    if (grown.slots == NULL) return false;
    for (uint32_t i = 0; i < s->capacity; i++)
        if (s->slots[i].count > 0) *owner_slot(grown.slots, grown.capacity, s->slots[i].incarnation) = s->slots[i];
    grown.used = live;
    free(s->slots);
    *s = grown;
    return true;
}

void offset_shares_pass(offset_shares *s, uint64_t before, uint64_t after) {
    if (before == after) return;
    offset_owner *from = find(s, before);
    if (from != NULL) {
        ASSERT(from->count > 0);
        from->count--;
        s->gone -= from->gone;
    }
    if (after == 0) return;
    ASSERT(s->used < s->capacity);
    offset_owner *to = owner_slot(s->slots, s->capacity, after);
    if (to->incarnation == 0) {
        *to = (offset_owner){.incarnation = after};
        s->used++;
        s->version = 0; /* whether it is there is looked up with the next look at all of them */
    }
    to->count++;
    s->gone += to->gone;
}

uint32_t offset_shares_count(const offset_shares *s, uint64_t owner) {
    const offset_owner *found = find(s, owner);
    return found != NULL ? found->count : 0;
}

uint32_t offset_shares_gone(offset_shares *s, const known_users *users) {
    if (users == NULL || users->version == 0 || users->version == s->version) return s->gone;
    s->version = users->version;
    s->gone = 0;
    for (uint32_t i = 0; i < s->capacity; i++) {
        if (s->slots[i].incarnation == 0) continue;
        s->slots[i].gone = !known_users_has(users, s->slots[i].incarnation);
        if (s->slots[i].gone) s->gone += s->slots[i].count;
    }
    return s->gone;
}

bool offset_shares_is_gone(const offset_shares *s, uint64_t owner) {
    const offset_owner *found = find(s, owner);
    return found != NULL && found->gone;
}

void offset_shares_clear(offset_shares *s) {
    free(s->slots);
    *s = (offset_shares){0};
}
