/* Private input memory: frames that are not complete, and unread bytes that a waiting connection has taken along when
 * it gave its provided buffer back. Everything here has an owner and a share.
 *
 * There are two pots, one for connections that are logged in and one for the crowd that is not, so that no crowd takes
 * from the first. In a pot memory belongs to an owner: a user at an address (admission.h), or without a login the
 * address. Below the budget of the pot everybody may go on receiving. Above it an owner goes on up to its part (the
 * budget divided by the owners there are), one connection of the pot beyond that, in turns from owner to owner; the
 * others wait in their sockets. What has arrived has to lie somewhere: above the hard limit an owner that has more than
 * its part loses its oldest connection. */
#ifndef SHARDD_SHARES_H
#define SHARDD_SHARES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POT_BUCKETS 256u

typedef struct conn conn;
typedef struct net net;
typedef struct pot pot;

typedef struct share { /* of one owner; exists while a connection of it holds, receives or waits */
    pot *pot;
    uint64_t key;
    uint64_t bytes, armed; /* held, and what receives under way may still bring */
    uint32_t connections;  /* that hold, receive or wait */
    struct share *next_in_bucket, *next_waiting;
    conn *oldest, *newest;        /* connections that hold memory, by when they began to */
    conn *waiting, *waiting_last; /* connections that may not go on receiving */
} share;

struct pot {
    uint64_t budget, hard_limit;
    uint64_t bytes, armed; /* of all owners */
    uint32_t owners;
    share *waiting, *waiting_last; /* owners with waiting connections, in turns */
    conn *privileged;              /* goes on beyond its owner's part */
    int64_t privileged_since_us;
    share *buckets[POT_BUCKETS];
    share common; /* of all owners for whose own there was no memory: they are one owner */
};

void shares_open(net *n);
void shares_close(net *n);
/* Whether the connection may receive more of its frame now. */
bool share_may_grow(conn *c);
/* Counts memory that the connection holds from now on. False: it was over its owner's part and is closed. */
bool share_hold(conn *c, uint32_t bytes);
void share_give_back(conn *c, uint32_t bytes);
void share_arm(conn *c, uint32_t bytes); /* a receive of so many bytes begins; 0: it is over */
void share_wait(conn *c);                /* until shares_run lets it go on */
void share_stop_waiting(conn *c);
void share_leave(conn *c); /* nothing of all this holds for the connection any more */
void shares_run(net *n);
/* Others wait for memory of which this connection's owner has more than its part. */
bool share_contended(const conn *c);
uint64_t shares_bytes(const net *n);
uint64_t shares_waiting(const net *n);
#endif
