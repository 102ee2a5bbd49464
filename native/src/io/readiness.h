/* For implementations of io.h that receive by plain calls: which descriptors may have input, and the receive buffers.
 *
 * The kernel tells changes only (edges). For each descriptor we know whether there may be input: an event says yes,
 * EAGAIN or a receive that filled less than it could says no (what comes after it makes a new event). So a request
 * costs one receive, and an idle connection nothing. The receives that the engine makes itself (the rest of a frame)
 * only make the mark too hopeful: one more call. Data that nobody wants now stays in its socket.
 *
 * Buffers are a stack: the one that was returned last is in the cache. */
#ifndef SHARDD_READINESS_H
#define SHARDD_READINESS_H
#include "io/io_threads.h"

enum { VERB_ACCEPT = 1, VERB_RECEIVE_PROVIDED, VERB_RECEIVE, VERB_SEND, VERB_POLL, VERB_CANCELLED };

typedef struct descriptor_state {
    operation *in, *out; /* wait for input, for room */
    uint32_t life;       /* of the descriptor: counts what had this number */
    bool member;         /* the kernel tells its events */
    bool no_input;       /* until an event says otherwise */
    bool ended;          /* input ends (or failed) behind what is there: no more events announce that */
} descriptor_state;

typedef struct readiness {
    io_queue tries;                /* operations whose call is worth trying */
    descriptor_state *descriptors; /* [fd] */
    uint32_t descriptors_count;
    uint16_t free_ids[BUFFERS_IN_ALL]; /* those of each set from its first id on */
} readiness;

/* With all buffers of `i` free. 0 or -ENOMEM. */
int readiness_open(readiness *r, io *i);
void readiness_close(readiness *r);
/* Room in the table for a descriptor that comes here for the first time. 0 or -ENOMEM. */
int readiness_make_room(readiness *r, int fd);
descriptor_state *readiness_of(readiness *r, int fd); /* that has room */
/* Whether it is known here. */
static inline bool readiness_knows(const readiness *r, int fd) { return (uint32_t)fd < r->descriptors_count; }
/* Nothing is known of it any more: the number may come again for another one. */
void readiness_forget(readiness *r, int fd);
/* Events of poll or epoll: operations that waited for them are tried again. */
void readiness_mark(readiness *r, int fd, uint32_t events);
/* It completes with `result` when it has its turn among the tries. */
void readiness_fail(readiness *r, operation *op, int result);
/* VERB_RECEIVE_PROVIDED or VERB_RECEIVE, now. False: there is nothing, and the operation has to wait for input. */
bool readiness_receive(readiness *r, io *i, operation *op, completion *done);
void readiness_buffer_return(readiness *r, io *i, int32_t id);
#endif
