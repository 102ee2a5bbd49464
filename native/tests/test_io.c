/* The contract of io.h, the same for every implementation: how operations complete, also when something goes wrong. */
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
#include "io.h"

#define SEEN_MAX 2048u
#define PATIENCE_ROUNDS 100 /* of 50 ms each */

typedef struct seen {
    completion all[SEEN_MAX];
    unsigned count;
} seen;

static io_engine which;
static io i;
static uint8_t *memory;
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
    memory = aligned_alloc(4096, RECEIVE_BUFFERS * RECEIVE_BUFFER_SIZE);
    s.count = 0;
    if (memory == NULL || io_open(&i, which, memory) != 0) abort();
}

static void tear_down(void) {
    io_close(&i);
    free(memory);
}

static void make_pair(int two[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, two) != 0) abort();
}

static void drop(int fd) {
    io_forget(&i, fd);
    close(fd);
}

static void test_receives_complete_when_bytes_come_and_take_buffers_only_then(void) {
    set_up();
    int two[2];
    make_pair(two);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    io_receive_provided(&i, &op, two[0]);
    CHECK(nothing_comes());
    for (unsigned n = 1; n <= 3; n++) {
        CHECK(write(two[1], "hello", n) == (ssize_t)n);
        CHECK(wait_for_completions(n));
        completion done = s.all[n - 1];
        CHECK(done.op == &op && done.result == (int)n && done.buffer >= 0);
        CHECK(memcmp(io_buffer(&i, done.buffer), "hello", n) == 0);
        CHECK_EQUAL(i.free_buffers, RECEIVE_BUFFERS - 1);
        io_buffer_return(&i, done.buffer);
        io_receive_provided(&i, &op, two[0]);
    }
    close(two[1]);
    CHECK(wait_for_completions(4));
    CHECK(s.all[3].result == 0 && s.all[3].buffer == -1);
    drop(two[0]);
    tear_down();
}

/* The end may come together with the last bytes: it must not wait for another event. */
static void test_a_half_close_behind_bytes_is_seen_and_the_other_direction_works(void) {
    set_up();
    int two[2];
    make_pair(two);
    operation in = operation_of(OPERATION_RECEIVE, NULL), out = operation_of(OPERATION_SEND, NULL);
    char data[16] = "", answer[3];
    io_receive(&i, &in, two[0], data, sizeof data);
    CHECK(nothing_comes());
    CHECK(write(two[1], "abc", 3) == 3 && shutdown(two[1], SHUT_WR) == 0);
    CHECK(wait_for_completions(1));
    CHECK_EQUAL(s.all[0].result, 3);
    io_receive(&i, &in, two[0], data, sizeof data);
    CHECK(wait_for_completions(2));
    CHECK_EQUAL(s.all[1].result, 0);
    io_send(&i, &out, two[0], "yes", 3);
    CHECK(wait_for_completions(3));
    CHECK_EQUAL(s.all[2].result, 3);
    CHECK(read(two[1], answer, 3) == 3);
    close(two[1]);
    drop(two[0]);
    tear_down();
}

static void test_more_receivers_than_buffers_fail_and_go_on_when_one_is_returned(void) {
    set_up();
    static int pairs[RECEIVE_BUFFERS + 1][2];
    static operation ops[RECEIVE_BUFFERS + 1];
    for (unsigned n = 0; n <= RECEIVE_BUFFERS; n++) {
        make_pair(pairs[n]);
        ops[n] = operation_of(OPERATION_RECEIVE, NULL);
        CHECK(write(pairs[n][1], "x", 1) == 1);
        io_receive_provided(&i, &ops[n], pairs[n][0]);
    }
    CHECK(wait_for_completions(RECEIVE_BUFFERS + 1));
    unsigned starved = 0;
    completion failed = {0}, good = {0};
    for (unsigned n = 0; n < s.count; n++) {
        if (s.all[n].result == -ENOBUFS) {
            starved++;
            failed = s.all[n];
        } else {
            good = s.all[n];
        }
    }
    CHECK_EQUAL(starved, 1);
    CHECK_EQUAL(failed.buffer, -1);
    CHECK_EQUAL(i.free_buffers, 0);
    io_buffer_return(&i, good.buffer);
    io_receive_provided(&i, failed.op, pairs[failed.op - ops][0]);
    CHECK(wait_for_completions(RECEIVE_BUFFERS + 2));
    CHECK(s.all[RECEIVE_BUFFERS + 1].result == 1 && s.all[RECEIVE_BUFFERS + 1].buffer == good.buffer);
    for (unsigned n = 0; n <= RECEIVE_BUFFERS; n++) {
        close(pairs[n][1]);
        drop(pairs[n][0]);
    }
    tear_down();
}

