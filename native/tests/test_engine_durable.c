/* Level `durable` through two engines whose device obeys the test: answers wait for the sync that began after their
 * write, one sync answers all that waited, nothing is read before, a failed sync acknowledges nothing. */
#include "test_engine_device.h"

#define CROWD 20

/* ---- the device: a sync is done when its gate is open, with the errno that the test wants ---- */

static _Atomic bool gate_open = true;
static _Atomic int fault; /* of the syncs of one stream */
static _Atomic uint32_t fault_stream;
static _Atomic unsigned interrupted;
static _Atomic uint32_t removed_stream = UINT32_MAX, changed_stream = UINT32_MAX;
static _Atomic int changed_level;

/* Whether the descriptor belongs to a file of the stream's partition. */
static bool is_of(int fd, uint32_t stream) {
    char link[64], path[256], wanted[96];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 2);
    if (length <= 0) return false;
    memcpy(path + length, "/", 2);
    snprintf(wanted, sizeof wanted, "%s/%u/", s.directory, stream);
    return strncmp(path, wanted, strlen(wanted)) == 0;
}

static void work_of_the_device(server *of, engine *e) {
    (void)of;
    uint32_t shard = e->core.links.shard, stream = removed_stream;
    if (stream < STREAMS && hash_owner(namespace_of(stream, 0, 0), SHARDS) == shard) {
        core_partition_remove(&e->core, namespace_of(stream, 0, 0));
        removed_stream = UINT32_MAX;
    }
    stream = changed_stream;
    if (stream < STREAMS && hash_owner(namespace_of(stream, 0, 0), SHARDS) == shard) {
        CHECK(core_partition_set_level(&e->core, namespace_of(stream, 0, 0), (partition_level)changed_level));
        changed_stream = UINT32_MAX;
    }
    while (gate_open && pending_count[shard] > 0) {
        unsigned count = pending_count[shard];
        pending_sync ready[PENDING_MAX];
        memcpy(ready, waiting_syncs[shard], count * sizeof ready[0]);
        pending_count[shard] = 0; /* completions may start new ones */
        for (unsigned i = 0; i < count; i++) {
            int result = fdatasync(ready[i].fd) == 0 ? 0 : -errno;
            if (fault != 0 && is_of(ready[i].fd, fault_stream)) result = -fault;
            if (fault == EINTR && result != 0) {
                fault = 0;
                interrupted++;
            }
            sync_on_complete(ready[i].op, result);
        }
    }
}

/* ---- helpers ---- */

