/* The floor server (floor.c) in a process of its own: it never returns, and ends the process when it cannot go on. */
#ifndef LOAD_FLOOR_H
#define LOAD_FLOOR_H
#include <stdbool.h>

enum { FLOOR_THREADS_MAX = 16 };

typedef struct floor_options {
    int listener; /* bound, and listening */
    const char *directory;
    long threads;                /* 1..FLOOR_THREADS_MAX */
    int cpus[FLOOR_THREADS_MAX]; /* -1: this thread is not pinned */
    bool sync;
    bool offsets; /* the first record of a poll says where it is */
} floor_options;

_Noreturn void floor_run(const floor_options *options);
#endif
