/* Answers that wait for the device have a time limit: when its syncs do not end, or cannot begin for want of
 * descriptors, the client gets 12001 and its connection closes; nothing of it stays, and the partition goes on when
 * the device does. */
#include "test_engine_device.h"

#include "core/reads.h"

#include <fcntl.h>

#define GROUP_POLL_MESSAGES 700u /* of 1000 bytes: three windows */

/* ---- the device: hangs, or has no descriptors, as the test says ---- */

static _Atomic bool hangs, without_descriptors;
/* Requests that wait have 0.3 s while it is set, else a minute: on a busy machine the others end in time, too. */
static _Atomic bool impatient;
static _Atomic unsigned refused_descriptors;
static _Atomic uint32_t open_connections[SHARDS];

static int no_descriptor(void) {
    refused_descriptors++;
    errno = EMFILE;
    return -1;
}

/* Syncs open for reading only. Whatever writes goes on: else it would be refused before it waits for a sync. */
static int open_file(void *context, const char *path, int flags, mode_t mode) {
    bool reads = (flags & O_ACCMODE) == O_RDONLY;
    return without_descriptors && reads ? no_descriptor() : disk_system.open(context, path, flags, mode);
}

static int duplicate(void *context, int fd) {
    return without_descriptors ? no_descriptor() : disk_system.duplicate(context, fd);
}

static void work_of_the_device(server *of, engine *e) {
    (void)of;
    uint32_t shard = e->core.links.shard;
    open_connections[shard] = e->net.conns.count;
    e->net.options.request_timeout_us = impatient ? 300000 : 60000000;
    while (!hangs && pending_count[shard] > 0) {
        unsigned last = --pending_count[shard];
        int result = fdatasync(waiting_syncs[shard][last].fd) == 0 ? 0 : -errno;
        sync_on_complete(waiting_syncs[shard][last].op, result); /* may start new ones */
    }
}

typedef struct failure {
    const char *name;
    _Atomic bool *on;
} failure;
static const failure failures[] = {{"the device hangs", &hangs}, {"there are no descriptors", &without_descriptors}};

/* ---- helpers ---- */

static void post_store(int fd, uint32_t stream, uint64_t offset) {
    uint8_t payload[32] = {1, 1, 4, 7, 0, 0, 0};
    uint32_t words[2] = {4 + sizeof payload, CODE_STORE_CONSUMER_OFFSET};
    put_address(payload + 7, stream);
    memcpy(payload + 19, "\1\0\0\0\0", 5);
    memcpy(payload + 24, &offset, 8);
    CHECK(send(fd, words, 8, MSG_NOSIGNAL) == 8 && send(fd, payload, sizeof payload, MSG_NOSIGNAL) == 32);
}

/* With auto commit; from the stored offset on. */
static void post_group_poll(int fd, uint32_t stream, uint32_t count) {
    uint8_t payload[38] = {CONSUMER_GROUP, 1, 4, 7, 0, 0, 0};
    uint32_t words[2] = {4 + sizeof payload, CODE_POLL_MESSAGES};
    put_address(payload + 7, stream);
    memcpy(payload + 19, "\1\0\0\0\0\5", 6);
    memcpy(payload + 33, &count, 4);
    payload[37] = 1;
    CHECK(send(fd, words, 8, MSG_NOSIGNAL) == 8 && send(fd, payload, sizeof payload, MSG_NOSIGNAL) == 38);
}

/* Whether the end comes before anything else. */
static bool ends(int fd) {
    uint8_t byte;
    ssize_t got;
    do got = recv(fd, &byte, 1, 0);
    while (got < 0 && errno == EINTR);
    return got == 0;
}

static void check_out_of_time(int fd) {
    uint32_t length;
    CHECK_EQUAL(next_status(fd, &length, NULL), STATUS_TASK_TIMEOUT);
    CHECK(ends(fd));
    close(fd);
}

/* A connection on the shard of the stream: enough requests to one other shard move it there. */
static int dial_owner(uint32_t stream) {
    int fd = login(&s);
    for (unsigned i = 0; i < 2 * MOVE_AFTER_REQUESTS; i++) CHECK(poll_messages(fd, stream, 0, 1, NULL) >= 0);
    return fd;
}

static void wait_connections(uint32_t shard, uint32_t count) {
    for (int i = 0; i < WAIT_MS && open_connections[shard] != count; i++) usleep(1000);
    CHECK_EQUAL(open_connections[shard], count);
}

static uint32_t owner_of(uint32_t stream) { return hash_owner(namespace_of(stream, 0, 0), SHARDS); }

