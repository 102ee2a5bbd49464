/* Threads of a floor server, and the connections that are dealt evenly to them. */
#ifndef LOAD_FLOOR_THREADS_H
#define LOAD_FLOOR_THREADS_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "floor.h"

typedef struct floor_thread {
    pthread_t thread;
    int cpu;                /* -1: not pinned */
    int door;               /* where its connections are put: its epoll, or a pipe */
    int inside;             /* the end of that pipe which it reads */
    _Atomic uint32_t peers; /* whoever ends one takes it off */
} floor_thread;

typedef struct floor_kind {
    int accept_flags;
    void (*open)(floor_thread *t);          /* in the accepting thread, before it runs */
    void (*run)(floor_thread *t);           /* in its own thread, pinned; for ever */
    void (*adopt)(floor_thread *t, int fd); /* in the accepting thread */
} floor_kind;

_Noreturn void floor_deal(const floor_options *options, const floor_kind *kind);
/* Says what went wrong by errno, and ends the process. */
_Noreturn void floor_fail(const char *what);
#endif
