/* The producers of a partition in memory: open addressing by id. */
#include "log/producers_table.h"

#include "base/hash.h"

#include <stdlib.h>

#define CAPACITY_FIRST 4u

static uint32_t slot_of(const producers *p, uint64_t producer) {
    uint32_t mask = p->capacity - 1, at = (uint32_t)hash_place(producer) & mask;
    while (p->table[at] != NULL && p->table[at]->producer != producer) at = (at + 1) & mask;
    return at;
}

producer_entry *producers_find(const producers *p, uint64_t producer) {
    return p->table != NULL ? p->table[slot_of(p, producer)] : NULL;
}

static bool grow(producers *p) {
    producers larger = *p;
    larger.capacity = p->capacity > 0 ? p->capacity * 2 : CAPACITY_FIRST;
    larger.table = calloc(larger.capacity, sizeof *larger.table);
    if (larger.table == NULL) return false;
    for (uint32_t i = 0; i < p->capacity; i++)
        if (p->table[i] != NULL) larger.table[slot_of(&larger, p->table[i]->producer)] = p->table[i];
    free(p->table);
    *p = larger;
    return true;
}

void producers_begin_epoch(producer_entry *e, uint32_t epoch) {
    e->epoch = epoch;
    e->next = e->running = 0;
    for (uint32_t i = 0; i < PRODUCER_SLOTS; i++) e->slots[i] = (producer_slot){.epoch = UINT32_MAX};
}

static uint64_t owner_of(const producers *p, uint64_t producer) {
    return p->memory->owner_of != NULL ? p->memory->owner_of(p->memory->context, producer) : 0;
}

static bool has_share(const offset_shares *shares, uint64_t owner, uint32_t count, uint32_t max) {
    return count < max && offset_shares_count(shares, owner) < max - count;
}

producer_entry *producers_enter(producers *p, uint64_t producer) {
    const producer_memory *m = p->memory;
    uint64_t owner = owner_of(p, producer);
    bool room = has_share(&p->shares, owner, p->count, PRODUCERS_OF_PARTITION_MAX) &&
                has_share(&m->shares, owner, m->used, PRODUCERS_OF_WORKER_MAX);
    return room ? producers_add(p, producer) : NULL;
}

producer_entry *producers_add(producers *p, uint64_t producer) {
    uint64_t owner = owner_of(p, producer);
    if ((p->count + 1) * 2 > p->capacity && !grow(p)) return NULL;
    if (!offset_shares_reserve(&p->shares, owner) || !offset_shares_reserve(&p->memory->shares, owner)) return NULL;
    producer_entry *e = malloc(sizeof *e);
    if (e == NULL) return NULL;
    *e = (producer_entry){.producer = producer, .owner = owner, .place = UINT32_MAX};
    producers_begin_epoch(e, 0);
    p->table[slot_of(p, producer)] = e;
    p->count++;
    p->memory->used++;
    offset_shares_pass(&p->shares, 0, owner);
    offset_shares_pass(&p->memory->shares, 0, owner);
    return e;
}

void producers_clear(producers *p) {
    for (uint32_t i = 0; i < p->capacity; i++) {
        if (p->table[i] != NULL) offset_shares_pass(&p->memory->shares, p->table[i]->owner, 0);
        free(p->table[i]);
    }
    free(p->table);
    offset_shares_clear(&p->shares);
    if (p->memory->used == p->count) offset_shares_clear(&p->memory->shares);
    p->table = NULL;
    p->memory->used -= p->count;
    p->capacity = p->count = 0;
}

void producers_take(producer_entry *e, const producer_slot *s) {
    if (s->epoch > e->epoch || e->next == 0) producers_begin_epoch(e, s->epoch);
    e->slots[s->running % PRODUCER_SLOTS] = *s;
    if (s->running < e->running) return;
    e->next = s->sequence + 1;
    e->running = s->running + 1;
}

void producers_forget(producers *p, producer_entry *e) {
    uint32_t mask = p->capacity - 1, at = slot_of(p, e->producer);
    p->table[at] = NULL;
    p->count--;
    p->memory->used--;
    offset_shares_pass(&p->shares, e->owner, 0);
    offset_shares_pass(&p->memory->shares, e->owner, 0);
    free(e);
    for (uint32_t next = (at + 1) & mask; p->table[next] != NULL; next = (next + 1) & mask) { /* close the gap */
        producer_entry *moved = p->table[next];
        p->table[next] = NULL;
        p->table[slot_of(p, moved->producer)] = moved;
    }
}
