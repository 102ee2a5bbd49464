/* See io_threads.h. */
#include "io/io_threads.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int run_read(const operation *op) {
    for (;;) {
        ssize_t got = pread(op->fd, op->data, op->length, (off_t)op->position);
        if (got >= 0) return (int)got;
        if (errno != EINTR) return -errno;
    }
}

static int run_sync(const operation *op) {
    for (;;) {
        if (fdatasync(op->fd) == 0) return 0;
        if (errno != EINTR) return -errno;
    }
}

static void wake(const io_threads *t) {
    uint64_t one = 1;
    while (write(t->wake_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void *run(void *argument) {
    io_threads *t = argument;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        bool sync = t->reads.first == NULL;
        operation *op = NULL;
        if (!sync) op = io_queue_pop(&t->reads);
        else if (t->syncing < IO_THREADS_SYNCING_MAX) op = io_queue_pop(&t->syncs);
        if (t->stopping) break;
        if (op == NULL) {
            pthread_cond_wait(&t->work, &t->lock);
            continue;
        }
        if (sync) t->syncing++;
        pthread_mutex_unlock(&t->lock);
        int result = sync ? run_sync(op) : run_read(op);
        pthread_mutex_lock(&t->lock);
        if (sync) t->syncing--;
        op->result = result;
        bool first = t->done.first == NULL;
        io_queue_push(&t->done, op);
        if (first) wake(t);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int io_threads_open(io_threads *t) {
    memset(t, 0, sizeof *t);
    t->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (t->wake_fd < 0) return -errno;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the thread that runs the loop */
    int error = 0;
    while (t->count < IO_THREADS && error == 0) {
        error = pthread_create(&t->threads[t->count], NULL, run, t);
        if (error == 0) t->count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) io_threads_close(t);
    return -error;
}

void io_threads_close(io_threads *t) {
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->count; i++) pthread_join(t->threads[i], NULL);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    close(t->wake_fd);
}

static void submit(io_threads *t, io_queue *q, operation *op) {
    pthread_mutex_lock(&t->lock);
    io_queue_push(q, op);
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

void io_threads_read(io_threads *t, operation *op) { submit(t, &t->reads, op); }

void io_threads_sync(io_threads *t, operation *op) { submit(t, &t->syncs, op); }

io_queue io_threads_take(io_threads *t) {
    uint64_t count;
    pthread_mutex_lock(&t->lock);
    while (read(t->wake_fd, &count, sizeof count) < 0 && errno == EINTR) continue;
    io_queue done = t->done;
    t->done = (io_queue){0};
    pthread_mutex_unlock(&t->lock);
    return done;
}
