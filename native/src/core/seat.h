/* Seats: what a connection may poll and commit as a member of consumer groups without asking Python (docs/adr/0010).
 *
 * A seat is one membership lent to C, under the raw bytes of group, stream and topic as the client writes them: the own
 * partitions that are not pending, the rotation over them, and what was polled and committed. While it is lent, the
 * facts here are the true ones; Python takes the seat back before it looks at them or changes them. A seat counts only
 * for the topic (route.h) in the version it was made for. Pure memory.
 */
#ifndef SHARDD_SEAT_H
#define SHARDD_SEAT_H
#include <stdbool.h>
#include <stdint.h>

#define SEATS_MAX 16u     /* of one connection; requests of further memberships go through Python */
#define SEAT_KEY_MAX 771u /* three identifiers of 2 + 255 bytes */
#define SEAT_NONE (-1)

typedef struct seat_partition {
    uint32_t partition;
    int64_t polled, committed; /* highest offset polled, last one committed since it is owned; SEAT_NONE */
} seat_partition;

typedef struct seat {
    struct seat *next;
    uint64_t group;      /* incarnation */
    uint64_t generation; /* of the assignment */
    uint64_t version;    /* of the topic, route.h */
    uint32_t offsets_id; /* whose offsets it polls and commits */
    uint32_t rotation, count;
    int64_t last_polled; /* partition; SEAT_NONE */
    seat_partition *partitions;
    uint32_t *places; /* hash table of indexes + 1 by partition, a power of two long; 0: empty */
    uint32_t places_mask;
    uint32_t key_length;
    uint8_t key[];
} seat;

/* The request of a seat that is under way on the connection, and what `seat_undo` needs. */
typedef struct seat_work {
    seat *seat;  /* NULL: none */
    uint32_t at; /* index of the partition */
    uint32_t rotation_before;
    int64_t last_polled_before;
    uint64_t offset; /* of a commit */
    bool auto_commit;
} seat_work;

/* The seat under that key and version, moved to the front; NULL without one. */
seat *seats_find(seat **seats, const uint8_t *key, uint32_t key_length, uint64_t version);
/* Enters a seat with room for `count` partitions; one of the same group is replaced. NULL: too many, or no memory. */
seat *seats_put(seat **seats, uint64_t group, const uint8_t *key, uint32_t key_length, uint32_t count);
/* Removes the seat of a group from the list; the caller frees it. NULL without one. */
seat *seats_take(seat **seats, uint64_t group);
void seats_free(seat **seats);
/* Fills in the partition at an index; each index once, before the seat is used. */
void seat_set(seat *s, uint32_t at, uint32_t partition, int64_t polled, int64_t committed);
void seat_free(seat *s);
/* Begins a poll or commit; `wanted` SEAT_NONE: by rotation, or for a commit the partition polled last. False: the seat
 * cannot tell, nothing has changed. */
bool seat_begin(seat *s, bool poll, int64_t wanted, bool auto_commit, seat_work *work);
void seat_undo(seat_work *work);                                         /* it was not carried out */
void seat_polled(seat_work *work, uint64_t count, uint64_t last_offset); /* its end */
void seat_committed(seat_work *work, bool stored);                       /* its end */
#endif
