/* Moving a connection to the shard that owns what it asks for: the socket travels as SCM_RIGHTS over an AF_UNIX
 * datagram socket whose both ends the supervisor keeps, so a datagram survives the death of its receiver. Only
 * connections between two requests move; what goes along is in net/moving.h. New ones take the same way when another
 * shard has fewer connections. */
#include "net/moving.h"
#include "peer/peers.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOVES_PER_TURN 64
#define DEALT_MAX 8u /* new connections to a shard that has made no pass since: it may hang */

static bool send_socket(peers *p, uint32_t shard, int fd, size_t length) {
    struct iovec part = {.iov_base = p->moves.space, .iov_len = length};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(int));
    return sendmsg(p->moves.send_fds[shard], &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

bool handover_send(peers *p, conn *c, uint32_t shard, const uint8_t *session, size_t length) {
    core *k = p->core;
    if (!c->stream.movable || shard >= k->options.shards || shard == k->options.shard || k->peer_is_down[shard])
        return false;
    moving m = conn_moving(c, session, length);
    size_t packed = moving_pack(&m, p->moves.space);
    if (packed == 0 || !send_socket(p, shard, c->stream.fd, packed)) return false;
    conn_moved(c);
    return true;
}

/* What it says of itself, and with what it was given since: it counts those when it takes them. */
static uint32_t connections_of(peers *p, uint32_t shard) {
    const worker_page *page = links_page(&p->core->links, shard);
    dealt *d = &p->moves.dealt[shard];
    uint64_t beat = atomic_load(&page->beat);
    uint32_t counted = atomic_load(&page->connections);
    if (beat - d->beat > 1) *d = (dealt){.beat = beat, .counted = counted}; /* a whole pass: they are taken */
    uint32_t expected = d->counted + d->given;
    return counted > expected ? counted : expected;
}

bool handover_deal(peers *p, listener_kind kind, int fd) {
    const core *k = p->core;
    if (kind != LISTENER_UNIX && !p->net->options.socket_migration) return false;
    uint32_t own = k->options.shard, shards = k->options.shards, to = own;
    uint32_t ours = atomic_load(&links_page(&k->links, own)->connections);
    /* among equals: ours, where the kernel has dealt already, else whose turn it is */
    uint32_t fewest = kind == LISTENER_UNIX ? UINT32_MAX : ours;
    for (uint32_t i = 1; i <= shards; i++) {
        uint32_t shard = (p->moves.dealt_to + i) % shards;
        if (k->peer_is_down[shard]) continue;
        uint32_t count = shard == own ? ours : connections_of(p, shard);
        if (count >= fewest || p->moves.dealt[shard].given >= DEALT_MAX) continue;
        fewest = count;
        to = shard;
    }
    p->moves.dealt_to = to;
    if (to == own || !send_socket(p, to, fd, moving_pack_new(kind, p->moves.space))) return false;
    p->moves.dealt[to].given++;
    close(fd);
    return true;
}

static int received_descriptor(struct msghdr *message) {
    int fd = -1;
    struct cmsghdr *rights = CMSG_FIRSTHDR(message);
    if (rights != NULL && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    return fd;
}

void handover_receive(peers *p) {
    for (int n = 0; n < MOVES_PER_TURN && p->net->conns.free_count > 0; n++) {
        struct iovec part = {p->moves.space, MOVING_BYTES_MAX};
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(p->moves.receive_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return;
        int fd = received_descriptor(&message);
        if (fd < 0) continue;
        moving m;
        listener_kind kind;
        if (moving_is_new(p->moves.space, (size_t)got, &kind)) net_accept(p->net, kind, fd);
        else if ((message.msg_flags & MSG_TRUNC) == 0 && moving_unpack(p->moves.space, (size_t)got, &m))
            conn_arrived(p->net, fd, &m);
        else close(fd);
    }
}
