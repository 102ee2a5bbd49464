/* Moving a connection to the shard that owns what it asks for: the socket travels as SCM_RIGHTS over an AF_UNIX
 * datagram socket whose both ends the supervisor keeps, so a datagram survives the death of its receiver. Only
 * connections between two requests move; unread bytes (a part of one receive buffer at most) travel along, and so does
 * Python's part of the session.
 *
 * Datagram: move_header, session bytes, unread bytes. */
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOVES_PER_TURN 64

typedef struct move_header {
    uint32_t user_id;
    uint32_t authenticated;
    uint32_t session_length;
    uint32_t unread_length;
    char address[56];
} move_header;

bool handover_send(conn *c, uint32_t shard, const uint8_t *session, size_t session_length) {
    engine *e = c->e;
    if (session_length > HANDOVER_SESSION_MAX || shard >= e->links.shards || shard == e->links.shard ||
        e->peer_is_down[shard])
        return false;
    move_header header = {.user_id = c->user_id,
                          .authenticated = c->authenticated,
                          .session_length = (uint32_t)session_length,
                          .unread_length = c->in_length};
    memcpy(header.address, c->address, sizeof header.address);
    struct iovec parts[3] = {
        {&header, sizeof header}, {(void *)(uintptr_t)session, session_length}, {c->in, c->in_length}};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {
        .msg_iov = parts, .msg_iovlen = 3, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &c->fd, sizeof(int));
    if (sendmsg(e->handover_send_fds[shard], &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return false;
    e->counters.moved_out++;
    c->moved = true;
    conn_uncount(c);
    conn_close(c);
    return true;
}

static int received_descriptor(struct msghdr *message) {
    int fd = -1;
    struct cmsghdr *rights = CMSG_FIRSTHDR(message);
    if (rights != NULL && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    return fd;
}

static void adopt(engine *e, int fd, const move_header *header, const uint8_t *rest) {
    conn *c = conn_adopt(e, fd, header->authenticated != 0);
    if (c == NULL) return;
    memcpy(c->address, header->address, sizeof c->address);
    c->address[sizeof c->address - 1] = 0;
    c->user_id = header->user_id;
    if (header->unread_length > 0) {
        c->in_block = engine_allocate(e, header->unread_length, false);
        if (c->in_block == NULL) {
            conn_close(c);
            return;
        }
        memcpy(c->in_block, rest + header->session_length, header->unread_length);
        c->in = c->in_block;
        c->in_length = header->unread_length;
    }
    e->counters.moved_in++;
    event *v = engine_event(e, EVENT_MOVED_IN, conn_id(c));
    v->user_id = c->user_id;
    v->authenticated = c->authenticated;
    memcpy(v->address, c->address, sizeof v->address);
    v->data = malloc(header->session_length + 1u);
    if (v->data == NULL) abort();
    memcpy(v->data, rest, header->session_length);
    v->data_length = header->session_length;
    conn_ready(c);
}

void handover_receive(engine *e) {
    for (int n = 0; n < MOVES_PER_TURN && e->free_count > 0; n++) {
        move_header header;
        struct iovec parts[2] = {{&header, sizeof header}, {e->move_space, HANDOVER_SPACE}};
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct msghdr message = {
            .msg_iov = parts, .msg_iovlen = 2, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(e->options.handover_receive_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return;
        int fd = received_descriptor(&message);
        if (fd < 0) continue;
        bool whole = (size_t)got >= sizeof header && (message.msg_flags & MSG_TRUNC) == 0 &&
                     (size_t)got == sizeof header + header.session_length + header.unread_length;
        if (whole) adopt(e, fd, &header, e->move_space);
        else close(fd);
    }
}
