/* The other workers: requests to them (forward.c), requests of theirs (serve.c), connections that move (handover.c).
 *
 * Bytes stay where they are: a SEND leases its records in our pool until the owner answers; a POLL's answer leases a
 * window in the owner's pool until we have sent it (LINK_NEXT gives it back). A dead owner: what it had not taken is
 * held for HELD_REQUEST_US, what it had taken ends with `gone`, because nobody can know. Its successor takes nothing of
 * ours before we have dealt with that: it carries out no request without those before it on its connection. */
#ifndef SHARDD_PEERS_H
#define SHARDD_PEERS_H
#include "core/core.h"
#include "net/net.h"

#define POLL_BUCKETS 1024u
#define HELD_REQUEST_US 2000000 /* a request that a dead owner had not taken waits so long */

typedef struct forwarded forwarded;
typedef struct peer_poll peer_poll;
typedef struct outgoing outgoing;
typedef struct send_line send_line;

typedef struct dealt {       /* new connections that a shard was given */
    uint64_t beat;           /* of its page, at the first of them */
    uint32_t counted, given; /* what it had then, and those */
} dealt;

typedef struct peers {
    remote remote; /* first: the core's way to us */
    core *core;
    net *net;
    struct { /* post.c: what waits for a full ring */
        outgoing *all, *free;
        uint32_t used, max;
    } outgoing;
    struct { /* forward.c: requests of ours that are out, or whose window a caller has */
        forwarded **places;
        uint32_t *generations, *free_indexes;
        uint32_t free_count, capacity;
        uint64_t sequence;
    } asked;
    struct { /* serve.c */
        peer_poll *by_handle[POLL_BUCKETS];
        uint64_t last_handle;
    } polls;
    send_line *sends; /* serve.c: of each shard, those that wait for memory */
    uint32_t copies;  /* of large ones that are not whole yet */
    struct {          /* handover.c */
        int receive_fd;
        int *send_fds;     /* [shards] */
        dealt *dealt;      /* [shards] */
        uint32_t dealt_to; /* the last one that got a connection */
        uint8_t *space;
    } moves;
} peers;

/* peers.c */
int peers_open(peers *p, core *k, net *n, int receive_fd, const int *send_fds); /* 0 or -ENOMEM */
void peers_close(peers *p);
void peers_serve(peers *p, int64_t until_us); /* takes what they posted, until that time */
void peers_down(peers *p, uint32_t shard);
void peers_up(peers *p, uint32_t shard, uint32_t generation); /* of the process that serves there now */

/* post.c: a full ring makes the descriptor wait its turn */
bool post_open(peers *p); /* false: no memory */
void post_close(peers *p);
void peers_post(peers *p, uint32_t shard, const descriptor *d);

/* forward.c */
bool forward_request(remote *r, uint32_t shard, const partition_request *what, const caller *from);
void forward_take_answer(peers *p, uint32_t from, const descriptor *d);
void forward_check_times(peers *p); /* of what is held for a dead owner */
void forward_peer_down(peers *p, uint32_t shard);
void forward_peer_up(peers *p, uint32_t shard);
void forward_free(peers *p);

/* serve.c */
void serve_request(peers *p, uint32_t from, const descriptor *d);
bool serve_open(peers *p); /* false: no memory */
void serve_peer_down(peers *p, uint32_t shard);
void serve_free(peers *p);
bool serve_ask_wake(remote *r, uint32_t shard, uint64_t ns, uint64_t incarnation);
void serve_wake(remote *r, uint32_t shard, uint64_t ns);

/* handover.c */
bool handover_send(peers *p, conn *c, uint32_t shard, const uint8_t *session, size_t length); /* false: stays here */
/* One that was accepted just now goes to the shard with the fewest connections, which may be ours. False: it is. */
bool handover_deal(peers *p, listener_kind kind, int fd);
void handover_receive(peers *p);
#endif
