#include "floor_threads.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static const floor_kind *kind;

_Noreturn void floor_fail(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *pinned(void *argument) {
    floor_thread *t = argument;
    if (t->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(t->cpu, &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0) floor_fail("sched_setaffinity");
    }
    kind->run(t);
    return NULL;
}

/* The thread with the fewest connections, the first of them: a single connection is always served by the first. */
static floor_thread *least_busy(floor_thread *threads, long count) {
    floor_thread *best = threads;
    for (long i = 1; i < count; i++)
        if (atomic_load(&threads[i].peers) < atomic_load(&best->peers)) best = &threads[i];
    return best;
}

_Noreturn void floor_deal(const floor_options *options, const floor_kind *of) {
    static floor_thread threads[FLOOR_THREADS_MAX];
    kind = of;
    for (long i = 0; i < options->threads; i++) {
        threads[i].cpu = options->cpus[i];
        kind->open(&threads[i]);
        if (pthread_create(&threads[i].thread, NULL, pinned, &threads[i]) != 0) floor_fail("thread");
    }
    for (;;) {
        int one = 1, fd = accept4(options->listener, NULL, NULL, SOCK_CLOEXEC | kind->accept_flags);
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED) floor_fail("accept4");
        if (fd < 0) continue;
        floor_thread *t = least_busy(threads, options->threads);
        atomic_fetch_add(&t->peers, 1);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        kind->adopt(t, fd);
    }
}
