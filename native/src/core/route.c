/* See route.h. */
#include "core/route.h"

#include "base/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define CAPACITY_FIRST 256u

int routes_open(route_table *t, void (*drop)(route_partition *)) {
    *t = (route_table){.drop = drop, .capacity = CAPACITY_FIRST, .topics_capacity = CAPACITY_FIRST};
    t->slots = calloc(CAPACITY_FIRST, sizeof(route *));
    t->topics = calloc(CAPACITY_FIRST, sizeof(route_topic *));
    return t->slots != NULL && t->topics != NULL ? 0 : -ENOMEM;
}

void routes_close(route_table *t) {
    if (t->slots != NULL && t->topics != NULL) routes_end_all(t);
    free(t->slots);
    free(t->topics);
    t->slots = NULL;
    t->topics = NULL;
}

/* ---- topics ---- */

static route_topic **bucket_of(const route_table *t, uint64_t ns) {
    return &t->topics[hash_place(ns) & (t->topics_capacity - 1)];
}

static void topic_release(route_topic *topic) {
    if (--topic->references == 0) free(topic);
}

/* Takes it out of its bucket. Its partitions go now, whatever routes still point to it. */
static void topic_end(route_table *t, route_topic **place) {
    route_topic *topic = *place;
    *place = topic->next;
    t->topics_count--;
    for (uint32_t i = 0; i < topic->partitions_count; i++) t->drop(&topic->partitions[i]);
    free(topic->partitions);
    free(topic->own);
    topic->partitions = NULL;
    topic->own = NULL;
    topic->partitions_count = topic->own_count = 0;
    topic->ended = true;
    topic_release(topic);
}

static route_topic **topic_place(const route_table *t, uint64_t ns) {
    route_topic **place = bucket_of(t, ns);
    while (*place != NULL && (*place)->ns != ns) place = &(*place)->next;
    return place;
}

route_topic *routes_topic(const route_table *t, uint64_t ns) { return *topic_place(t, ns); }

static bool grow_topics(route_table *t) {
    route_table larger = *t;
    larger.topics_capacity *= 2;
    larger.topics = calloc(larger.topics_capacity, sizeof(route_topic *));
    if (larger.topics == NULL) return false;
    for (uint32_t i = 0; i < t->topics_capacity; i++)
        for (route_topic *topic = t->topics[i], *next; topic != NULL; topic = next) {
            route_topic **bucket = bucket_of(&larger, topic->ns);
            next = topic->next;
            topic->next = *bucket;
            *bucket = topic;
        }
    free(t->topics);
    *t = larger;
    return true;
}

route_topic *routes_topic_put(route_table *t, uint32_t stream_id, uint64_t ns, uint32_t partitions_count) {
    routes_end_topic(t, ns);
    if (t->topics_count >= t->topics_capacity && !grow_topics(t)) return NULL;
    route_topic *topic = calloc(1, sizeof *topic);
    if (topic == NULL) return NULL;
    topic->partitions = calloc(partitions_count > 0 ? partitions_count : 1, sizeof *topic->partitions);
    topic->own = calloc(partitions_count > 0 ? partitions_count : 1, sizeof *topic->own);
    if (topic->partitions == NULL || topic->own == NULL) {
        free(topic->partitions);
        free(topic->own);
        free(topic);
        return NULL;
    }
    route_topic **bucket = bucket_of(t, ns);
    topic->next = *bucket;
    topic->ns = ns;
    topic->stream_id = stream_id;
    topic->version = ++t->version;
    topic->references = 1;
    topic->partitions_count = partitions_count;
    *bucket = topic;
    t->topics_count++;
    return topic;
}

/* ---- routes ---- */

static uint64_t *user_version(route_table *t, uint32_t user_id) {
    return &t->user_versions[user_id % ROUTE_USER_PLACES];
}

static bool counts(const route_table *t, const route *r) {
    return !r->topic->ended && r->user_version == t->user_versions[r->user_id % ROUTE_USER_PLACES];
}

