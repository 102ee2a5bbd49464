/* io.h where io_uring is refused: plain calls, one edge-triggered epoll set, and threads for what waits for a disk.
 *
 * A call is tried first; only when the kernel says EAGAIN does its operation wait for an event (readiness.h).
 *
 * Descriptors of io_poll() are level-triggered members: the set is asked again each time anyway, and what reads them
 * (asyncio) need not empty them.
 */
#include "io/io.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/read_cached.h"
#include "io/readiness.h"

#define EVENTS_PER_WAIT 512
#define ACCEPTS_PER_REAP 64u /* then connections get their turn */

typedef struct poller {
    int epoll_fd;
    bool entered; /* the set was asked since the last submit */
    io_threads threads;
    operation threads_done; /* polls their eventfd */
    readiness ready;
    struct epoll_event events[EVENTS_PER_WAIT];
} poller;

static poller *poller_of(const io *i) { return i->state; }

/* Once in the life of a descriptor; an event that is due comes at once. 0 or -errno. */
static int join(poller *p, int fd, descriptor_state *d, uint32_t events) {
    if (d->member) return 0;
    struct epoll_event wanted = {.events = events, .data = {.fd = fd}};
    if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &wanted) != 0) return -errno;
    d->member = true;
    return 0;
}

/* ---- starting ---- */

