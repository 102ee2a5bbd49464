/* For test_io*.c: one io of either implementation, what completed, sockets. */
#ifndef SHARDD_TEST_IO_SUPPORT_H
#define SHARDD_TEST_IO_SUPPORT_H
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "io/io.h"

#define SEEN_MAX 2048u
#define PATIENCE_ROUNDS 100 /* of 50 ms each */

typedef struct seen {
    completion all[SEEN_MAX];
    unsigned count;
} seen;

static io_engine which;
static io i;
static uint8_t *memory[BUFFER_SETS];
static seen s;

static void remember(void *context, const completion *done) {
    seen *at = context;
    if (at->count < SEEN_MAX) at->all[at->count++] = *done;
}

/* Until so many completions came in all, or it takes too long. */
static bool wait_for_completions(unsigned count) {
    for (int round = 0; round < PATIENCE_ROUNDS; round++) {
        io_reap(&i, remember, &s);
        if (s.count >= count) return true;
        io_enter(&i, 50000);
    }
    return false;
}

static bool nothing_comes(void) {
    unsigned before = s.count;
    for (int round = 0; round < 3; round++) {
        io_enter(&i, 10000);
        io_reap(&i, remember, &s);
    }
    return s.count == before;
}

static void set_up(void) {
    for (buffer_set set = 0; set < BUFFER_SETS; set++) memory[set] = aligned_alloc(4096, io_buffers_bytes(set));
    s.count = 0;
    if (memory[0] == NULL || memory[1] == NULL || io_open(&i, which, memory) != 0) abort();
}

static void tear_down(void) {
    io_close(&i);
    for (buffer_set set = 0; set < BUFFER_SETS; set++) free(memory[set]);
}

static void make_pair(int two[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, two) != 0) abort();
}

static void drop(int fd) {
    io_forget(&i, fd);
    close(fd);
}

/* Runs the tests on io_uring, which has to work where they run, and on epoll. */
static void for_each_engine(void (*tests)(void)) {
    const char *reason = io_ring_probe();
    if (reason != NULL) fprintf(stderr, "io_uring: %s\n", reason);
    CHECK(reason == NULL);
    for (which = reason == NULL ? IO_ENGINE_URING : IO_ENGINE_EPOLL; which <= IO_ENGINE_EPOLL; which++) {
        fprintf(stderr, "-- on %s\n", which == IO_ENGINE_URING ? "io_uring" : "epoll");
        tests();
    }
}
#endif
