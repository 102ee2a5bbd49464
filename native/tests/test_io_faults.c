/* The contract of io.h when something goes wrong: no buffer, no room, no descriptor, ends, resets, signals. */
#include "test_io_support.h"

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
        io_receive_provided(&i, &ops[n], pairs[n][0], BUFFERS_LOGGED_IN);
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
    CHECK_EQUAL(i.free_buffers[BUFFERS_LOGGED_IN], 0);
    io_buffer_return(&i, good.buffer);
    io_receive_provided(&i, failed.op, pairs[failed.op - ops][0], BUFFERS_LOGGED_IN);
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
    io_receive_provided(&i, &in, two[0], BUFFERS_LOGGED_IN);
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
    io_receive_provided(&i, &op, accepted, BUFFERS_LOGGED_IN);
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

static void interrupted(int number) { (void)number; }

static void test_signals_change_nothing(void) {
    set_up();
    int two[2];
    make_pair(two);
    struct sigaction action = {.sa_handler = interrupted}; /* no SA_RESTART */
    struct itimerval often = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}}, never = {0};
    sigaction(SIGALRM, &action, NULL);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    io_receive_provided(&i, &op, two[0], BUFFERS_LOGGED_IN);
    setitimer(ITIMER_REAL, &often, NULL);
    CHECK(nothing_comes());
    for (unsigned n = 1; n <= 50; n++) {
        ssize_t written;
        while ((written = write(two[1], "x", 1)) < 0 && errno == EINTR) continue;
        CHECK(wait_for_completions(n));
        CHECK_EQUAL(s.all[n - 1].result, 1);
        io_buffer_return(&i, s.all[n - 1].buffer);
        io_receive_provided(&i, &op, two[0], BUFFERS_LOGGED_IN);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    close(two[1]);
    CHECK(wait_for_completions(51));
    drop(two[0]);
    tear_down();
}

static void all(void) {
    RUN(test_a_half_close_behind_bytes_is_seen_and_the_other_direction_works);
    RUN(test_more_receivers_than_buffers_fail_and_go_on_when_one_is_returned);
    RUN(test_sends_wait_for_room_and_shutdown_ends_what_waits);
    RUN(test_a_reset_connection_fails_what_waits);
    RUN(test_accept_survives_want_of_descriptors_and_can_be_cancelled);
    RUN(test_signals_change_nothing);
}

int main(void) {
    for_each_engine(all);
    return check_report();
}
