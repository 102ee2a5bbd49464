/* The seam to the kernel: every asynchronous operation of the engine, as functions, with more than one implementation
 * behind it (io_ring.c). Nothing outside of an implementation knows how it asks the kernel.
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

#define RECEIVE_BUFFERS 256u          /* provided buffers shared by all connections */
#define RECEIVE_BUFFER_SIZE 16384u

typedef enum operation_kind {
    OPERATION_ACCEPT,
    OPERATION_RECEIVE,
    OPERATION_SEND,
    OPERATION_READ,
    OPERATION_SYNC,
    OPERATION_EPOLL,
    OPERATION_DOORBELL,
    OPERATION_HANDOVER,
} operation_kind;

typedef struct operation {
    operation_kind kind; /* the engine's own mark; implementations do not look at it */
    void *owner;
} operation;

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
    void (*receive_provided)(io *i, operation *op, int fd);
    void (*receive)(io *i, operation *op, int fd, void *data, uint32_t length);
    void (*send)(io *i, operation *op, int fd, const void *data, size_t length);
    void (*read)(io *i, operation *op, int fd, void *data, uint32_t length, uint64_t position);
    void (*fdatasync)(io *i, operation *op, int fd);
    void (*poll)(io *i, operation *op, int fd);
    void (*submit)(io *i);
    void (*enter)(io *i, int64_t timeout_us);
    void (*reap)(io *i, io_callback *callback, void *context);
    void (*buffer_return)(io *i, int32_t id);
} io_calls;

struct io {
    const io_calls *calls;
    void *state;           /* of the implementation */
    uint8_t *memory;       /* RECEIVE_BUFFERS * RECEIVE_BUFFER_SIZE, inside the pool */
    uint32_t free_buffers; /* provided and not taken by a completion */
    uint64_t enters;       /* system calls that wait for or collect completions */
};

/* `memory`: room for all receive buffers (pool memory, so that a peer can read a frame in place). 0 or -errno. */
int io_ring_open(io *i, uint8_t *memory);
/* NULL when io_uring with what we need works here, else a sentence (static storage). */
const char *io_ring_probe(void);

/* Operations that had not completed are forgotten. */
static inline void io_close(io *i) { i->calls->close(i); }
/* Completes for every connection (close-on-exec) and ends with an error, after which it may be started again. */
static inline void io_accept(io *i, operation *op, int fd) { i->calls->accept(i, op, fd); }
/* The accept ends with -ECANCELED soon, or when the listener is closed. */
static inline void io_cancel_accept(io *i, operation *op, int fd) { i->calls->cancel_accept(i, op, fd); }
/* Receives into a provided buffer, which is taken only when there is something; none left: -ENOBUFS. */
static inline void io_receive_provided(io *i, operation *op, int fd) { i->calls->receive_provided(i, op, fd); }
static inline void io_receive(io *i, operation *op, int fd, void *data, uint32_t length) {
    i->calls->receive(i, op, fd, data, length);
}
/* May send less than `length`; never raises SIGPIPE. */
static inline void io_send(io *i, operation *op, int fd, const void *data, size_t length) {
    i->calls->send(i, op, fd, data, length);
}
static inline void io_read(io *i, operation *op, int fd, void *data, uint32_t length, uint64_t position) {
    i->calls->read(i, op, fd, data, length, position);
}
static inline void io_fdatasync(io *i, operation *op, int fd) { i->calls->fdatasync(i, op, fd); }
/* Completes once when the descriptor is readable, or is so already. */
static inline void io_poll(io *i, operation *op, int fd) { i->calls->poll(i, op, fd); }
/* What was started is under way when this returns. */
static inline void io_submit(io *i) { i->calls->submit(i); }
/* Submits and waits for one completion at most `timeout_us` (0: does not wait). */
static inline void io_enter(io *i, int64_t timeout_us) { i->calls->enter(i, timeout_us); }
/* Gives the completions there are to `callback`, which may start operations. */
static inline void io_reap(io *i, io_callback *callback, void *context) { i->calls->reap(i, callback, context); }
static inline uint8_t *io_buffer(const io *i, int32_t id) { return i->memory + (size_t)id * RECEIVE_BUFFER_SIZE; }
static inline void io_buffer_return(io *i, int32_t id) { i->calls->buffer_return(i, id); }
#endif
