/* See logins.h. */
#include "net/logins.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define HALF_LIFE_US 60000000u

uint64_t logins_key(const links *l, const void *text, size_t length) {
    uint64_t key = XXH3_64bits_withSeed(text, length, l->seed);
    return key != 0 ? key : 1; /* 0 is an empty place */
}

static login_cell *cell_of(const links *l, uint32_t row, uint64_t key) {
    return &l->logins->cells[row][(uint32_t)(key >> (32 * row)) % SHARED_LOGIN_COLUMNS];
}

/* A count and the minute it is of, in one word. */
static uint64_t packed(uint32_t count, uint64_t now_us) { return (now_us / HALF_LIFE_US) << 32 | count; }

static uint32_t count_at(uint64_t word, uint64_t now_us) {
    uint64_t minute = now_us / HALF_LIFE_US, since = word >> 32;
    uint64_t passed = minute > since ? minute - since : 0;
    return passed < 32 ? (uint32_t)word >> passed : 0;
}

uint32_t logins_failures(const links *l, uint64_t key, uint64_t now_us) {
    uint32_t least = UINT32_MAX;
    for (uint32_t row = 0; row < SHARED_LOGIN_ROWS; row++) {
        uint32_t count = count_at(atomic_load(&cell_of(l, row, key)->failures), now_us);
        if (count < least) least = count;
    }
    return least;
}

static void change(login_cell *cell, uint64_t now_us, uint32_t more, uint32_t less) {
    uint64_t seen = atomic_load(&cell->failures), next;
    do {
        uint32_t count = count_at(seen, now_us);
        count = count < UINT32_MAX - more ? count + more : UINT32_MAX;
        next = packed(count > less ? count - less : 0, now_us);
    } while (!atomic_compare_exchange_weak(&cell->failures, &seen, next));
}

static void change_both(links *l, uint64_t key, uint64_t now_us, uint32_t more, uint32_t less) {
    for (uint32_t row = 0; row < SHARED_LOGIN_ROWS; row++) change(cell_of(l, row, key), now_us, more, less);
}

void logins_begin(links *l, uint64_t key, uint64_t now_us) { change_both(l, key, now_us, 1, 0); }
void logins_take_back(links *l, uint64_t key, uint64_t now_us) { change_both(l, key, now_us, 0, 1); }

/* Not to 0: what other keys have in one of the two cells stays theirs. */
void logins_clear(links *l, uint64_t key, uint64_t now_us) {
    change_both(l, key, now_us, 0, logins_failures(l, key, now_us));
}

uint64_t logins_moment(links *l, uint64_t key, uint64_t now_us, uint64_t wait_us) {
    uint64_t last_us = UINT64_MAX;
    for (uint32_t row = 0; row < SHARED_LOGIN_ROWS; row++) {
        uint64_t booked_us = atomic_load(&cell_of(l, row, key)->booked_us);
        if (booked_us < last_us) last_us = booked_us;
    }
    uint64_t moment_us = (last_us > now_us ? last_us : now_us) + wait_us;
    for (uint32_t row = 0; row < SHARED_LOGIN_ROWS; row++) {
        _Atomic uint64_t *booked = &cell_of(l, row, key)->booked_us;
        uint64_t seen = atomic_load(booked);
        while (seen < moment_us && !atomic_compare_exchange_weak(booked, &seen, moment_us)) {
        }
    }
    return moment_us;
}

static login_place *places_of(const links *l, uint64_t account) {
    return l->logins->places[account % SHARED_LOGIN_ACCOUNTS];
}

void logins_remember(links *l, uint64_t account, uint64_t pair, uint64_t now_us) {
    login_place *places = places_of(l, account), *oldest = places;
    for (uint32_t i = 0; i < SHARED_LOGIN_PLACES; i++) {
        if (atomic_load(&places[i].pair) == pair) {
            oldest = &places[i];
            break;
        }
        if (atomic_load(&places[i].at_us) < atomic_load(&oldest->at_us)) oldest = &places[i];
    }
    atomic_store(&oldest->pair, pair);
    atomic_store(&oldest->at_us, now_us);
}

bool logins_is_known(const links *l, uint64_t account, uint64_t pair, uint64_t now_us, uint64_t age_us) {
    const login_place *places = places_of(l, account);
    for (uint32_t i = 0; i < SHARED_LOGIN_PLACES; i++)
        if (atomic_load(&places[i].pair) == pair) return atomic_load(&places[i].at_us) + age_us > now_us;
    return false;
}
