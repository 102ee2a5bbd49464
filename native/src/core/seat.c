/* See seat.h. */
#include "core/seat.h"

#include <stdlib.h>
#include <string.h>

static void to_front(seat **seats, seat **place) {
    seat *s = *place;
    *place = s->next;
    s->next = *seats;
    *seats = s;
}

seat *seats_find(seat **seats, const uint8_t *key, uint32_t key_length, uint64_t version) {
    for (seat **place = seats; *place != NULL; place = &(*place)->next) {
        seat *s = *place;
        if (s->key_length != key_length || s->version != version || memcmp(s->key, key, key_length) != 0) continue;
        if (place != seats) to_front(seats, place);
        return s;
    }
    return NULL;
}

seat *seats_put(seat **seats, uint64_t group, const uint8_t *key, uint32_t key_length, uint32_t count) {
    seat_free(seats_take(seats, group));
    uint32_t known = 0;
    for (const seat *s = *seats; s != NULL; s = s->next) known++;
    if (known >= SEATS_MAX || key_length > SEAT_KEY_MAX) return NULL;
    seat *s = calloc(1, sizeof *s + key_length);
    if (s == NULL) return NULL;
    uint32_t slots = 2;
    while (slots < UINT32_MAX / 2 && slots / 2 < count) slots *= 2; /* at most half full */
    s->places_mask = slots - 1;
    s->places = calloc(slots, sizeof *s->places);
    s->partitions = calloc(count > 0 ? count : 1, sizeof *s->partitions);
    if (s->partitions == NULL || s->places == NULL) {
        seat_free(s);
        return NULL;
    }
    s->group = group;
    s->count = count;
    s->key_length = key_length;
    memcpy(s->key, key, key_length);
    s->next = *seats;
    *seats = s;
    return s;
}

seat *seats_take(seat **seats, uint64_t group) {
    for (seat **place = seats; *place != NULL; place = &(*place)->next) {
        seat *s = *place;
        if (s->group != group) continue;
        *place = s->next;
        s->next = NULL;
        return s;
    }
    return NULL;
}

void seat_free(seat *s) {
    if (s == NULL) return;
    free(s->partitions);
    free(s->places);
    free(s);
}

void seats_free(seat **seats) {
    while (*seats != NULL) {
        seat *s = *seats;
        *seats = s->next;
        seat_free(s);
    }
}

static uint32_t slot_of(const seat *s, uint32_t partition) {
    return (partition * 2654435761u >> 7) & s->places_mask; /* ids are dense: any mixing will do */
}

void seat_set(seat *s, uint32_t at, uint32_t partition, int64_t polled, int64_t committed) {
    s->partitions[at] = (seat_partition){.partition = partition, .polled = polled, .committed = committed};
    uint32_t slot = slot_of(s, partition);
    while (s->places[slot] != 0) slot = (slot + 1) & s->places_mask;
    s->places[slot] = at + 1;
}

static bool place_of(const seat *s, int64_t partition, uint32_t *at) {
    if (partition < 0 || partition > UINT32_MAX) return false;
    for (uint32_t slot = slot_of(s, (uint32_t)partition); s->places[slot] != 0; slot = (slot + 1) & s->places_mask) {
        *at = s->places[slot] - 1;
        if (s->partitions[*at].partition == partition) return true;
    }
    return false;
}

bool seat_begin(seat *s, bool poll, int64_t wanted, bool auto_commit, seat_work *work) {
    if (s->count == 0) return false;
    uint32_t at = s->rotation % s->count;
    if (wanted == SEAT_NONE && !poll) wanted = s->last_polled;
    bool by_rotation = wanted == SEAT_NONE;
    if (!by_rotation && !place_of(s, wanted, &at)) return false;
    *work = (seat_work){.seat = s,
                        .at = at,
                        .rotation_before = s->rotation,
                        .last_polled_before = s->last_polled,
                        .auto_commit = auto_commit};
    if (!poll) return true;
    if (by_rotation) s->rotation = (at + 1) % s->count;
    s->last_polled = s->partitions[at].partition;
    return true;
}

void seat_undo(seat_work *work) {
    if (work->seat == NULL) return;
    work->seat->rotation = work->rotation_before;
    work->seat->last_polled = work->last_polled_before;
    work->seat = NULL;
}

void seat_polled(seat_work *work, uint64_t count, uint64_t last_offset) {
    seat_partition *p = &work->seat->partitions[work->at];
    work->seat = NULL;
    if (count == 0) return;
    if (p->polled < (int64_t)last_offset) p->polled = (int64_t)last_offset;
    if (work->auto_commit) p->committed = (int64_t)last_offset;
}

void seat_committed(seat_work *work, bool stored) {
    seat_partition *p = &work->seat->partitions[work->at];
    work->seat = NULL;
    if (stored && p->polled != SEAT_NONE) p->committed = (int64_t)work->offset;
}
