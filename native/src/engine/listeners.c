/* See listeners.h. */
#include "engine/listeners.h"

#include "engine/engine.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPT_BACKOFF_US 20000
#define LOCAL_ACCEPTS_MAX 64u /* between two looks at what else is to be done */

void listeners_open(engine *e) {
    for (listener_kind kind = 0; kind < LISTENER_KINDS; kind++) {
        listener *l = &e->listeners.of[kind];
        *l = (listener){.engine = e, .kind = kind, .fd = -1};
        l->accept = operation_of(OPERATION_ACCEPT, l);
    }
}

void listeners_add(engine *e, listener_kind kind, int fd) {
    /* Connections inherit it, and have more with a login. */
    int unsent_bytes = CONN_UNSENT_ANONYMOUS_BYTES;
    if (fd >= 0 && kind != LISTENER_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
    e->listeners.of[kind].fd = fd;
    listeners_limit(e);
}

/* What a socket still has when its connection is closed here is the kernel's alone: it ends with a client that takes
 * nothing, which the kernel would try for minutes. Here a second earlier: its connection judges what is open. */
void listeners_limit(engine *e) {
    unsigned taken_ms = (unsigned)(e->net.options.slow_reader_timeout_us / 1000) + 1000;
    for (listener_kind kind = 0; kind < LISTENER_KINDS; kind++) {
        int fd = e->listeners.of[kind].fd;
        if (fd >= 0 && kind != LISTENER_UNIX) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &taken_ms, sizeof taken_ms);
    }
}

/* The Unix socket is only looked at: an accept that waits would be woken alone, whatever its worker is at, while the
 * other workers, which have time, would sleep. */
static void arm(listener *l) {
    io *i = &l->engine->core.io;
    if (l->kind == LISTENER_UNIX) io_poll(i, &l->accept, l->fd);
    else io_accept(i, &l->accept, l->fd);
    l->armed = true;
}

void listeners_arm(engine *e) {
    for (listener_kind kind = 0; kind < LISTENER_KINDS; kind++) {
        listener *l = &e->listeners.of[kind];
        if (l->fd >= 0 && !l->armed && e->core.now_us >= l->again_us) arm(l);
    }
}

int64_t listeners_wait_limit(const engine *e, int64_t until_us) {
    for (listener_kind kind = 0; kind < LISTENER_KINDS; kind++) {
        const listener *l = &e->listeners.of[kind];
        if (l->fd >= 0 && !l->armed && l->again_us < until_us) until_us = l->again_us;
    }
    return until_us;
}

void listeners_stop(engine *e) {
    for (listener_kind kind = 0; kind < LISTENER_KINDS; kind++) {
        listener *l = &e->listeners.of[kind];
        if (l->fd < 0) continue;
        if (kind == LISTENER_UNIX) io_forget(&e->core.io, l->fd); /* a look under way finds no listener */
        else if (l->armed) io_cancel_accept(&e->core.io, &l->accept, l->fd);
        l->fd = -1;
    }
}

static void failed(listener *l, int error) {
    engine *e = l->engine;
    bool none = error == -EMFILE || error == -ENFILE;
    bool again = error == -EINTR || error == -ECONNABORTED || error == -ECANCELED;
    if (again || (none && (file_cache_release_some(&e->core.files) || introductions_give_way(&e->net)))) return;
    l->again_us = e->core.now_us + ACCEPT_BACKOFF_US;
    if (l->kind == LISTENER_UNIX) io_forget(&e->core.io, l->fd); /* what waits there is no event until then */
}

static void accepted(listener *l, int fd) {
    engine *e = l->engine;
    if (!handover_deal(&e->peers, l->kind, fd)) net_accept(&e->net, l->kind, fd);
}

static void accept_local(listener *l) {
    l->armed = false;
    for (uint32_t count = 0; l->fd >= 0 && count < LOCAL_ACCEPTS_MAX; count++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            accepted(l, fd);
            continue;
        }
        if (errno == EAGAIN) return; /* another worker was faster */
        failed(l, -errno);
        if (errno != EINTR && errno != ECONNABORTED) return;
    }
}

void listener_on_accept(listener *l, int result, bool more) {
    if (l->kind == LISTENER_UNIX) {
        accept_local(l);
        return;
    }
    if (!more) l->armed = false;
    if (result < 0) failed(l, result);
    else accepted(l, result);
}