static void wait_for(io *i, operation *op) {
    poller *p = poller_of(i);
    descriptor_state *d = readiness_of(&p->ready, op->fd);
    operation **place = op->verb == VERB_SEND ? &d->out : &d->in;
    ASSERT(*place == NULL);
    int result = join(p, op->fd, d,
                      op->verb == VERB_POLL ? (uint32_t)EPOLLIN
                                            : (uint32_t)(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
    if (result == 0) *place = op;
    else readiness_fail(&p->ready, op, result); /* the set is full (fs.epoll.max_user_watches) */
}

static void start(io *i, operation *op, int fd, uint8_t verb, void *data, size_t length) {
    poller *p = poller_of(i);
    op->fd = fd;
    op->verb = verb;
    op->data = data;
    op->length = length;
    int result = readiness_make_room(&p->ready, fd);
    if (result != 0) readiness_fail(&p->ready, op, result);
    else if (verb != VERB_SEND && readiness_of(&p->ready, fd)->no_input) wait_for(i, op);
    else io_queue_push(&p->ready.tries, op);
}

static void epoll_accept(io *i, operation *op, int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_NONBLOCK) == 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    start(i, op, fd, VERB_ACCEPT, NULL, 0);
}

static void epoll_forget(io *i, int fd) {
    poller *p = poller_of(i);
    if (!readiness_knows(&p->ready, fd)) return; /* it was never here */
    if (readiness_of(&p->ready, fd)->member) epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    readiness_forget(&p->ready, fd);
}

static void epoll_cancel_accept(io *i, operation *op, int fd) {
    poller *p = poller_of(i);
    bool waits = readiness_knows(&p->ready, fd) && readiness_of(&p->ready, fd)->in == op;
    epoll_forget(i, fd);
    if (waits) {
        readiness_fail(&p->ready, op, -ECANCELED);
        return;
    }
    op->verb = VERB_CANCELLED; /* it is in the queue already */
    op->result = -ECANCELED;
}

static void epoll_receive_provided(io *i, operation *op, int fd, buffer_set set) {
    op->set = (uint8_t)set;
    start(i, op, fd, VERB_RECEIVE_PROVIDED, NULL, io_buffer_size(set));
}

static void epoll_receive(io *i, operation *op, int fd, void *data, uint32_t length) {
    start(i, op, fd, VERB_RECEIVE, data, length);
}

static void epoll_send(io *i, operation *op, int fd, const void *data, size_t length) {
    start(i, op, fd, VERB_SEND, (void *)(uintptr_t)data, length);
}

static void epoll_read(io *i, operation *op, int fd, void *data, uint32_t length, uint64_t position) {
    op->fd = fd;
    op->data = data;
    op->length = length;
    op->position = position;
    io_threads_read(&poller_of(i)->threads, op);
}

static void epoll_fdatasync(io *i, operation *op, int fd) {
    op->fd = fd;
    io_threads_sync(&poller_of(i)->threads, op);
}

static void epoll_poll(io *i, operation *op, int fd) {
    op->fd = fd;
    op->verb = VERB_POLL;
    op->result = EPOLLIN;
    int result = readiness_make_room(&poller_of(i)->ready, fd);
    if (result != 0) readiness_fail(&poller_of(i)->ready, op, result);
    else wait_for(i, op);
}

/* ---- events ---- */

static void ask(io *i, int64_t timeout_us) {
    poller *p = poller_of(i);
    int64_t timeout_ms = p->ready.tries.first != NULL ? 0 : (timeout_us + 999) / 1000;
    i->enters++;
    int count = epoll_wait(p->epoll_fd, p->events, EVENTS_PER_WAIT, timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms);
    for (int n = 0; n < count; n++) readiness_mark(&p->ready, p->events[n].data.fd, p->events[n].events);
    p->entered = true;
}

static void epoll_push(io *i) { (void)i; } /* everything is done when it is started */

/* A loop that only ever submits (a busy asyncio) learns of events too. */
static void epoll_submit(io *i) {
    poller *p = poller_of(i);
    if (!p->entered) ask(i, 0);
    p->entered = false;
}

static void epoll_enter(io *i, int64_t timeout_us) { ask(i, timeout_us); }

static bool epoll_ready(io *i) {
    ask(i, 0);
    return poller_of(i)->ready.tries.first != NULL;
}

/* ---- calls ---- */

typedef struct reaper {
    io *i;
    io_callback *callback;
    void *context;
} reaper;

static void finish(const reaper *r, operation *op, int result, int32_t buffer, bool more) {
    completion done = {.op = op, .result = result, .buffer = buffer, .more = more};
    r->callback(r->context, &done);
}

static void try_accept(const reaper *r, operation *op) {
    poller *p = poller_of(r->i);
    for (uint32_t n = 0; n < ACCEPTS_PER_REAP; n++) {
        int fd = accept4(op->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            finish(r, op, fd, -1, true);
        } else if (errno == EAGAIN) {
            readiness_of(&p->ready, op->fd)->no_input = true;
            wait_for(r->i, op);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) { /* e.g. EMFILE: what waits is still there then */
            finish(r, op, -errno, -1, false);
            return;
        }
    }
    io_queue_push(&p->ready.tries, op);
}

static void try_receive(const reaper *r, operation *op) {
    completion done;
    if (readiness_receive(&poller_of(r->i)->ready, r->i, op, &done)) r->callback(r->context, &done);
    else wait_for(r->i, op);
}

static void try_send(const reaper *r, operation *op) {
    ssize_t sent;
    do sent = send(op->fd, op->data, op->length, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno == EAGAIN) {
        wait_for(r->i, op);
        return;
    }
    finish(r, op, sent < 0 ? -errno : (int)sent, -1, false);
}

static void take_from_threads(const reaper *r, operation *op) {
    poller *p = poller_of(r->i);
    io_queue done = io_threads_take(&p->threads);
    wait_for(r->i, op);
    for (operation *at; (at = io_queue_pop(&done)) != NULL;) finish(r, at, at->result, -1, false);
}

static void try_call(const reaper *r, operation *op) {
    switch (op->verb) {
    case VERB_ACCEPT: try_accept(r, op); break;
    case VERB_RECEIVE_PROVIDED:
    case VERB_RECEIVE: try_receive(r, op); break;
    case VERB_SEND: try_send(r, op); break;
    case VERB_CANCELLED: finish(r, op, op->result, -1, false); break;
    case VERB_POLL:
        if (op == &poller_of(r->i)->threads_done) take_from_threads(r, op);
        else finish(r, op, EPOLLIN, -1, false);
        break;
    }
}

static void epoll_reap(io *i, io_callback *callback, void *context) {
    poller *p = poller_of(i);
    reaper r = {i, callback, context};
    io_queue tries = p->ready.tries; /* what is started meanwhile is tried after the next look at the set */
    p->ready.tries = (io_queue){0};
    for (operation *op; (op = io_queue_pop(&tries)) != NULL;) try_call(&r, op);
}

static void epoll_buffer_return(io *i, int32_t id) { readiness_buffer_return(&poller_of(i)->ready, i, id); }

static void epoll_close(io *i) {
    poller *p = poller_of(i);
    io_threads_close(&p->threads);
    close(p->epoll_fd);
    readiness_close(&p->ready);
    free(p);
    i->state = NULL;
}

static const io_calls epoll_calls = {
    .close = epoll_close,
    .accept = epoll_accept,
    .cancel_accept = epoll_cancel_accept,
    .receive_provided = epoll_receive_provided,
    .receive = epoll_receive,
    .send = epoll_send,
    .read_cached = read_cached,
    .read = epoll_read,
    .fdatasync = epoll_fdatasync,
    .poll = epoll_poll,
    .forget = epoll_forget,
    .submit = epoll_submit,
    .push = epoll_push,
    .enter = epoll_enter,
    .ready = epoll_ready,
    .reap = epoll_reap,
    .buffer_return = epoll_buffer_return,
};

int io_epoll_open(io *i, uint8_t *const memory[BUFFER_SETS]) {
    poller *p = calloc(1, sizeof *p);
    if (p == NULL) return -ENOMEM;
    *i = (io){.calls = &epoll_calls, .state = p, .memory = {memory[0], memory[1]}, .sends_at_once = true};
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int result = p->epoll_fd < 0 ? -errno : readiness_open(&p->ready, i);
    if (result == 0) result = io_threads_open(&p->threads);
    bool threads = result == 0;
    if (threads) result = readiness_make_room(&p->ready, p->threads.wake_fd);
    if (result != 0) {
        if (threads) io_threads_close(&p->threads);
        if (p->epoll_fd >= 0) close(p->epoll_fd);
        readiness_close(&p->ready);
        free(p);
        i->state = NULL;
        return result;
    }
    epoll_poll(i, &p->threads_done, p->threads.wake_fd);
    return 0;
}
