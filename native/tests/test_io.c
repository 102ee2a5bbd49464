/* The contract of io.h, the same for every implementation: how operations complete. */
#include "test_io_support.h"

#include "base/clock.h"

static void test_receives_complete_when_bytes_come_and_take_buffers_only_then(void) {
    set_up();
    int two[2];
    make_pair(two);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    io_receive_provided(&i, &op, two[0], BUFFERS_LOGGED_IN);
    CHECK(nothing_comes());
    for (unsigned n = 1; n <= 3; n++) {
        CHECK(write(two[1], "hello", n) == (ssize_t)n);
        CHECK(wait_for_completions(n));
        completion done = s.all[n - 1];
        CHECK(done.op == &op && done.result == (int)n && done.buffer >= 0);
        CHECK(memcmp(io_buffer(&i, done.buffer), "hello", n) == 0);
        CHECK_EQUAL(i.free_buffers[BUFFERS_LOGGED_IN], RECEIVE_BUFFERS - 1);
        io_buffer_return(&i, done.buffer);
        io_receive_provided(&i, &op, two[0], BUFFERS_LOGGED_IN);
    }
    close(two[1]);
    CHECK(wait_for_completions(4));
    CHECK(s.all[3].result == 0 && s.all[3].buffer == -1);
    drop(two[0]);
    tear_down();
}

