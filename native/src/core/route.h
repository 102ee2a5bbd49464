/* The route table: what Python decided once, C repeats.
 *
 * Key: user id + the raw bytes of the stream and topic identifiers as they came on the wire. Value: what this user may
 * do with this topic, and where each partition lives. Any change of metadata or permissions empties the table
 * (routes_clear).
 */
#ifndef SHARDD_ROUTE_H
#define SHARDD_ROUTE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROUTES_MAX 65536u  /* entries; a full table is emptied */
#define ROUTE_KEY_MAX 514u /* two identifiers of 2 + 255 bytes */

typedef struct owned owned; /* a partition of this shard (engine.h) */

typedef struct route_partition {
    uint64_t ns;
    uint64_t incarnation;
    uint32_t owner; /* shard */
    owned *local;   /* retained; NULL when another shard owns it or it is not open here yet */
} route_partition;

typedef struct route {
    uint32_t user_id;
    uint32_t key_length;
    uint64_t hash;
    bool can_send, can_poll;
    uint32_t counter; /* balanced counter of the topic */
    uint32_t partitions_count;
    route_partition *partitions;
    uint8_t key[];
} route;

typedef struct route_table {
    route **slots; /* open addressing, power of two */
    uint32_t capacity, count;
    uint64_t misses, hits;
} route_table;

int routes_open(route_table *t); /* 0 or -ENOMEM */
void routes_close(route_table *t, void (*drop)(route_partition *));
void routes_clear(route_table *t, void (*drop)(route_partition *));
route *routes_find(route_table *t, uint32_t user_id, const uint8_t *key, uint32_t key_length);
/* Makes (or replaces) an entry with room for `partitions_count` partitions; NULL without memory. */
route *routes_put(route_table *t, uint32_t user_id, const uint8_t *key, uint32_t key_length, uint32_t partitions_count,
                  void (*drop)(route_partition *));
#endif
