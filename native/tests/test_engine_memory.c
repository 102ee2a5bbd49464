/* The engine without memory: every allocation of a turn fails once, then all of them fail for a while. The worker lives
 * on, every request is answered with a status or its connection closes, and what was acknowledged is there. */
#include "test_failing_memory.h"

#define STREAMS_USED 4u
#define ROUNDS_MAX 2000

static server s;
static uint64_t acknowledged[STREAMS_USED];

/* A status, or the connection has closed; nobody waits until the client's patience ends. False: closed. */
static bool answered(int64_t status) {
    if (status == -1) CHECK(errno != EAGAIN);
    return status != -1;
}

static int64_t store_offset(int fd, uint32_t stream) {
    uint8_t payload[64] = {CONSUMER_PLAIN, 1, 4, 7, 0, 0, 0};
    put_address(payload + 7, stream);
    memcpy(payload + 19, "\1\0\0\0\0\0\0\0\0\0\0\0\0", 13);
    return call(fd, CODE_STORE_CONSUMER_OFFSET, payload, 32, NULL, NULL);
}

static int64_t polled(int fd, uint32_t stream) {
    uint32_t length;
    int64_t messages = poll_messages(fd, stream, 0, 3, &length);
    return messages >= 0 ? 0 : -messages - 1;
}

/* Everything that a client asks the engine for, on partitions of both shards. */
static void live(void) {
    int fd = dial(&s);
    errno = 0;
    bool open = answered(call(fd, CODE_LOGIN_USER, "x", 1, NULL, NULL));
    for (uint32_t stream = 0; open && stream < STREAMS_USED; stream++) {
        errno = 0;
        int64_t status = send_messages(fd, stream, 2, 50);
        if (status == 0) acknowledged[stream] += 2;
        open = answered(status) && answered(polled(fd, stream)) && answered(store_offset(fd, stream)) &&
               answered(call(fd, 999, "abc", 3, NULL, NULL));
    }
    close(fd);
}

/* A new client finds all that was acknowledged. */
static void check_all_there(void) {
    uint32_t length;
    int fd = login(&s);
    for (uint32_t stream = 0; stream < STREAMS_USED; stream++) {
        CHECK_EQUAL(send_messages(fd, stream, 1, 50), 0);
        acknowledged[stream]++;
        uint64_t found = 0;
        for (int64_t got = 1; got > 0; found += got > 0 ? (uint64_t)got : 0)
            got = poll_messages(fd, stream, found, 1000, &length);
        CHECK(found >= acknowledged[stream]);
        CHECK_EQUAL(store_offset(fd, stream), 0);
    }
    close(fd);
}

/* Sends of several connections on their way at once, so that a turn has more than one. */
static void send_together(void) {
    enum { CLIENTS = 6 };
    int fds[CLIENTS];
    uint32_t total, length;
    uint8_t *payload = send_payload(0, 1, 50, &total);
    uint32_t words[2] = {total + 4, CODE_SEND_MESSAGES};
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = dial(&s);
        errno = 0;
        answered(call(fds[i], CODE_LOGIN_USER, "x", 1, NULL, NULL));
    }
    for (int i = 0; i < CLIENTS; i++) {
        send(fds[i], words, sizeof words, MSG_NOSIGNAL | MSG_MORE);
        send(fds[i], payload, total, MSG_NOSIGNAL);
    }
    for (int i = 0; i < CLIENTS; i++) {
        errno = 0;
        int64_t status = next_status(fds[i], &length, NULL);
        answered(status);
        if (status == 0) acknowledged[0]++;
        close(fds[i]);
    }
    free(payload);
}

static void test_each_allocation_may_fail(void) {
    int n = 0;
    for (unsigned before = failures; n < ROUNDS_MAX && check_errors == 0; n++, before = failures) {
        until_failure = n;
        live();
        send_together();
        until_failure = -1;
        if (failures == before) break;
    }
    fprintf(stderr, "-- %d allocations\n", n);
    CHECK(n > 10 && n < ROUNDS_MAX);
    check_all_there();
}

static void test_no_memory_at_all_for_a_while(void) {
    int there = login(&s);
    CHECK_EQUAL(send_messages(there, 0, 1, 50), 0); /* Python knows its routes */
    acknowledged[0]++;
    unsigned before = failures;
    none_succeeds = true;
    for (int i = 0; i < 20; i++) {
        live();
        errno = 0;
        answered(call(there, 999, "abc", 3, NULL, NULL));
    }
    none_succeeds = false;
    CHECK(failures > before);
    close(there);
    check_all_there();
}

static void test_a_fence_that_cannot_be_remembered_lets_nobody_pass(void) {
    fences f = {0};
    in_turn = none_succeeds = true;
    CHECK(!fences_pass(&f, 1, 5));
    in_turn = none_succeeds = false;
    CHECK(fences_pass(&f, 1, 5) && !fences_pass(&f, 1, 4));
    fences_free(&f);
}

/* Arrays that grow when the first clients come. */
static void keep_arrays_small(server *of, engine *e) {
    (void)of;
    e->core.commit.capacity = e->core.events.capacity = 1;
}

static void run_at(io_engine which, partition_level level) {
    memset(acknowledged, 0, sizeof acknowledged);
    s.io_engine = which;
    s.level = level;
    s.opened = keep_arrays_small;
    start_server(&s);
    RUN(test_each_allocation_may_fail);
    RUN(test_no_memory_at_all_for_a_while);
    stop_server(&s);
}

static void run_on(io_engine which) {
    run_at(which, LEVEL_WRITTEN);
    run_at(which, LEVEL_DURABLE);
}

int main(void) {
    raise_descriptor_limit();
    RUN(test_a_fence_that_cannot_be_remembered_lets_nobody_pass);
    for_each_engine(run_on);
    return check_report();
}
