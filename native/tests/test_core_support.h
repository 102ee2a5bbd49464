/* The request core of one shard without connections, workers or a loop, and answers of a caller of the test's own. */
#ifndef SHARDD_TEST_CORE_SUPPORT_H
#define SHARDD_TEST_CORE_SUPPORT_H
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "check.h"
#include "core/commit.h"
#include "core/output.h"
#include "core/execute.h"
#include "core/reads.h"
#include "base/status.h"
#include "core/sync.h"
#include "namespace.h"

#define POOL_BYTES (64u << 20)
#define RECORD_BYTES(size) (64u + (size))
#define NS_HERE namespace_of(1, 1, 0)
#define NS_ELSEWHERE namespace_of(2, 1, 0)

static core *k;
static char directory[64];
static int descriptors[3];

static void open_partition(partition_level level) {
    partition_options o = {.ns = NS_HERE,
                           .incarnation = 1,
                           .directory = directory,
                           .segment_size_bytes = 64 << 20,
                           .stats = &k->links.stats[0],
                           .ids = &k->ids,
                           .level = level,
                           .files = &k->files,
                           .disk = &disk_system};
    partition *p = partition_open(&o, NULL, 0);
    if (p == NULL || core_partition_add(k, p) != 0) abort();
}

/* Stream 1 has a partition here, stream 2 one on shard 1; the keys are the bytes "h" and "e". */
static void open_route(const char *key, uint64_t ns, uint32_t owner) {
    route_topic *topic = routes_topic_put(&k->routes, owner, ns, 1);
    topic->partitions[0] = (route_partition){.ns = ns, .incarnation = 1, .owner = owner};
    route *r = routes_put(&k->routes, 0, (const uint8_t *)key, 1, topic);
    r->can_send = r->can_poll = true;
}

static void open_core(partition_level level) {
    k = calloc(1, sizeof *k);
    strcpy(directory, "/tmp/shardd-test-core-XXXXXX");
    if (mkdtemp(directory) == NULL) abort();
    descriptors[0] = memfd_create("region", 0);
    descriptors[1] = memfd_create("pool", 0);
    descriptors[2] = eventfd(0, EFD_NONBLOCK);
    int pools[2] = {descriptors[1], descriptors[1]}, bells[2] = {descriptors[2], descriptors[2]};
    if (links_region_format(descriptors[0], 2) != 0) abort();
    if (links_open(&k->links, 0, 2, descriptors[0], pools, bells, POOL_BYTES) != 0) abort();
    k->pool = pool_create(descriptors[1], POOL_BYTES);
    k->now_us = clock_monotonic_us();
    k->commit.room.fd = -1;
    file_cache_open_for(&k->files, 100, 0);
    core_options options = {.shard = 0, .shards = 2, .sync_interval_us = 1000000, .waiting_polls = {2000, 1000}};
    uint8_t *memory[BUFFER_SETS];
    for (buffer_set set = 0; set < BUFFER_SETS; set++) memory[set] = pool_alloc(k->pool, io_buffers_bytes(set));
    if (core_open(k, &options) != 0 || io_open(&k->io, IO_ENGINE_EPOLL, memory) != 0) abort();
    open_partition(level);
    open_route("h", NS_HERE, 0);
    open_route("e", NS_ELSEWHERE, 1);
}

static void turn(void);

static void close_core(void) {
    for (int i = 0; i < 5000 && k->sync.running > 0; i++) turn();
    io_close(&k->io);
    core_close_partitions(k);
    core_free(k);
    file_cache_close(&k->files);
    links_close(&k->links);
    pool_destroy(k->pool);
    free(k);
    for (int i = 0; i < 3; i++) close(descriptors[i]);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    CHECK(system(command) == 0);
}

static void complete(void *context, const completion *done) {
    (void)context;
    if (done->op->kind == OPERATION_SYNC) sync_on_complete(done->op, done->result);
    else if (done->op->kind == OPERATION_READ) reads_on_read(done->op->owner, done->result);
    else if (done->op->kind == OPERATION_UNPACK) segment_compressed_on_read(done->op->owner, done->result);
    else abort();
}

/* One pass of a loop that has only the core. */
static void turn(void) {
    io_reap(&k->io, complete, NULL);
    k->now_us = clock_monotonic_us();
    waiters_run(&k->waiters, k->now_us + 1000000);
    reads_run_bulk(k, k->now_us + 1000000);
    commit_part(k);
    commit_all(k);
    sync_begin_pending(k);
    io_enter(&k->io, 1000);
}

/* One record of `size` bytes, as a producer writes it. */
static inline void put_record(uint8_t *at, uint32_t size, uint8_t fill) {
    memset(at, 0, 64);
    memcpy(at + 52, &size, 4);
    memset(at + 64, fill, size);
}
#endif
