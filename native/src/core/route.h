/* The route table: what Python decided once, C repeats.
 *
 * Key of a route: user id + the raw bytes of the stream and topic identifiers as they came on the wire. Value: what
 * this user may do with this topic. Where each partition of the topic lives is kept once for all routes of the topic
 * (route_topic). A change of the metadata ends what it concerns, nothing else: a user's routes, a topic, the topics of
 * a stream (docs/adr/0036). Pure memory.
 */
#ifndef SHARDD_ROUTE_H
#define SHARDD_ROUTE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROUTES_MAX 65536u  /* entries; a full table is emptied, what it knows of topics stays */
#define ROUTE_KEY_MAX 514u /* two identifiers of 2 + 255 bytes */
#define ROUTE_USER_PLACES 1024u

typedef struct owned owned; /* a partition of this shard (engine.h) */

typedef struct route_partition {
    uint64_t ns;
    uint64_t incarnation;
    uint32_t owner; /* shard */
    uint32_t slot;  /* of its statistics, and of the turns that it is owed (turns.h) */
    owned *local;   /* retained; NULL when another shard owns it or it is not open here yet */
} route_partition;

typedef struct route_topic {
    struct route_topic *next; /* in its bucket */
    uint64_t ns;              /* of its partition 0: its name here */
    uint32_t stream_id;
    uint64_t version;    /* never used again: seats of another one do not count */
    uint32_t references; /* of its routes; one more until it has ended */
    bool ended;          /* something else is there now: without partitions, and its routes do not count */
    uint32_t counter;    /* balanced counter of the topic */
    uint32_t partitions_count;
    route_partition *partitions;
    uint32_t *own, own_count; /* indexes of the partitions that this shard owns */
    struct {                  /* turns.c */
        uint64_t connection;  /* that sent last */
        int64_t last_us;
        uint32_t crowd, alone, own;
    } turns;
} route_topic;

typedef struct route {
    uint32_t user_id;
    uint32_t key_length;
    uint64_t hash;
    uint64_t user_version;     /* of the place of its user; it does not count at another one */
    uint64_t user_incarnation; /* of who stores offsets; 0: they count for no user */
    bool can_send, can_poll;
    route_topic *topic; /* referenced */
    uint8_t key[];
} route;

typedef struct route_table {
    void (*drop)(route_partition *);
    route **slots; /* open addressing, power of two; ended routes stay until their place is needed */
    uint32_t capacity, count;
    route_topic **topics; /* buckets, power of two */
    uint32_t topics_capacity, topics_count;
    uint64_t version;                          /* given out last */
    uint64_t user_versions[ROUTE_USER_PLACES]; /* by user id; those that share a place end together */
} route_table;

int routes_open(route_table *t, void (*drop)(route_partition *)); /* 0 or -ENOMEM */
void routes_close(route_table *t);
/* The route, unless it has ended; NULL without one. */
route *routes_find(const route_table *t, uint32_t user_id, const uint8_t *key, uint32_t key_length);
/* Makes (or replaces) an entry; NULL without memory. */
route *routes_put(route_table *t, uint32_t user_id, const uint8_t *key, uint32_t key_length, route_topic *topic);
/* The topic whose partition 0 has that namespace; NULL: unknown, or ended. */
route_topic *routes_topic(const route_table *t, uint64_t ns);
/* Makes (or replaces) what is known of a topic, with room for its partitions, and for those that this shard owns; NULL
 * without memory. */
route_topic *routes_topic_put(route_table *t, uint32_t stream_id, uint64_t ns, uint32_t partitions_count);

void routes_end_user(route_table *t, uint32_t user_id);
void routes_end_topic(route_table *t, uint64_t ns); /* and all of its routes */
void routes_end_stream(route_table *t, uint32_t stream_id);
void routes_end_all(route_table *t);
#endif
