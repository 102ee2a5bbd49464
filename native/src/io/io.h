/* The seam to the kernel: every asynchronous operation of the engine, as functions, with more than one implementation
 * behind it: io_uring (io_ring.c), and epoll with plain calls and a few threads (io_epoll.c). Nothing outside of an
 * implementation knows how it asks the kernel.
 *
 * Every asynchronous operation is an `operation` embedded in the object it belongs to. From the call that starts it
 * until its completion is given to the callback of io_reap() it belongs to the implementation: the object is not freed,
 * its memory and descriptor stay valid. An operation completes once (io_accept: many times, the last one without
 * `more`), never inside of the call that starts it. shutdown() of a socket makes its operations complete.
 */
#ifndef SHARDD_IO_H
#define SHARDD_IO_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Provided buffers: one set for all connections that are logged in, and a small one for the crowd that is not. Ids of
 * the second set follow those of the first. */
#define RECEIVE_BUFFERS 256u
#define RECEIVE_BUFFER_SIZE 16384u
#define ANONYMOUS_BUFFERS 128u
#define ANONYMOUS_BUFFER_SIZE 4096u
#define BUFFERS_IN_ALL (RECEIVE_BUFFERS + ANONYMOUS_BUFFERS)

typedef enum buffer_set { BUFFERS_LOGGED_IN, BUFFERS_ANONYMOUS, BUFFER_SETS } buffer_set;

typedef enum io_engine { IO_ENGINE_URING, IO_ENGINE_EPOLL } io_engine;

typedef enum operation_kind {
    OPERATION_ACCEPT,
    OPERATION_RECEIVE,
    OPERATION_SEND,
    OPERATION_READ,
    OPERATION_SYNC,
    OPERATION_EPOLL,
    OPERATION_DOORBELL,
    OPERATION_HANDOVER,
    OPERATION_UNPACK,
    OPERATION_INTRODUCTION,
} operation_kind;

typedef struct operation {
    operation_kind kind; /* the engine's own mark; implementations do not look at it */
    void *owner;
    /* of an implementation that keeps operations itself (io_epoll.c) */
    struct operation *next;
    void *data;
    size_t length;
    uint64_t position;
    int fd, result;
    uint8_t verb, set;
} operation;

static inline operation operation_of(operation_kind kind, void *owner) {
    return (operation){.kind = kind, .owner = owner};
}

typedef struct completion {
    operation *op;
    int result;     /* bytes, descriptor, events, or -errno */
    int32_t buffer; /* provided buffer that now belongs to the receiver (io_buffer_return); -1 none */
    bool more;      /* the operation goes on and completes again (io_accept) */
} completion;

typedef void io_callback(void *context, const completion *done);

typedef struct io io;

typedef struct io_calls {
    void (*close)(io *i);
    void (*accept)(io *i, operation *op, int fd);
    void (*cancel_accept)(io *i, operation *op, int fd);
    void (*receive_provided)(io *i, operation *op, int fd, buffer_set set);
    void (*receive)(io *i, operation *op, int fd, void *data, uint32_t length);
    void (*send)(io *i, operation *op, int fd, const void *data, size_t length);
    int (*read_cached)(io *i, int fd, void *data, size_t length, uint64_t position);
    void (*read)(io *i, operation *op, int fd, void *data, uint32_t length, uint64_t position);
    void (*fdatasync)(io *i, operation *op, int fd);
    void (*poll)(io *i, operation *op, int fd);
    void (*forget)(io *i, int fd);
    void (*submit)(io *i);
    void (*push)(io *i);
    void (*enter)(io *i, int64_t timeout_us);
    bool (*ready)(io *i);
    void (*reap)(io *i, io_callback *callback, void *context);
    void (*buffer_return)(io *i, int32_t id);
} io_calls;

struct io {
    const io_calls *calls;
    void *state;                        /* of the implementation */
    uint8_t *memory[BUFFER_SETS];       /* of the provided buffers, inside the pool */
    uint32_t free_buffers[BUFFER_SETS]; /* provided and not taken by a completion */
    uint64_t enters;                    /* system calls that wait for or collect completions */
    bool sends_at_once; /* a plain send is the cheapest: io_send() is only for what did not fit into the socket */
};

