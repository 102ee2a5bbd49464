/* What a connection holds while its poll waits for messages (wait.c). */
#ifndef SHARDD_CONN_WAIT_H
#define SHARDD_CONN_WAIT_H
#include "net/conn/conn.h"

struct conn_wait {
    waiting_poll waiting_poll; /* first */
    conn *of;
    int64_t until_us, since_us;
    bool woken, armed;
    uint32_t looks; /* that have to find nothing, since it is armed, before it waits */
    uint8_t payload[];
};

/* The payload is that copy. */
static inline bool conn_wait_has(const conn *c) {
    return c->wait_for != NULL && c->frame.payload == c->wait_for->payload;
}
/* With a copy of its request, which from here on is the frame: what comes behind a request in its frame is not kept.
 * NULL: no memory. */
conn_wait *conn_wait_make(conn *c, const consumer_request *asked);
/* The poll waits at all partitions that it may read. False: these are not known now, or too many polls wait. */
bool conn_wait_arm(conn *c, uint32_t *status);
#endif
