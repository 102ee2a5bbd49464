/* Polls over compressed segments, through the jobs of the core: the answers are those of plain ones, whatever the cache
 * holds; a damaged block is damage; who leaves while a fetch runs leaves nothing behind. */
#include "test_segment_polls.h"

#include "base/checksum.h"
#include "log/blocks.h"
#include "partition_inside.h"

#include <fcntl.h>
#include <inttypes.h>

/* As shardd/log/compressing.py does it; the .log goes. Each block has another codec; every fifth is stored as it is. */
static void compress(uint64_t start, uint64_t size) {
    static uint8_t plain[BLOCK_PLAIN_BYTES], packed[BLOCK_PLAIN_BYTES];
    char path[256], to_path[256];
    snprintf(path, sizeof path, "%s/%020" PRIu64 ".log", directory, start);
    snprintf(to_path, sizeof to_path, "%s/%020" PRIu64 ".blocks", directory, start);
    int from = open(path, O_RDONLY | O_CLOEXEC), to = open(to_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    uint64_t position = blocks_entry_position(blocks_count(size));
    for (uint64_t block = 0; block < blocks_count(size); block++) {
        uint32_t length = blocks_plain_size(size, block);
        CHECK_EQUAL(pread(from, plain, length, (off_t)(block * BLOCK_PLAIN_BYTES)), length);
        uint8_t entry[BLOCKS_ENTRY_SIZE] = {0}, which = block % 5 == 4 ? 0 : (uint8_t)(1 + block % 3);
        uint32_t stored = which > 0 ? (uint32_t)codec_pack((codec)which, 1, plain, length, packed, length - 1) : length;
        CHECK(stored > 0);
        uint64_t checksum = checksum_64(plain, length);
        memcpy(entry, &position, 8);
        memcpy(entry + 8, &stored, 4);
        entry[12] = which;
        memcpy(entry + 16, &checksum, 8);
        uint64_t proof = XXH3_64bits_withSeed(entry, 24, block);
        memcpy(entry + 24, &proof, 8);
        CHECK_EQUAL(pwrite(to, entry, sizeof entry, (off_t)blocks_entry_position(block)), sizeof entry);
        CHECK_EQUAL(pwrite(to, which > 0 ? packed : plain, stored, (off_t)position), stored);
        position += stored;
    }
    close(from);
    close(to);
    unlink(path);
}

/* Segments of about 2,300 messages: all are compressed but the active one. `with_io`: windows are fetched. */
static void open_compressed(bool with_io) {
    open_core(LEVEL_WRITTEN);
    k->files.unpacked.io = with_io ? &k->io : NULL;
    core_partition_remove(k, NS_HERE);
    partition_options options = options_here();
    partition *p = filled_partition(&options);
    segment_info infos[8];
    uint32_t count = partition_segment_count(p);
    CHECK_EQUAL(count, 4);
    CHECK_EQUAL(partition_flush(p), 0);
    for (uint32_t i = 0; i < count; i++) CHECK(partition_segment(p, i, &infos[i]));
    partition_close(p);
    for (uint32_t i = 0; i + 1 < count; i++) {
        compress(infos[i].start_offset, infos[i].log_bytes);
        infos[i].layout = &segment_compressed;
    }
    partition *packed = partition_open(&options, infos, count);
    partition_release(p);
    CHECK(packed != NULL);
    CHECK_EQUAL(core_partition_add(k, packed), 0);
}

static void check_polls(bool with_io) {
    open_compressed(with_io);
    unpacked_cache *c = &k->files.unpacked;
    srandom(7);
    for (int i = 0; i < 150; i++) {
        if (i == 50) c->bytes_max = 100000; /* hardly a window */
        if (i == 100) c->bytes_max = 1;
        uint64_t first = (uint64_t)random() % MESSAGES;
        uint32_t count = 1 + (uint32_t)random() % (i % 4 ? 50 : MESSAGES);
        check_poll(request_of(POLL_OFFSET, first, count), first, first + count < MESSAGES ? count : MESSAGES - first);
        uint64_t batch = first / 100 * 100; /* a batch has one timestamp */
        check_poll(request_of(POLL_TIMESTAMP, 1000 + batch, 10), batch, 10);
    }
    check_poll(request_of(POLL_FIRST, 0, MESSAGES), 0, MESSAGES);
    CHECK(c->hits > 100 && c->blocks > 100);
    CHECK(c->newest == NULL || c->newest->older == NULL); /* as the bound says */
    close_core();
}

static void test_polls_answer_as_over_plain_segments(void) { check_polls(true); }
static void test_without_io_everything_is_read_at_once(void) { check_polls(false); }

static void flip_in(uint64_t start, uint64_t position) {
    char path[256];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/%020" PRIu64 ".blocks", directory, start);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK_EQUAL(pread(fd, &byte, 1, (off_t)position), 1);
    byte ^= 1;
    CHECK_EQUAL(pwrite(fd, &byte, 1, (off_t)position), 1);
    close(fd);
}

static void test_a_damaged_entry_or_block_is_damage(void) {
    for (int with_io = 0; with_io < 2; with_io++) {
        open_compressed(with_io == 1);
        flip_in(0, blocks_entry_position(2) + 3);
        heard h;
        start(request_of(POLL_OFFSET, 2 * BLOCK_PLAIN_BYTES / MESSAGE_BYTES + 20, 5), 0, &h);
        for (int i = 0; i < 2000 && !((read_job *)(void *)k->reads.jobs)->surveying; i++) turn();
        partition_withhold(core_owned(k, NS_HERE)->p, 2 * BLOCK_PLAIN_BYTES / MESSAGE_BYTES,
                           3 * BLOCK_PLAIN_BYTES / MESSAGE_BYTES + 1, false);
        reads_surveyed(core_owned(k, NS_HERE), 0);
        run(&h);
        CHECK_EQUAL(h.status, 4027);
        uint64_t behind = 3 * BLOCK_PLAIN_BYTES / MESSAGE_BYTES + 1;
        check_poll(request_of(POLL_OFFSET, behind, 1000), behind, 1000);
        close_core();
    }
}

static void resumed(segment_wait *w) { w->fetch = NULL; }

/* Fetches of the first block of the first two segments, which are damaged, and of the third one: all end before one who
 * waits asks again. */
static void test_each_that_waits_hears_what_its_own_fetch_has_brought(void) {
    enum { THREE = 3 };
    segment_wait waits[THREE];
    segment_records out;
    open_compressed(true);
    segment_set *set = inside_segments(core_owned(k, NS_HERE)->p);
    for (unsigned i = 0; i + 1 < THREE; i++) flip_in(set->items[i].start_offset, blocks_entry_position(0) + 3);
    segment_want want = {SEGMENT_PART_LOG, 0, 10 * MESSAGE_BYTES};
    for (unsigned i = 0; i < THREE; i++) {
        segment *s = &set->items[i];
        CHECK_EQUAL(s->layout->records(set, s, want.from, want.length, &out), SEGMENT_WAIT);
        waits[i] = (segment_wait){.resume = resumed};
        CHECK(s->layout->fetch(set, s, &want, &waits[i]));
    }
    for (int i = 0; i < 2000 && (waits[0].fetch || waits[1].fetch || waits[2].fetch); i++) turn();
    for (unsigned i = 0; i < THREE; i++) {
        segment *s = &set->items[i];
        CHECK(waits[i].fetch == NULL);
        set->asks = &waits[i];
        segment_answer answer = s->layout->records(set, s, want.from, want.length, &out);
        set->asks = NULL;
        CHECK_EQUAL(answer, i + 1 < THREE ? SEGMENT_DAMAGED : SEGMENT_READY);
        if (answer == SEGMENT_READY) segment_records_release(&out);
    }
    close_core();
}

static void test_who_leaves_while_a_fetch_runs_or_stands_in_line_leaves_nothing(void) {
    open_compressed(true);
    static heard h[3 * UNPACKED_FETCHES_MAX];
    for (unsigned i = 0; i < 3 * UNPACKED_FETCHES_MAX; i++) start(request_of(POLL_OFFSET, 300 * i, 40), 300 * i, &h[i]);
    for (unsigned i = 0; i < 3 * UNPACKED_FETCHES_MAX; i += 2)
        if (h[i].ends == 0) pending_cancel(h[i].work);
    for (unsigned i = 1; i < 3 * UNPACKED_FETCHES_MAX; i += 2) {
        run(&h[i]);
        CHECK_EQUAL(h[i].messages, 40);
    }
    for (unsigned i = 0; i < UNPACKED_FETCHES_MAX; i++) start(request_of(POLL_OFFSET, 10 * i, 3000), 10 * i, &h[i]);
    reads_close(k); /* the process ends */
    close_core();
}

static void clean(partition *p, int64_t now, uint32_t removed) {
    char trash[128];
    partition_cleaned done;
    snprintf(trash, sizeof trash, "%s/trash", directory);
    CHECK_EQUAL(partition_clean(p, now, trash, &done), 0);
    CHECK_EQUAL(done.removed, removed);
    while (partition_is_dirty(p)) {
        int fds[64];
        size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
        for (size_t i = 0; i < count; i++) close(fds[i]);
        partition_sync_done(p, 0);
    }
}

/* An answer on its way is whole; those that begin later begin there. Then the files of what lies before it go, those
 * with which a change of the layout was cut short, too. */
static void test_the_log_starts_within_a_compressed_segment(void) {
    static const char *const names[] = {"blocks", "blocks.tmp", "log"};
    open_compressed(true);
    partition *p = core_owned(k, NS_HERE)->p;
    char path[256];
    for (int i = 1; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%020u.%s", directory, 0, names[i]);
        close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    }
    partition_limits limits = {.messages_max = MESSAGES - 3000};
    partition_set_limits(p, &limits);
    heard whole;
    start(request_of(POLL_FIRST, 0, MESSAGES), 0, &whole);
    clean(p, 5000000, 0);
    clean(p, 7000000, 0);
    CHECK_EQUAL(partition_first_offset(p), 3000);
    CHECK_EQUAL(partition_size_bytes(p), (MESSAGES - 3000) * (uint64_t)MESSAGE_BYTES);
    clean(p, 9000000, 0);
    run(&whole);
    CHECK_EQUAL(whole.messages, MESSAGES);
    check_poll(request_of(POLL_FIRST, 0, MESSAGES), 3000, MESSAGES - 3000);
    check_poll(request_of(POLL_OFFSET, 10, 7), 3000, 7);
    check_poll(request_of(POLL_TIMESTAMP, 1, 2500), 3000, 2500);
    clean(p, 11000000, 1);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%020u.%s", directory, 0, names[i]);
        CHECK_EQUAL(access(path, F_OK), -1);
    }
    check_poll(request_of(POLL_FIRST, 0, MESSAGES), 3000, MESSAGES - 3000);
    close_core();
}

int main(void) {
    RUN(test_polls_answer_as_over_plain_segments);
    RUN(test_without_io_everything_is_read_at_once);
    RUN(test_a_damaged_entry_or_block_is_damage);
    RUN(test_each_that_waits_hears_what_its_own_fetch_has_brought);
    RUN(test_who_leaves_while_a_fetch_runs_or_stands_in_line_leaves_nothing);
    RUN(test_the_log_starts_within_a_compressed_segment);
    return check_report();
}
