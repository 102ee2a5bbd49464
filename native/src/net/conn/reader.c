/* What clients have taken: the kernel's part of an answer counts until its client has it. Looked at by a system call
 * every LOOK_US, and only where something was sent since the last look, or was left at it. */
#include "net/net.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define LOOK_US 1000000
#define TCP_IS_CLOSED 7 /* as the kernel tells it */

/* How many bytes the client does not have yet; `taken`: and how many it has had, ever. */
static uint32_t left_of(const conn *c, uint64_t *taken) {
    int left = 0;
    if (ioctl(c->stream.fd, SIOCOUTQ, &left) != 0 || left <= 0) return 0;
    if (c->local) { /* nothing tells what its client has had: any change is taken for that */
        *taken = (uint64_t)c->clocks.progress_us - (uint64_t)left;
        return (uint32_t)left;
    }
    struct tcp_info said = {0};
    socklen_t length = sizeof said;
    if (getsockopt(c->stream.fd, IPPROTO_TCP, TCP_INFO, &said, &length) != 0) return 0;
    if (said.tcpi_state == TCP_IS_CLOSED) return 0; /* what was left is thrown away */
    *taken = said.tcpi_bytes_acked;
    return (uint32_t)left;
}

uint32_t conn_reader_look(conn *c) {
    conn_reader *r = &c->reader;
    uint64_t taken = 0;
    uint32_t left = left_of(c, &taken);
    r->looked_us = c->core->now_us;
    if (left == 0) {
        if (r->since_us != 0) r->moved_us = c->core->now_us;
        r->since_us = 0;
        return 0;
    }
    bool begins = r->since_us == 0, moved = begins || taken != r->taken;
    if (begins || (moved && (c->local || taken >= r->goal))) {
        r->since_us = begins ? c->clocks.progress_us : c->core->now_us;
        r->length = left;
        r->goal = taken + left;
    }
    if (moved) r->moved_us = begins ? c->clocks.progress_us : c->core->now_us;
    r->taken = taken;
    return left;
}

bool conn_reader_is_late(conn *c) {
    const conn_reader *r = &c->reader;
    int64_t now_us = c->core->now_us, timeout_us = c->net->options.slow_reader_timeout_us;
    bool unknown = r->since_us == 0 && c->clocks.progress_us <= r->looked_us;
    if (unknown || now_us - r->looked_us < LOOK_US) return false;
    if (conn_reader_look(c) == 0) return false;
    return now_us - r->moved_us > timeout_us ||
           now_us - r->since_us > timeout_us + (int64_t)r->length * 1000000 / BYTES_PER_S_MIN;
}

void conn_reset(conn *c) {
    struct linger nothing = {.l_onoff = 1};
    setsockopt(c->stream.fd, SOL_SOCKET, SO_LINGER, &nothing, sizeof nothing);
    conn_close(c);
}
