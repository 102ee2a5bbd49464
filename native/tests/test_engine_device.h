/* Two engines whose syncs the test does: they are collected here, one list for each shard, until its
 * `work_of_the_device` completes them with sync_on_complete. */
#ifndef SHARDD_TEST_ENGINE_DEVICE_H
#define SHARDD_TEST_ENGINE_DEVICE_H

#include "test_engine_support.h"

#define WAIT_MS 5000
#define PENDING_MAX 256

typedef struct pending_sync {
    operation *op;
    int fd;
} pending_sync;

static server s;
static pending_sync waiting_syncs[SHARDS][PENDING_MAX];
static _Atomic unsigned pending_count[SHARDS];
static _Atomic unsigned started_syncs;

static void start_sync(io *i, operation *op, int fd) {
    uint32_t shard = 0;
    while (&((engine *)s.engines[shard])->core.io != i) shard++;
    if (pending_count[shard] == PENDING_MAX) abort();
    waiting_syncs[shard][pending_count[shard]++] = (pending_sync){op, fd};
    started_syncs++;
}

/* Everything but the syncs stays with the real implementation. */
static void take_the_device(server *of, engine *e) {
    static io_calls calls[SHARDS];
    of->engines[e->core.links.shard] = e;
    pending_count[e->core.links.shard] = 0; /* what an engine before began at its end is gone with it */
    calls[e->core.links.shard] = *e->core.io.calls;
    calls[e->core.links.shard].fdatasync = start_sync;
    e->core.io.calls = &calls[e->core.links.shard];
}

/* Returns when both engines run. */
static void start_with_device(io_engine which, void (*work_of_the_device)(server *of, engine *e)) {
    s.io_engine = which;
    s.level = LEVEL_DURABLE;
    s.opened = take_the_device;
    s.each_turn = work_of_the_device;
    start_server(&s);
    for (uint32_t i = 0; i < SHARDS; i++)
        for (int n = 0; n < WAIT_MS && s.engines[i] == NULL; n++) usleep(1000);
}

/* The device has done all its syncs before. */
static void stop_with_device(void) {
    for (int i = 0; i < WAIT_MS && (pending_count[0] > 0 || pending_count[1] > 0); i++) usleep(1000);
    stop_server(&s);
}

static void post_send(int fd, uint32_t stream) {
    uint32_t total, words[2] = {4, CODE_SEND_MESSAGES};
    uint8_t *payload = send_payload(stream, 1, 50, &total);
    words[0] += total;
    CHECK(send(fd, words, sizeof words, MSG_NOSIGNAL | MSG_MORE) == sizeof words);
    CHECK(send(fd, payload, total, MSG_NOSIGNAL) == (ssize_t)total);
    free(payload);
}

#endif