/* A send that finds no room waits; what it may send is less than all; shutdown ends it. */
static void test_sends_wait_for_room_and_shutdown_ends_what_waits(void) {
    set_up();
    int two[2];
    make_pair(two);
    static char large[4 << 20];
    operation in = operation_of(OPERATION_RECEIVE, NULL), out = operation_of(OPERATION_SEND, NULL);
    while (send(two[0], large, sizeof large, MSG_DONTWAIT) > 0) continue;
    io_send(&i, &out, two[0], large, sizeof large);
    CHECK(nothing_comes());
    for (int n = 0; n < 64 && s.count == 0; n++) {
        CHECK(recv(two[1], large, sizeof large, MSG_DONTWAIT) > 0);
        io_enter(&i, 10000);
        io_reap(&i, remember, &s);
    }
    CHECK(s.count == 1 && s.all[0].op == &out && s.all[0].result > 0 && s.all[0].result <= (int)sizeof large);
    while (send(two[0], large, sizeof large, MSG_DONTWAIT) > 0) continue;
    io_send(&i, &out, two[0], large, sizeof large);
    io_receive_provided(&i, &in, two[0]);
    CHECK(nothing_comes());
    shutdown(two[0], SHUT_RDWR);
    CHECK(wait_for_completions(3));
    for (unsigned n = 1; n < 3; n++) CHECK_EQUAL(s.all[n].result, s.all[n].op == &out ? -EPIPE : 0);
    close(two[1]);
    drop(two[0]);
    tear_down();
}

static void test_a_reset_connection_fails_what_waits(void) {
    set_up();
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    struct linger reset = {.l_onoff = 1};
    if (bind(listener, (struct sockaddr *)&at, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &length) != 0 ||
        connect(client, (struct sockaddr *)&at, length) != 0)
        abort();
    int accepted = accept(listener, NULL, NULL);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    io_receive_provided(&i, &op, accepted);
    CHECK(nothing_comes());
    setsockopt(client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(client);
    CHECK(wait_for_completions(1));
    CHECK(s.all[0].result == -ECONNRESET && s.all[0].buffer == -1);
    drop(accepted);
    close(listener);
    tear_down();
}

static int listening(struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)at, length) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)at, &length) != 0)
        abort();
    return fd;
}