static void route_free(route *r) {
    topic_release(r->topic);
    free(r);
}

static uint64_t hash_key(uint32_t user_id, const uint8_t *key, uint32_t key_length) {
    return XXH3_64bits_withSeed(key, key_length, user_id);
}

static uint32_t place_of(const route_table *t, uint64_t hash, uint32_t user_id, const uint8_t *key,
                         uint32_t key_length) {
    uint32_t mask = t->capacity - 1, at = (uint32_t)hash & mask;
    for (const route *r; (r = t->slots[at]) != NULL; at = (at + 1) & mask)
        if (r->hash == hash && r->user_id == user_id && r->key_length == key_length &&
            memcmp(r->key, key, key_length) == 0)
            break;
    return at;
}

route *routes_find(const route_table *t, uint32_t user_id, const uint8_t *key, uint32_t key_length) {
    route *found = t->slots[place_of(t, hash_key(user_id, key, key_length), user_id, key, key_length)];
    return found != NULL && counts(t, found) ? found : NULL;
}

static void empty(route_table *t) {
    for (uint32_t i = 0; i < t->capacity; i++) {
        if (t->slots[i] != NULL) route_free(t->slots[i]);
        t->slots[i] = NULL;
    }
    t->count = 0;
}

/* Room for one more: routes that have ended go, then the table grows; at its end it is emptied. */
static bool make_room(route_table *t) {
    uint32_t counting = 0;
    for (uint32_t i = 0; i < t->capacity; i++) counting += t->slots[i] != NULL && counts(t, t->slots[i]);
    if (counting >= ROUTES_MAX) {
        empty(t);
        return true;
    }
    route_table other = *t;
    if ((counting + 1) * 2 > t->capacity) other.capacity *= 2;
    other.slots = calloc(other.capacity, sizeof(route *));
    if (other.slots == NULL) return false;
    other.count = counting;
    for (uint32_t i = 0; i < t->capacity; i++) {
        route *r = t->slots[i];
        if (r == NULL) continue;
        if (counts(t, r)) other.slots[place_of(&other, r->hash, r->user_id, r->key, r->key_length)] = r;
        else route_free(r);
    }
    free(t->slots);
    *t = other;
    return true;
}

route *routes_put(route_table *t, uint32_t user_id, const uint8_t *key, uint32_t key_length, route_topic *topic) {
    bool full = t->count >= ROUTES_MAX || (t->count + 1) * 4 > t->capacity * 3;
    if (full && !make_room(t)) return NULL;
    route *r = calloc(1, sizeof *r + key_length);
    if (r == NULL) return NULL;
    r->user_id = user_id;
    r->key_length = key_length;
    r->hash = hash_key(user_id, key, key_length);
    r->user_version = *user_version(t, user_id);
    r->topic = topic;
    topic->references++;
    memcpy(r->key, key, key_length);
    uint32_t at = place_of(t, r->hash, user_id, key, key_length);
    if (t->slots[at] != NULL) route_free(t->slots[at]);
    else t->count++;
    t->slots[at] = r;
    return r;
}

/* ---- ends ---- */

void routes_end_user(route_table *t, uint32_t user_id) { ++*user_version(t, user_id); }

void routes_end_topic(route_table *t, uint64_t ns) {
    route_topic **place = topic_place(t, ns);
    if (*place != NULL) topic_end(t, place);
}

void routes_end_stream(route_table *t, uint32_t stream_id) {
    for (uint32_t i = 0; i < t->topics_capacity; i++)
        for (route_topic **place = &t->topics[i]; *place != NULL;) {
            if ((*place)->stream_id == stream_id) topic_end(t, place);
            else place = &(*place)->next;
        }
}

void routes_end_all(route_table *t) {
    for (uint32_t i = 0; i < t->topics_capacity; i++)
        while (t->topics[i] != NULL) topic_end(t, &t->topics[i]);
    empty(t);
}
