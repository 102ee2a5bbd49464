/* What a topic takes of its producers: messages up to a size, and nothing more once it is full, where it refuses
 * instead of dropping its oldest messages (docs/adr/0041-retention.md). One for the partitions of a topic on this
 * shard; a topic without such limits has none. The bytes of the topic are a running sum: a pass of the commit looks at
 * the partitions that it writes to and at SEND_PLACES_LOOKED_AT others in turn. So a topic with more of them may take
 * what other shards have written within a few passes beyond its limit. Loop thread only. */
#ifndef SHARDD_SEND_LIMITS_H
#define SHARDD_SEND_LIMITS_H
#include "base/shared.h"
#include "log/partition.h"

#define SEND_PLACES_LOOKED_AT 1024u

typedef struct send_place { /* a partition of the topic, of any shard */
    const partition_stats *stats;
    uint64_t incarnation;
    uint64_t bytes; /* its part of the sum */
} send_place;

typedef struct send_limits {
    uint64_t message_bytes_max; /* payload and user headers of one message */
    uint64_t messages_max;      /* in each partition */
    uint64_t bytes_max;         /* in all partitions together */
    uint64_t partition_bytes_max;
    uint32_t references;
    uint64_t pass;  /* in which the bytes of the topic were looked at */
    uint64_t bytes; /* sum of the places, what was taken since they were looked at included */
    uint64_t large; /* bytes of large batches that were taken and cannot be seen yet */
    uint32_t next;  /* place that is looked at next */
    bool summed;    /* all of them have been */
    uint32_t count;
    send_place places[];
} send_limits;

send_limits *send_limits_new(const send_limits *values, uint32_t count); /* one reference; NULL: no memory */
static inline send_limits *send_limits_retain(send_limits *l) {
    if (l != NULL) l->references++;
    return l;
}
void send_limits_release(send_limits *l); /* also NULL */
/* Gives every batch its status: 0 when it may be appended in pass `pass` of the commit, 4022, or 3009. `place`: that of
 * the partition in the topic. */
void send_limits_judge(send_limits *l, const partition *p, uint32_t place, append_batch *batches, size_t count,
                       uint64_t pass);
/* The same for one batch that comes when the partition has taken `messages` and `bytes` more. */
void send_limits_judge_behind(send_limits *l, const partition *p, uint64_t messages, uint64_t bytes, uint32_t place,
                              append_batch *b, uint64_t pass);
/* The status of one large batch before its first part. It counts until `send_limits_large_ends`; NULL: no limits. */
uint32_t send_limits_large_begins(send_limits *l, const partition *p, uint32_t place, append_batch *b);
void send_limits_large_ends(send_limits *l, uint32_t place, const append_batch *b);
#endif
