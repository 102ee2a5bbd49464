/* Who may connect: counts of open connections over all workers of the server, in the shared region.
 *
 * Each worker writes its own counts and reads those of the others, so the counts of a dead worker disappear with its
 * successor's start (and count for nothing while it is down). A connection enters before it is judged: of two that race
 * for the last place at most one gets it. Connections that move between two shards are counted by nobody for that
 * moment.
 *
 * Addresses are not kept but counted in two rows of counters under a hash with a random seed; the smaller of the two
 * counts. Two addresses share a limit only when they meet in both rows. */
#ifndef SHARDD_ADMISSION_H
#define SHARDD_ADMISSION_H
#include "io/links.h"

#include <sys/socket.h>

typedef struct admission_limits {
    uint32_t connections, per_address, before_login; /* of the whole server */
} admission_limits;

typedef enum admission { ADMITTED, REFUSED_TOTAL, REFUSED_ADDRESS, REFUSED_BEFORE_LOGIN } admission;

/* A host in its text form, IPv4 or IPv6. false: it is neither. */
bool admission_parse_host(const char *host, struct sockaddr_storage *address);
/* What an address is counted as: an IPv4 host, also one that is mapped into IPv6; of an IPv6 host its /64 network; of
 * this host (local_peer) the user. */
uint64_t admission_network(const links *l, const struct sockaddr_storage *address);
/* Judges a new connection that is not logged in, and counts it when it is admitted. */
admission admission_enter(links *l, const bool *peer_is_down, const admission_limits *limits, uint64_t network);
/* Counts one that came from another shard. */
void admission_add(links *l, uint64_t network, bool anonymous);
void admission_leave(links *l, uint64_t network, bool anonymous);
/* A counted connection logged in (-1) or out (1). */
void admission_anonymous(links *l, int change);
#endif