static inline buffer_set io_buffer_set(int32_t id) {
    return id < (int32_t)RECEIVE_BUFFERS ? BUFFERS_LOGGED_IN : BUFFERS_ANONYMOUS;
}
static inline uint32_t io_buffers_count(buffer_set set) {
    return set == BUFFERS_LOGGED_IN ? RECEIVE_BUFFERS : ANONYMOUS_BUFFERS;
}
static inline uint32_t io_buffer_size(buffer_set set) {
    return set == BUFFERS_LOGGED_IN ? RECEIVE_BUFFER_SIZE : ANONYMOUS_BUFFER_SIZE;
}
static inline size_t io_buffers_bytes(buffer_set set) { return (size_t)io_buffers_count(set) * io_buffer_size(set); }
static inline int32_t io_first_buffer(buffer_set set) {
    return set == BUFFERS_LOGGED_IN ? 0 : (int32_t)RECEIVE_BUFFERS;
}

/* `memory`: room for the receive buffers of each set (pool memory, so that a peer can read a frame in place).
 * 0 or -errno. */
int io_open(io *i, io_engine which, uint8_t *const memory[BUFFER_SETS]);
int io_ring_open(io *i, uint8_t *const memory[BUFFER_SETS]);
int io_epoll_open(io *i, uint8_t *const memory[BUFFER_SETS]);
/* NULL when io_uring with what we need works here, else a sentence (static storage). */
const char *io_ring_probe(void);

/* Operations that had not completed are forgotten. */
static inline void io_close(io *i) { i->calls->close(i); }
/* Completes for every connection (close-on-exec) and ends with an error, after which it may be started again. */
static inline void io_accept(io *i, operation *op, int fd) { i->calls->accept(i, op, fd); }
/* The accept ends with -ECANCELED soon, or when the listener is closed. */
static inline void io_cancel_accept(io *i, operation *op, int fd) { i->calls->cancel_accept(i, op, fd); }
/* Receives into a provided buffer, which is taken only when there is something; none left in the set: -ENOBUFS. */
static inline void io_receive_provided(io *i, operation *op, int fd, buffer_set set) {
    i->calls->receive_provided(i, op, fd, set);
}
static inline void io_receive(io *i, operation *op, int fd, void *data, uint32_t length) {
    i->calls->receive(i, op, fd, data, length);
}
/* May send less than `length`; never raises SIGPIPE. */
static inline void io_send(io *i, operation *op, int fd, const void *data, size_t length) {
    i->calls->send(i, op, fd, data, length);
}
/* At once and without an operation: what of a file the page cache has. Bytes, 0 at its end, or -errno: io_read. */
static inline int io_read_cached(io *i, int fd, void *data, size_t length, uint64_t position) {
    return i->calls->read_cached(i, fd, data, length, position);
}
static inline void io_read(io *i, operation *op, int fd, void *data, uint32_t length, uint64_t position) {
    i->calls->read(i, op, fd, data, length, position);
}
static inline void io_fdatasync(io *i, operation *op, int fd) { i->calls->fdatasync(i, op, fd); }
/* Completes once when the descriptor is readable, or is so already. */
static inline void io_poll(io *i, operation *op, int fd) { i->calls->poll(i, op, fd); }
/* Before a descriptor is closed that had operations; all of them have completed. */
static inline void io_forget(io *i, int fd) { i->calls->forget(i, fd); }
/* What was started is under way when this returns, and what completed meanwhile is there for io_reap(). */
static inline void io_submit(io *i) { i->calls->submit(i); }
/* What was started is under way when this returns; no system call when nothing was. */
static inline void io_push(io *i) { i->calls->push(i); }
/* Submits and waits for one completion at most `timeout_us` (0: does not wait). */
static inline void io_enter(io *i, int64_t timeout_us) { i->calls->enter(i, timeout_us); }
/* Whether an enter that does not wait would find something. For who asks over and over: as cheap as can be. */
static inline bool io_ready(io *i) { return i->calls->ready(i); }
/* Gives the completions there are to `callback`, which may start operations. */
static inline void io_reap(io *i, io_callback *callback, void *context) { i->calls->reap(i, callback, context); }
static inline uint8_t *io_buffer(const io *i, int32_t id) {
    buffer_set set = io_buffer_set(id);
    return i->memory[set] + (size_t)(id - io_first_buffer(set)) * io_buffer_size(set);
}
static inline void io_buffer_return(io *i, int32_t id) { i->calls->buffer_return(i, id); }
#endif
