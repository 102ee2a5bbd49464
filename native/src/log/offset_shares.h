/* Whose the stored offsets of a partition are, and which users there are: what a store of one more needs to know
 * (docs/adr/0130-shares-of-stored-things.md). A user may have as many as are left free; what a user has stored that is
 * gone counts for no user, and its places count as free. Producers of a partition and of a worker are counted the same
 * way (producers_table.c). Pure memory. Single-threaded.
 */
#ifndef SHARDD_OFFSET_SHARES_H
#define SHARDD_OFFSET_SHARES_H
#include <stdbool.h>
#include <stdint.h>

/* Users by incarnation, as the metadata know them; of a worker. */
typedef struct known_users {
    uint64_t *slots; /* open addressing, power of two; 0: free */
    uint32_t capacity, count;
    uint64_t version; /* grows with each change; 0: no list of them is known yet, and so each of them is there */
    uint64_t removed; /* stored offsets of users that are gone, whose places others needed */
} known_users;

/* From now on a user that is not in the list is gone. Called once the users of the start have been added. */
void known_users_begin(known_users *u);
int known_users_add(known_users *u, uint64_t incarnation); /* 0, or -1: no memory */
void known_users_end(known_users *u, uint64_t incarnation);
bool known_users_has(const known_users *u, uint64_t incarnation);
void known_users_free(known_users *u);

typedef struct offset_owner {
    uint64_t incarnation; /* 0: a free slot */
    uint32_t count;
    bool gone; /* as of the version that was seen */
} offset_owner;

/* Of the stored offsets of one partition. */
typedef struct offset_shares {
    offset_owner *slots; /* open addressing, power of two */
    uint32_t capacity, used;
    uint32_t gone; /* stored offsets of users that are gone, as of the version that was seen */
    uint64_t version;
} offset_shares;

/* Room for a count of this user; false: no memory. 0 needs none. */
bool offset_shares_reserve(offset_shares *s, uint64_t owner);
/* A stored offset has counted for `before` (0: for no user) and counts for `after` now, for which there is room. */
void offset_shares_pass(offset_shares *s, uint64_t before, uint64_t after);
uint32_t offset_shares_count(const offset_shares *s, uint64_t owner);
/* How many are of users that are gone. `users` may be NULL: there are none. */
uint32_t offset_shares_gone(offset_shares *s, const known_users *users);
/* As of the last call of offset_shares_gone. */
bool offset_shares_is_gone(const offset_shares *s, uint64_t owner);
void offset_shares_clear(offset_shares *s);
#endif
