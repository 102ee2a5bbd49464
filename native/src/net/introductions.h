/* Sockets of trusted proxies before their header is there (wire/proxy_header.h). Nothing else of the connection exists
 * until then: the header is read from the socket to its last byte and no further, and what it says is the address of
 * the connection from its first moment on. So all shares, limits and lines of the log know one address only.
 *
 * A proxy sends the header with the connection. A place here is bounded in number and in time, and the longest wait
 * ends first, also when the worker has no descriptor left for a connection. */
#ifndef SHARDD_INTRODUCTIONS_H
#define SHARDD_INTRODUCTIONS_H
#include "io/io.h"
#include "net/stream_for.h"
#include "net/trusted.h"

#include <sys/socket.h>

#define INTRODUCTIONS_MAX 1024u /* of one worker; fewer where it may have few descriptors (log/file_cache.h) */

typedef struct net net;
typedef struct introduction introduction;

typedef struct introduction_list {
    introduction *oldest, *newest;
    uint32_t count;
} introduction_list;

typedef struct introductions {
    trusted_networks proxies[LISTENER_KINDS]; /* that begin with a header at listeners of the kind */
    introduction_list waiting, ending;        /* for their header; for the receive that was under way */
    /* A socket whose address is known; `from` NULL: its own one. */
    void (*introduced)(net *n, listener_kind kind, int fd, const struct sockaddr_storage *from);
} introductions;

/* Takes a socket that was accepted now, if a header has to come first. False: none has, nothing was done. */
bool introductions_take(net *n, listener_kind kind, int fd);
void introduction_on_receive(introduction *i, int result);
void introductions_check(net *n); /* ends those that have taken too long */
void introductions_forgive(net *n, int64_t still_us);
/* For want of descriptors: whether one is free soon. Ends the socket that has waited longest, if none ends already. */
bool introductions_give_way(net *n);
void introductions_end(net *n);   /* ends all: the server stops */
void introductions_close(net *n); /* after io */
#endif
