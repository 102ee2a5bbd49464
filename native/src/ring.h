/* Thin layer over io_uring: set-up, submission slots, the provided receive buffers.
 *
 * Every asynchronous operation is an `operation` embedded in the object it belongs to; its address is the completion's
 * user_data. An object is freed only after all its operations have completed.
 */
#ifndef SHARDD_RING_H
#define SHARDD_RING_H
#include <liburing.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_ENTRIES 1024u
#define RECEIVE_BUFFERS 256u          /* provided buffers shared by all connections */
#define RECEIVE_BUFFER_SIZE 16384u
#define RECEIVE_GROUP 1

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
    operation_kind kind;
    void *owner;
} operation;

typedef struct ring {
    struct io_uring uring;
    struct io_uring_buf_ring *buffers; /* kernel's view of the provided buffers */
    uint8_t *memory;                   /* RECEIVE_BUFFERS * RECEIVE_BUFFER_SIZE, inside the pool */
    uint32_t free_buffers;             /* provided and not taken by a completion */
    uint64_t enters;                   /* system calls into the ring */
} ring;

/* `memory`: room for all receive buffers (pool memory, so that a peer can read a frame in place). 0 or -errno. */
int ring_open(ring *r, uint8_t *memory);
void ring_close(ring *r);
/* '' (NULL) when io_uring with what we need works here, else a sentence (static storage). */
const char *ring_probe(void);
/* A free submission slot for `op`; submits what waits when the queue is full. Never NULL. */
struct io_uring_sqe *ring_slot(ring *r, operation *op);
/* Submits and waits for one completion at most `timeout_us` (0: only submits and runs what is ready). */
void ring_enter(ring *r, int64_t timeout_us);
uint8_t *ring_buffer(const ring *r, uint16_t id);
void ring_buffer_return(ring *r, uint16_t id);
#endif
