/* Manifests as the engine writes them: born before the first record, a checkpoint only of what is on the device, and a
 * recovery that takes them at their word loses nothing, whatever call failed before. */
#include "log/recover.h"
#include "test_partition_support.h"

#include "log/manifest.h"

#define NOW_US 5000u

static bool read_manifest(uint64_t start, manifest *m) {
    char path[256];
    uint8_t content[4096];
    snprintf(path, sizeof(path), "%s/%020" PRIu64 ".manifest", directory, start);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, content, sizeof(content));
    close(fd);
    return manifest_decode(content, (size_t)length, m) == MANIFEST_OK;
}

static void flip(uint64_t start, off_t position) {
    char path[256];
    uint8_t byte;
    snprintf(path, sizeof(path), "%s/%020" PRIu64 ".manifest", directory, start);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK_EQUAL(pread(fd, &byte, 1, position), 1);
    byte ^= 1;
    CHECK_EQUAL(pwrite(fd, &byte, 1, position), 1);
    close(fd);
}

/* Opens what a recovery finds and compares all of it with the model. */
static void check_recovery(const partition_options *options, const model *m) {
    recovered_partition found;
    CHECK(recover_partition(directory, options->incarnation, no_boot, &found));
    partition *p = partition_open(options, found.segments, found.segments_count);
    CHECK_EQUAL(partition_next_offset(p), m->count);
    poll_cursor cursor;
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, UINT32_MAX, OFFSET_CONSUMER, 1, &cursor), 0);
    CHECK_EQUAL(cursor.total_count, m->count);
    while (check_window(m, &cursor, 4000)) {
    }
    partition_cursor_end(&cursor);
    partition_close(p);
    partition_release(p);
    recover_free(&found);
}

static void test_every_segment_is_born_with_a_manifest(void) {
    partition_options options = options_of(1500);
    static model m;
    model_init(&m, 1500);
    partition *p = partition_open(&options, NULL, 0);
    for (unsigned i = 0; i < 20; i++) append(p, &m, 2, 300, NOW_US + i);
    CHECK(inside_segments(p)->count > 5);
    for (uint32_t i = 0; i < inside_segments(p)->count; i++) {
        const segment *s = &inside_segments(p)->items[i];
        manifest found = {0};
        CHECK(read_manifest(s->start_offset, &found));
        CHECK_EQUAL(found.incarnation, 1);
        CHECK_EQUAL(found.start_offset, s->start_offset);
        CHECK_EQUAL(found.log_start_offset, 0);
        CHECK(found.born_at >= NOW_US && (s->count == 0 || found.born_at <= s->first_timestamp));
        CHECK_EQUAL(found.checkpoint.count, 0);
    }
    partition_release(p); /* killed */
    check_recovery(&options, &m);
    model_free(&m);
}

static void test_no_record_is_older_than_its_segment(void) {
    static fault_disk faulty;
    partition_options options = options_of(1 << 20);
    static model m;
    model_init(&m, 1 << 20);
    fault_disk_init(&faulty);
    options.disk = &faulty.disk;
    partition *p = partition_open(&options, NULL, 0);
    fault_disk_plan(&faulty, FAULT_WRITE, 3, 1, ENOSPC, 0); /* marker, manifest, records */
    append_batch b = {.messages = buffer, .count = 1, .length = make_records(buffer, 1, 50, 50)};
    partition_append(p, &b, 1, NOW_US);
    CHECK_EQUAL(b.status, 10006);
    CHECK_EQUAL(faulty.injected, 1);
    partition_release(p); /* killed; the clock goes back before the next start */
    options.disk = &disk_system;
    recovered_partition found;
    CHECK(recover_partition(directory, 1, no_boot, &found));
    CHECK_EQUAL(found.segments_count, 1);
    p = partition_open(&options, found.segments, found.segments_count);
    recover_free(&found);
    append(p, &m, 1, 50, NOW_US - 1000);
    CHECK_EQUAL(segment_active(inside_segments(p))->first_timestamp, NOW_US);
    partition_release(p);
    check_recovery(&options, &m);
    model_free(&m);
}

static void check_point(uint64_t bytes, uint64_t count) {
    manifest m = {0};
    CHECK(read_manifest(0, &m));
    CHECK_EQUAL(m.checkpoint.log_bytes, bytes);
    CHECK_EQUAL(m.checkpoint.count, count);
}