/* What did not fit into one receive makes no further event. */
static void test_bytes_that_one_receive_does_not_hold_come_with_the_next(void) {
    set_up();
    int two[2];
    make_pair(two);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    char data[11] = "";
    io_receive(&i, &op, two[0], data, 4);
    CHECK(nothing_comes());
    CHECK(write(two[1], "0123456789", 10) == 10);
    CHECK(wait_for_completions(1));
    io_receive(&i, &op, two[0], data + 4, 4);
    CHECK(wait_for_completions(2));
    io_receive(&i, &op, two[0], data + 8, 2);
    CHECK(wait_for_completions(3));
    CHECK(strcmp(data, "0123456789") == 0);
    static char large[3 * RECEIVE_BUFFER_SIZE];
    CHECK(write(two[1], large, sizeof large) == sizeof large);
    for (unsigned n = 4; n <= 6; n++) {
        io_receive_provided(&i, &op, two[0], BUFFERS_LOGGED_IN);
        CHECK(wait_for_completions(n));
        CHECK_EQUAL(s.all[n - 1].result, RECEIVE_BUFFER_SIZE);
        io_buffer_return(&i, s.all[n - 1].buffer);
    }
    close(two[1]);
    drop(two[0]);
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
    io_read(&i, &reads[1], fd, data + 50, 50, 8);    /* less than asked for */
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

/* False: something that concerns nobody wakes us. */
static bool sleeps_for_100_ms(void) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    io_enter(&i, 100000);
    clock_gettime(CLOCK_MONOTONIC, &after);
    return (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec > 95000000;
}

/* Ends with a receive that has completed: epoll has the descriptor. */
static void begin_with_a_receive(operation *op, int two[2]) {
    set_up();
    make_pair(two);
    *op = operation_of(OPERATION_RECEIVE, NULL);
    io_receive_provided(&i, op, two[0], BUFFERS_LOGGED_IN);
    CHECK(nothing_comes());
    CHECK(write(two[1], "a", 1) == 1 && wait_for_completions(1));
    io_buffer_return(&i, s.all[0].buffer);
}

/* Another socket gets the number of `fd`, and a receive waits on it. */
static void give_its_number_to(int fd, operation *op, int next[2]) {
    drop(fd);
    make_pair(next);
    CHECK(next[0] == fd);
    io_receive_provided(&i, op, next[0], BUFFERS_LOGGED_IN);
    CHECK(nothing_comes());
}

static void end_with_bytes_of(int next[2]) {
    CHECK(write(next[1], "cc", 2) == 2);
    CHECK(wait_for_completions(2));
    CHECK_EQUAL(s.all[1].result, 2);
    drop(next[0]);
    close(next[1]);
    tear_down();
}

/* As a moved connection: the socket lives on elsewhere, its number comes back for another one. */
static void test_a_forgotten_descriptor_brings_nothing_and_its_number_can_come_back(void) {
    operation op;
    int two[2], next[2];
    begin_with_a_receive(&op, two);
    int elsewhere = dup(two[0]);
    give_its_number_to(two[0], &op, next);
    CHECK(write(two[1], "b", 1) == 1);
    CHECK(sleeps_for_100_ms());
    CHECK(nothing_comes());
    end_with_bytes_of(next);
    close(two[1]);
    close(elsewhere);
}

/* As above, when what it was told has come already and was not looked at yet. */
static void test_an_event_of_a_descriptor_before_it_is_none(void) {
    operation op;
    int two[2], next[2];
    begin_with_a_receive(&op, two);
    CHECK(write(two[1], "b", 1) == 1);
    io_enter(&i, 50000); /* the event is here, nobody wants it */
    give_its_number_to(two[0], &op, next);
    end_with_bytes_of(next);
    close(two[1]);
}

/* Also when something has just come for it: nobody else has it then, so the other side hears that it is gone. */
static void test_a_forgotten_descriptor_is_closed_whatever_has_just_come(void) {
    set_up();
    int two[2];
    make_pair(two);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    io_receive_provided(&i, &op, two[0], BUFFERS_LOGGED_IN);
    CHECK(nothing_comes());
    CHECK(write(two[1], "a", 1) == 1 && wait_for_completions(1));
    io_buffer_return(&i, s.all[0].buffer);
    CHECK(nothing_comes());
    CHECK(write(two[1], "b", 1) == 1); /* nobody has looked since */
    drop(two[0]);
    CHECK(nothing_comes());
    struct pollfd other = {.fd = two[1], .events = POLLIN};
    CHECK(poll(&other, 1, 0) == 1 && (other.revents & POLLHUP) != 0);
    close(two[1]);
    tear_down();
}

/* Bytes that nobody wants stay where they are, and who wants them later need not wait for more. */
static void test_bytes_that_came_before_the_receive_are_received(void) {
    set_up();
    int two[2];
    make_pair(two);
    operation op = operation_of(OPERATION_RECEIVE, NULL);
    for (unsigned n = 1; n <= 3; n++) {
        CHECK(write(two[1], "x", 1) == 1);
        CHECK(nothing_comes());
        CHECK_EQUAL(i.free_buffers[BUFFERS_LOGGED_IN], RECEIVE_BUFFERS);
        io_receive_provided(&i, &op, two[0], BUFFERS_LOGGED_IN);
        CHECK(wait_for_completions(n));
        CHECK_EQUAL(s.all[n - 1].result, 1);
        io_buffer_return(&i, s.all[n - 1].buffer);
    }
    drop(two[0]);
    close(two[1]);
    tear_down();
}

static int64_t enter_us(int64_t timeout_us) {
    int64_t began_us = clock_monotonic_us();
    io_enter(&i, timeout_us);
    return clock_monotonic_us() - began_us;
}

/* Each wait has its own limit, whatever limits those before it had and however they ended. */
static void test_waits_end_at_their_own_limit(void) {
    set_up();
    int fd = eventfd(1, EFD_NONBLOCK);
    operation op = operation_of(OPERATION_DOORBELL, NULL);
    io_poll(&i, &op, fd);
    CHECK(enter_us(3600000000) < 60000000); /* the descriptor is readable */
    uint64_t value = 1;
    CHECK(wait_for_completions(1) && read(fd, &value, sizeof value) == sizeof value);
    int64_t longest_us = 0, shortest_us = INT64_MAX;
    for (int round = 0; round < 3; round++) {
        int64_t took_us = enter_us(20000); /* an hour was meant before */
        if (took_us > longest_us) longest_us = took_us;
        if (took_us < shortest_us) shortest_us = took_us;
        io_reap(&i, remember, &s);
    }
    CHECK(longest_us < 60000000);
    CHECK(shortest_us > 15000);
    io_poll(&i, &op, fd);
    CHECK(write(fd, &value, sizeof value) == sizeof value);
    CHECK(enter_us(20000) < 60000000); /* ends early, ... */
    CHECK(wait_for_completions(2) && read(fd, &value, sizeof value) == sizeof value);
    int64_t began_us = clock_monotonic_us(), entered = 0;
    while (clock_monotonic_us() - began_us < 100000 && entered < 1000) {
        enter_us(100000);
        io_reap(&i, remember, &s);
        entered++;
    }
    CHECK(entered < 10); /* ... which wakes a later wait once for nothing at most, and does not spin */
    drop(fd);
    tear_down();
}

static void all(void) {
    RUN(test_receives_complete_when_bytes_come_and_take_buffers_only_then);
    RUN(test_bytes_that_one_receive_does_not_hold_come_with_the_next);
    RUN(test_files_are_read_and_synced_and_errors_arrive);
    RUN(test_polls_follow_the_level);
    RUN(test_a_forgotten_descriptor_brings_nothing_and_its_number_can_come_back);
    RUN(test_an_event_of_a_descriptor_before_it_is_none);
    RUN(test_a_forgotten_descriptor_is_closed_whatever_has_just_come);
    RUN(test_bytes_that_came_before_the_receive_are_received);
    RUN(test_waits_end_at_their_own_limit);
}

int main(void) {
    for_each_engine(all);
    return check_report();
}