/* Out of descriptors: the accept ends with EMFILE, the connection is not lost and is accepted later. */
static void test_accept_survives_want_of_descriptors_and_can_be_cancelled(void) {
    set_up();
    struct sockaddr_in at;
    int listener = listening(&at), clients[2];
    for (int n = 0; n < 2; n++) clients[n] = socket(AF_INET, SOCK_STREAM, 0);
    operation op = operation_of(OPERATION_ACCEPT, NULL);
    struct rlimit before, none;
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &none); /* io_uring looks at the limit when the accept starts */
    io_accept(&i, &op, listener);
    CHECK(connect(clients[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(wait_for_completions(1));
    CHECK(s.all[0].result == -EMFILE && !s.all[0].more);
    CHECK(nothing_comes()); /* in particular no storm of failures */
    setrlimit(RLIMIT_NOFILE, &before);
    io_accept(&i, &op, listener);
    CHECK(wait_for_completions(2));
    CHECK(connect(clients[1], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(wait_for_completions(3));
    for (unsigned n = 1; n < 3; n++) {
        CHECK(s.all[n].result >= 0 && s.all[n].more);
        CHECK((fcntl(s.all[n].result, F_GETFD) & FD_CLOEXEC) != 0);
        close(s.all[n].result);
    }
    io_cancel_accept(&i, &op, listener);
    CHECK(wait_for_completions(4));
    CHECK(s.all[3].result == -ECANCELED && !s.all[3].more);
    for (int n = 0; n < 2; n++) close(clients[n]);
    close(listener);
    tear_down();
}

static void test_files_are_read_and_synced_and_errors_arrive(void) {
    set_up();
    char path[] = "/tmp/shardd-test-io-XXXXXX", data[100] = "";
    int fd = mkstemp(path), two[2];
    CHECK(write(fd, "0123456789", 10) == 10);
    static operation syncs[40];
    operation reads[3];
    for (int n = 0; n < 40; n++) {
        syncs[n] = operation_of(OPERATION_SYNC, NULL);
        io_fdatasync(&i, &syncs[n], fd);
    }
    make_pair(two);
    for (int n = 0; n < 3; n++) reads[n] = operation_of(OPERATION_READ, NULL);
    io_read(&i, &reads[0], fd, data, 4, 3);
    io_read(&i, &reads[1], fd, data + 50, 50, 8); /* less than asked for */
    io_read(&i, &reads[2], two[0], data + 90, 1, 8); /* no file */
    CHECK(wait_for_completions(43));
    for (unsigned n = 0; n < s.count; n++) {
        const completion *c = &s.all[n];
        if (c->op == &reads[0]) CHECK_EQUAL(c->result, 4);
        else if (c->op == &reads[1]) CHECK_EQUAL(c->result, 2);
        else if (c->op == &reads[2]) CHECK(c->result < 0);
        else CHECK_EQUAL(c->result, 0);
    }
    CHECK(memcmp(data, "3456", 4) == 0 && memcmp(data + 50, "89", 2) == 0);
    operation bad = operation_of(OPERATION_SYNC, NULL);
    io_fdatasync(&i, &bad, two[0]);
    CHECK(wait_for_completions(44));
    CHECK_EQUAL(s.all[43].result, -EINVAL);
    close(two[0]);
    close(two[1]);
    close(fd);
    unlink(path);
    tear_down();
}

/* A descriptor that stays readable completes each poll, one that is not completes none. */
static void test_polls_follow_the_level(void) {
    set_up();
    int fd = eventfd(0, EFD_NONBLOCK);
    uint64_t one = 1;
    operation op = operation_of(OPERATION_DOORBELL, NULL);
    io_poll(&i, &op, fd);
    CHECK(nothing_comes());
    CHECK(write(fd, &one, sizeof one) == sizeof one);
    CHECK(wait_for_completions(1));
    CHECK(nothing_comes());
    io_poll(&i, &op, fd); /* nobody read it */
    CHECK(wait_for_completions(2));
    CHECK((s.all[1].result & POLLIN) != 0);
    CHECK(read(fd, &one, sizeof one) == sizeof one);
    io_poll(&i, &op, fd);
    CHECK(nothing_comes());
    CHECK(write(fd, &one, sizeof one) == sizeof one);
    CHECK(wait_for_completions(3));
    drop(fd);
    tear_down();
}

/* As a moved connection: the socket lives on elsewhere, its number comes back for another one. */
static void test_a_forgotten_descriptor_brings_nothing_and_its_number_can_come_back(void) {
    set_up();
    int two[2], next[2];
    make_pair(two);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    io_receive_provided(&i, &op, two[0]);
    CHECK(write(two[1], "a", 1) == 1 && wait_for_completions(1));
    io_buffer_return(&i, s.all[0].buffer);
    int elsewhere = dup(two[0]), number = two[0];
    drop(two[0]);
    make_pair(next);
    CHECK(next[0] == number);
    io_receive_provided(&i, &op, next[0]);
    CHECK(write(two[1], "b", 1) == 1);
    CHECK(nothing_comes());
    CHECK(write(next[1], "cc", 2) == 2);
    CHECK(wait_for_completions(2));
    CHECK_EQUAL(s.all[1].result, 2);
    drop(next[0]);
    close(next[1]);
    close(two[1]);
    close(elsewhere);
    tear_down();
}

static void interrupted(int number) { (void)number; }

static void test_signals_change_nothing(void) {
    set_up();
    int two[2];
    make_pair(two);
    struct sigaction action = {.sa_handler = interrupted}; /* no SA_RESTART */
    struct itimerval often = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}}, never = {0};
    sigaction(SIGALRM, &action, NULL);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    io_receive_provided(&i, &op, two[0]);
    setitimer(ITIMER_REAL, &often, NULL);
    CHECK(nothing_comes());
    for (unsigned n = 1; n <= 50; n++) {
        ssize_t written;
        while ((written = write(two[1], "x", 1)) < 0 && errno == EINTR) continue;
        CHECK(wait_for_completions(n));
        CHECK_EQUAL(s.all[n - 1].result, 1);
        io_buffer_return(&i, s.all[n - 1].buffer);
        io_receive_provided(&i, &op, two[0]);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    close(two[1]);
    CHECK(wait_for_completions(51));
    drop(two[0]);
    tear_down();
}

int main(void) {
    const char *reason = io_ring_probe();
    if (reason != NULL) fprintf(stderr, "io_uring: %s\n", reason);
    CHECK(reason == NULL);
    for (which = reason == NULL ? IO_ENGINE_URING : IO_ENGINE_EPOLL; which <= IO_ENGINE_EPOLL; which++) {
        fprintf(stderr, "-- on %s\n", which == IO_ENGINE_URING ? "io_uring" : "epoll");
        RUN(test_receives_complete_when_bytes_come_and_take_buffers_only_then);
        RUN(test_a_half_close_behind_bytes_is_seen_and_the_other_direction_works);
        RUN(test_more_receivers_than_buffers_fail_and_go_on_when_one_is_returned);
        RUN(test_sends_wait_for_room_and_shutdown_ends_what_waits);
        RUN(test_a_reset_connection_fails_what_waits);
        RUN(test_accept_survives_want_of_descriptors_and_can_be_cancelled);
        RUN(test_files_are_read_and_synced_and_errors_arrive);
        RUN(test_polls_follow_the_level);
        RUN(test_a_forgotten_descriptor_brings_nothing_and_its_number_can_come_back);
        RUN(test_signals_change_nothing);
    }
    return check_report();
}