static void test_a_checkpoint_is_written_when_enough_is_on_the_device(void) {
    partition_options options = options_of(64 << 20);
    static model m;
    model_init(&m, 64 << 20);
    partition *p = partition_open(&options, NULL, 0);
    append(p, &m, 1000, 100, NOW_US);
    sync_all(p);
    check_point(0, 0); /* too little to be worth it */
    while (m.total_bytes < CHECKPOINT_BYTES) append(p, &m, 1000, 100, NOW_US);
    check_point(0, 0); /* nothing of it is synced */
    int fds[64];
    size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    uint64_t bytes = m.total_bytes, records = m.count;
    append(p, &m, 1000, 100, NOW_US); /* while the sync runs: not covered */
    for (size_t i = 0; i < count; i++) close(fds[i]);
    CHECK(partition_sync_done(p, 0));
    check_point(bytes, records);
    sync_all(p);
    check_point(bytes, records); /* too little again */
    uint64_t all = m.total_bytes, all_records = m.count;
    append(p, &m, 1, 100, NOW_US);
    partition_close(p); /* an orderly stop syncs before; what it did not sync is not in the checkpoint */
    partition_release(p);
    check_point(all, all_records);
    flip(0, 64 + 64 + 8); /* the newer slot, as if torn: the older one counts */
    check_point(bytes, records);
    flip(0, 64 + 64 + 8);
    check_recovery(&options, &m);
    model_free(&m);
}

static void test_syncs_that_fail_or_leave_out_the_index_give_no_checkpoint(void) {
    partition_options options = options_of(64 << 20);
    static model m;
    model_init(&m, 64 << 20);
    partition *p = partition_open(&options, NULL, 0);
    while (m.total_bytes < CHECKPOINT_BYTES) append(p, &m, 1000, 100, NOW_US);
    int fds[64];
    size_t count = partition_sync_begin(p, SYNC_ACKNOWLEDGEMENTS, fds, 64);
    for (size_t i = 0; i < count; i++) close(fds[i]);
    CHECK(partition_sync_done(p, 0));
    check_point(0, 0);
    append(p, &m, 1, 100, NOW_US);
    count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    for (size_t i = 0; i < count; i++) close(fds[i]);
    CHECK(!partition_sync_done(p, EIO));
    partition_close(p);
    partition_release(p);
    check_point(0, 0);
    model_free(&m);
}

/* One life with a failing call: appends over several rolls, syncs, an orderly end or none. */
static void live(fault_disk *faulty, partition_options *options, model *m, bool orderly) {
    partition *p = partition_open(options, NULL, 0);
    if (p == NULL) return;
    for (unsigned i = 0; i < 12; i++) {
        append_batch b = {.messages = buffer, .count = 2, .length = make_records(buffer, 2, 200, 300)};
        partition_append(p, &b, 1, NOW_US + i);
        if (b.status == 0) model_append(m, &b);
        int fds[64];
        size_t count = i % 3 == 2 ? partition_sync_begin(p, SYNC_EVERYTHING, fds, 64) : 0;
        int error = 0;
        for (size_t k = 0; k < count; k++) {
            if (faulty->disk.fdatasync(&faulty->disk, fds[k]) != 0) error = errno;
            close(fds[k]);
        }
        partition_sync_done(p, error);
        partition_checkpoint_write(p);
    }
    if (orderly) partition_close(p);
    partition_release(p);
}

static void test_whatever_call_fails_recovery_finds_what_was_acknowledged(void) {
    static fault_disk faulty;
    static const int errors[] = {ENOSPC, EIO, EINTR};
    unsigned quick = 0, careful = 0;
    for (int operation = 0; operation < FAULT_OPERATIONS; operation++) {
        bool injected = true;
        for (unsigned at = 1; injected && at < 200 && check_errors == 0; at++) {
            static model m;
            partition_options options = options_of(1500);
            model_init(&m, 1500);
            fault_disk_init(&faulty);
            options.disk = &faulty.disk;
            fault_disk_plan(&faulty, (fault_operation)operation, at, 1, errors[at % 3], at % 4 == 0 ? 7 : 0);
            live(&faulty, &options, &m, at % 2 == 0);
            injected = faulty.injected > 0;
            options.disk = &disk_system;
            recovered_partition found;
            bool usual = m.count > 0 && recover_partition(directory, 1, no_boot, &found);
            if (usual) {
                recover_free(&found);
                check_recovery(&options, &m);
            }
            quick += usual;
            careful += !usual;
            model_free(&m);
        }
    }
    CHECK(quick > 50); /* the check above really ran */
    CHECK(careful > 0);
}

int main(void) {
    test_root_make();
    RUN(test_every_segment_is_born_with_a_manifest);
    RUN(test_no_record_is_older_than_its_segment);
    RUN(test_a_checkpoint_is_written_when_enough_is_on_the_device);
    RUN(test_syncs_that_fail_or_leave_out_the_index_give_no_checkpoint);
    RUN(test_whatever_call_fails_recovery_finds_what_was_acknowledged);
    test_root_remove();
    return check_report();
}
