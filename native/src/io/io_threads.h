/* The few threads of the epoll engine for calls that wait for a disk. The loop thread submits and takes; an operation
 * that is in here belongs to the threads. Queues are lists through the operations, so they are bounded by what the
 * engine starts: one read for each poll job, the files of SYNCS_RUNNING_MAX partitions (sync.c). */
#ifndef SHARDD_IO_THREADS_H
#define SHARDD_IO_THREADS_H
#include "io/io.h"

#include <pthread.h>

#define IO_THREADS 8u             /* syncs of one file system share its journal: more at once are not slower */
#define IO_THREADS_SYNCING_MAX 6u /* a read never waits behind syncs alone */

typedef struct io_queue {
    operation *first, *last;
} io_queue;

typedef struct io_threads {
    pthread_t threads[IO_THREADS];
    uint32_t count; /* of them that run */
    pthread_mutex_t lock;
    pthread_cond_t work;
    io_queue reads, syncs, done;
    uint32_t syncing; /* threads in fdatasync */
    bool stopping;
    int wake_fd; /* eventfd: readable while `done` has something */
} io_threads;

static inline void io_queue_push(io_queue *q, operation *op) {
    op->next = NULL;
    if (q->first == NULL) q->first = op;
    else q->last->next = op;
    q->last = op;
}

static inline operation *io_queue_pop(io_queue *q) {
    operation *op = q->first;
    if (op != NULL) q->first = op->next;
    return op;
}

/* 0 or -errno. */
int io_threads_open(io_threads *t);
/* Waits for the calls in progress; what is queued is forgotten. */
void io_threads_close(io_threads *t);
/* pread of op->length bytes at op->position into op->data, or fdatasync; the outcome comes as op->result. */
void io_threads_read(io_threads *t, operation *op);
void io_threads_sync(io_threads *t, operation *op);
/* Everything that is done, in order. */
io_queue io_threads_take(io_threads *t);
#endif