/* ---- what must hold ---- */

static void test_who_waits_for_the_device_gets_a_status_in_time(void) {
    for (uint32_t stream = 0; stream < 4; stream++) {
        const failure *f = &failures[stream % 2];
        int fd = dial_owner(stream), store = dial_owner(stream), poll = dial_owner(stream);
        int patient = dial_owner(stream);
        CHECK_EQUAL(send_messages(fd, stream, 5, 50), 0);
        unsigned refused = refused_descriptors;
        *f->on = impatient = true;
        post_group_poll(poll, stream, 3); /* not in the order in which they were opened */
        post_send(fd, stream);
        post_store(store, stream, 2);
        check_out_of_time(fd);
        check_out_of_time(store);
        check_out_of_time(poll);
        wait_connections(owner_of(stream), 1); /* they hold no place while the device is away */
        impatient = false;
        CHECK_EQUAL(poll_messages(patient, stream, 0, 10, NULL), 5);
        post_send(patient, stream); /* waits with what is left of the others' sync ... */
        usleep(100000);
        *f->on = false;
        uint32_t length;
        CHECK_EQUAL(next_status(patient, &length, NULL), 0); /* ... and is answered */
        CHECK(refused_descriptors > refused || f->on == &hangs);
        CHECK_EQUAL(poll_messages(patient, stream, 0, 10, NULL), 7); /* the late ones have taken effect */
        CHECK_EQUAL(send_messages(patient, stream, 1, 50), 0);
        close(patient);
        wait_connections(owner_of(stream), 0);
    }
}

/* The last window of a long answer waits for the offset: a status would be read as messages. */
static void test_an_answer_that_has_begun_ends_with_the_connection(void) {
    for (uint32_t stream = 4; stream < 6; stream++) {
        int fd = dial_owner(stream);
        CHECK_EQUAL(send_messages(fd, stream, GROUP_POLL_MESSAGES, 1000), 0);
        static uint8_t answer_space[GROUP_POLL_MESSAGES * 1100];
        _Atomic bool *on = failures[stream % 2].on;
        *on = impatient = true;
        post_group_poll(fd, stream, GROUP_POLL_MESSAGES);
        size_t have = 0;
        for (ssize_t got = 1; got > 0 || (got < 0 && errno == EINTR);) {
            got = recv(fd, answer_space + have, sizeof answer_space - have, 0);
            if (got > 0) have += (size_t)got;
            else if (got == 0) break;
        }
        uint32_t words[2];
        memcpy(words, answer_space, sizeof words);
        CHECK_EQUAL(words[0], 0);
        CHECK(have >= POLL_WINDOW_BYTES / 2 && have < 8 + words[1]);
        close(fd);
        wait_connections(owner_of(stream), 0);
        *on = impatient = false;
        fd = login(&s);
        CHECK_EQUAL(send_messages(fd, stream, 1, 50), 0);
        close(fd);
    }
}

/* A request at another shard: its own shard ends it; the owner's late answer finds nobody. */
static void test_a_forwarded_request_is_ended_by_its_own_shard(void) {
    int fds[16], count = 0;
    uint32_t length;
    for (uint32_t stream = 10; stream < 14; stream++) { /* of both shards: some of the connections are elsewhere */
        int fd = login(&s);
        CHECK_EQUAL(send_messages(fd, stream, 1, 50), 0);
        close(fd);
        for (int i = 0; i < 4; i++) fds[count++] = login(&s);
    }
    hangs = impatient = true;
    for (int i = 0; i < count; i++) post_send(fds[i], 10 + (uint32_t)i / 4);
    for (int i = 0; i < count; i++) check_out_of_time(fds[i]);
    hangs = impatient = false;
    wait_connections(0, 0);
    wait_connections(1, 0);
    for (uint32_t stream = 10; stream < 14; stream++) {
        int fd = login(&s);
        CHECK_EQUAL(send_messages(fd, stream, 1, 50), 0);
        CHECK_EQUAL(poll_messages(fd, stream, 0, 10, &length), 6);
        close(fd);
    }
}

static void run_on(io_engine which) {
    static disk seam;
    seam = disk_system;
    seam.open = open_file;
    seam.duplicate = duplicate;
    s.disk = &seam;
    start_with_device(which, work_of_the_device);
    RUN(test_who_waits_for_the_device_gets_a_status_in_time);
    RUN(test_an_answer_that_has_begun_ends_with_the_connection);
    RUN(test_a_forwarded_request_is_ended_by_its_own_shard);
    stop_with_device();
}

int main(void) {
    for_each_engine(run_on);
    return check_report();
}