static bool silent(int fd) {
    uint8_t byte;
    usleep(60000);
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static int64_t answer_of(int fd) {
    uint32_t length;
    return next_status(fd, &length, NULL);
}

static const partition_stats *stats_of(uint32_t stream) {
    return &((engine *)s.engines[hash_owner(namespace_of(stream, 0, 0), SHARDS)])->core.links.stats[stream];
}

/* Waits until so many messages are in the log. */
static void wait_written(uint32_t stream, uint64_t count) {
    for (int i = 0; i < WAIT_MS && atomic_load(&stats_of(stream)->next_offset) < count; i++) usleep(1000);
    CHECK_EQUAL(atomic_load(&stats_of(stream)->next_offset), count);
}

static int64_t store_offset(int fd, uint32_t stream, uint64_t offset, bool wait) {
    uint8_t payload[64] = {1, 1, 4, 7, 0, 0, 0};
    uint32_t words[2] = {4 + 32, CODE_STORE_CONSUMER_OFFSET};
    put_address(payload + 7, stream);
    memcpy(payload + 19, "\1\0\0\0\0", 5);
    memcpy(payload + 24, &offset, 8);
    CHECK(send(fd, words, 8, MSG_NOSIGNAL) == 8 && send(fd, payload, 32, MSG_NOSIGNAL) == 32);
    return wait ? answer_of(fd) : 0;
}

/* ---- what must hold ---- */

static void test_a_send_is_answered_and_read_only_after_its_sync(void) {
    for (uint32_t stream = 0; stream < 6; stream++) { /* of both shards: local and forwarded ones */
        int fd = login(&s), reader = login(&s);
        gate_open = false;
        post_send(fd, stream);
        wait_written(stream, 1);
        CHECK(silent(fd));
        CHECK_EQUAL(poll_messages(reader, stream, 0, 10, NULL), 0);
        gate_open = true;
        CHECK_EQUAL(answer_of(fd), 0);
        CHECK_EQUAL(poll_messages(reader, stream, 0, 10, NULL), 1);
        close(fd);
        close(reader);
    }
}

static void test_one_sync_answers_all_that_waited(void) {
    int fds[CROWD];
    for (int i = 0; i < CROWD; i++) fds[i] = login(&s);
    CHECK_EQUAL(send_messages(fds[0], 6, 1, 50), 0); /* names and directories are done */
    gate_open = false;
    unsigned before = started_syncs;
    for (int i = 0; i < CROWD; i++) post_send(fds[i], 6);
    wait_written(6, 1 + CROWD);
    gate_open = true;
    for (int i = 0; i < CROWD; i++) CHECK_EQUAL(answer_of(fds[i]), 0);
    CHECK(started_syncs - before <= 6); /* the first sends, all others, and what the background adds */
    for (int i = 0; i < CROWD; i++) close(fds[i]);
}

static void test_offsets_wait_for_the_device_too(void) {
    for (uint32_t stream = 12; stream < 16; stream++) {
        int fd = login(&s);
        CHECK_EQUAL(send_messages(fd, stream, 5, 50), 0);
        CHECK_EQUAL(store_offset(fd, stream, 5, true), 4100);
        gate_open = false;
        store_offset(fd, stream, 2, false);
        CHECK(silent(fd));
        gate_open = true;
        CHECK_EQUAL(answer_of(fd), 0);
        int other = login(&s);
        uint8_t payload[64] = {CONSUMER_GROUP, 1, 4, 7, 0, 0, 0};
        uint32_t words[2] = {42, CODE_POLL_MESSAGES}, count = 3;
        put_address(payload + 7, stream);
        memcpy(payload + 19, "\1\0\0\0\0\5", 6);
        memcpy(payload + 33, &count, 4);
        payload[37] = 1; /* auto commit */
        gate_open = false;
        CHECK(send(other, words, 8, MSG_NOSIGNAL) == 8 && send(other, payload, 38, MSG_NOSIGNAL) == 38);
        CHECK(silent(other));
        gate_open = true;
        CHECK_EQUAL(answer_of(other), 0);
        CHECK_EQUAL(poll_as(other, CONSUMER_GROUP, 5, stream, 0, 10, NULL), 2);
        close(fd);
        close(other);
    }
}

static void test_whoever_leaves_while_the_device_works_is_let_go(void) {
    unsigned closed = s.closed;
    gate_open = false;
    for (uint32_t stream = 8; stream < 10; stream++) {
        for (int i = 0; i < 5; i++) {
            int fd = login(&s);
            post_send(fd, stream);
            wait_written(stream, (uint64_t)i + 1);
            close(fd);
        }
    }
    gate_open = true;
    for (int i = 0; i < WAIT_MS && s.closed < closed + 10; i++) usleep(1000);
    CHECK(s.closed >= closed + 10);
    int fd = login(&s);
    for (uint32_t stream = 8; stream < 10; stream++) CHECK_EQUAL(send_messages(fd, stream, 1, 50), 0);
    CHECK_EQUAL(poll_messages(fd, 8, 0, 100, NULL), 6);
    close(fd);
}

static void test_a_partition_that_goes_acknowledges_nothing(void) {
    int fd = login(&s);
    CHECK_EQUAL(send_messages(fd, 10, 1, 50), 0);
    gate_open = false;
    post_send(fd, 10);
    wait_written(10, 2);
    removed_stream = 10;
    CHECK_EQUAL(answer_of(fd), STATUS_PARTITION_NOT_FOUND);
    gate_open = true;
    close(fd);
}

static void test_a_failed_sync_acknowledges_nothing_and_is_final(void) {
    static const int errors[] = {EIO, ENOSPC, EDQUOT, ENOMEM};
    static const uint32_t streams[] = {0, 1, 2, 3}; /* with one message each */
    for (int i = 0; i < 4; i++) {
        int fds[3], reader = login(&s);
        for (int n = 0; n < 3; n++) fds[n] = login(&s);
        gate_open = false;
        for (int n = 0; n < 3; n++) post_send(fds[n], streams[i]);
        wait_written(streams[i], 4);
        fault_stream = streams[i];
        fault = errors[i];
        gate_open = true;
        for (int n = 0; n < 3; n++) CHECK_EQUAL(answer_of(fds[n]), STATUS_CANNOT_SYNC_FILE);
        fault = 0;
        CHECK_EQUAL(send_messages(reader, streams[i], 1, 50), STATUS_CANNOT_SYNC_FILE); /* never tried again */
        CHECK_EQUAL(store_offset(reader, streams[i], 0, true), STATUS_CANNOT_SYNC_FILE);
        CHECK_EQUAL(poll_messages(reader, streams[i], 0, 10, NULL), 1); /* what was acknowledged */
        CHECK_EQUAL(send_messages(reader, 5, 1, 50), 0);                /* others are not concerned */
        for (int n = 0; n < 3; n++) close(fds[n]);
        close(reader);
    }
}

static void test_an_interrupted_sync_is_repeated(void) {
    int fd = login(&s);
    CHECK_EQUAL(send_messages(fd, 7, 1, 50), 0);
    fault_stream = 7;
    fault = EINTR;
    CHECK_EQUAL(send_messages(fd, 7, 1, 50), 0);
    CHECK_EQUAL(interrupted, 1);
    CHECK_EQUAL(poll_messages(fd, 7, 0, 10, NULL), 2);
    close(fd);
}

static void change_level(uint32_t stream, partition_level level) {
    changed_level = level;
    changed_stream = stream;
    for (int i = 0; i < WAIT_MS && changed_stream != UINT32_MAX; i++) usleep(1000);
    CHECK_EQUAL(changed_stream, UINT32_MAX);
}

/* Who waits for the device goes on waiting and is answered; who comes later is answered as the new level says. */
static void test_a_change_of_the_level_leaves_nobody_without_an_answer(void) {
    static const partition_level others[] = {LEVEL_WRITTEN, LEVEL_MEMORY};
    for (int i = 0; i < 4; i++) {
        uint32_t stream = 12 + (uint32_t)i; /* of both shards */
        int waiting[3], fd = login(&s);
        for (int n = 0; n < 3; n++) waiting[n] = login(&s);
        uint64_t before = atomic_load(&stats_of(stream)->next_offset);
        gate_open = false;
        for (int n = 0; n < 3; n++) post_send(waiting[n], stream);
        wait_written(stream, before + 3);
        change_level(stream, others[i % 2]);
        CHECK_EQUAL(send_messages(fd, stream, 1, 50), 0); /* without the device */
        CHECK_EQUAL(poll_messages(fd, stream, before, 10, NULL), 4);
        CHECK(silent(waiting[0]));
        gate_open = true;
        for (int n = 0; n < 3; n++) CHECK_EQUAL(answer_of(waiting[n]), 0);
        CHECK_EQUAL(send_messages(fd, stream, 1, 50), 0);
        gate_open = false;
        change_level(stream, LEVEL_DURABLE);
        CHECK_EQUAL(poll_messages(fd, stream, before, 10, NULL), 5); /* nothing that was seen is hidden */
        post_send(waiting[0], stream);
        CHECK(silent(waiting[0]));
        CHECK_EQUAL(poll_messages(fd, stream, before, 10, NULL), 5);
        gate_open = true;
        CHECK_EQUAL(answer_of(waiting[0]), 0);
        CHECK_EQUAL(poll_messages(fd, stream, before, 10, NULL), 6);
        for (int n = 0; n < 3; n++) close(waiting[n]);
        close(fd);
    }
}

static void run_on(io_engine which) {
    interrupted = 0;
    start_with_device(which, work_of_the_device);
    RUN(test_a_send_is_answered_and_read_only_after_its_sync);
    RUN(test_one_sync_answers_all_that_waited);
    RUN(test_offsets_wait_for_the_device_too);
    RUN(test_whoever_leaves_while_the_device_works_is_let_go);
    RUN(test_a_change_of_the_level_leaves_nobody_without_an_answer);
    RUN(test_a_partition_that_goes_acknowledges_nothing);
    RUN(test_an_interrupted_sync_is_repeated);
    RUN(test_a_failed_sync_acknowledges_nothing_and_is_final);
    stop_with_device();
}

int main(void) {
    for_each_engine(run_on);
    return check_report();
}
