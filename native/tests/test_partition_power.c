/* Power loss at level `durable`: a disk that forgets every byte and every name that was not synced, or where any of
 * them, in any order and torn at sectors, had come to the device. What was acknowledged before the power went must be
 * there afterwards, and nothing that was never sent. The same with a whole server: tests/power. */
#include "log/manifest.h"
#include "log/files.h"
#include "partition_inside.h"
#include "log/recover.h"
#include "test_partition_fixture.h"

#include "forgetting_disk.h"

#define STEPS 24u
#define SEEDS 150u

static id_source ids;
static char directory[192];

/* ---- the partition on it ---- */

static partition_options options_on(const disk *d) {
    return (partition_options){.ns = 1,
                               .incarnation = 2,
                               .directory = directory,
                               .segment_size_bytes = 1500,
                               .disk = d,
                               .files = &open_files,
                               .ids = &ids,
                               .level = LEVEL_DURABLE};
}

static void append(partition *p, model *m, uint32_t records) {
    static uint8_t buffer[1 << 14];
    append_batch b = {.messages = buffer, .count = records, .length = make_records(buffer, records, 100, 300)};
    partition_append(p, &b, 1, 1000);
    CHECK_EQUAL(b.status, 0);
    model_append(m, &b);
}

/* Without it a recovery would not know whose messages these are. */
static bool marker_is_whole(void) {
    char path[256], marker[17];
    snprintf(path, sizeof(path), "%s/incarnation", directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, marker, sizeof(marker));
    if (fd >= 0) close(fd);
    return got == 16 && memcmp(marker, "SHRDINC1\2\0\0\0\0\0\0", 16) == 0;
}

static uint64_t check_prefix(const model *m, partition *p) {
    poll_cursor cursor;
    uint64_t count;
    CHECK_EQUAL(partition_poll(p, POLL_FIRST, 0, UINT32_MAX, OFFSET_CONSUMER, 1, &cursor), 0);
    CHECK(cursor.total_count <= m->count);
    count = cursor.total_count;
    while (check_window(m, &cursor, 4000)) {
    }
    partition_cursor_end(&cursor);
    return count;
}

/* `steps` acknowledged steps, then writes that nobody acknowledges, then darkness. */
static void try_steps(unsigned steps, bool acknowledge, uint64_t *lost) {
    static model m;
    disk device = disk_system;
    device.fdatasync = device_sync;
    snprintf(root, sizeof(root), "%s/r%u%d", test_root, steps, acknowledge);
    snprintf(directory, sizeof(directory), "%s/streams/1/topics/2/partitions/3", root);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    id_source_seed_fixed(&ids, 3);
    test_random_state = 7;
    model_init(&m, 1500);
    partition_options options = options_on(&device);
    partition *p = partition_open(&options, NULL, 0);
    uint64_t stored = MODEL_NONE, value;
    for (unsigned i = 0; i < steps; i++) {
        append(p, &m, 1 + (uint32_t)test_random(3));
        if (acknowledge) partition_sync_now(p);
        if (acknowledge && i % 3 == 0) {
            stored = test_random(m.count);
            CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 5, stored), 0);
            partition_sync_now(p);
        }
    }
    uint64_t acknowledged = acknowledge ? m.count : 0;
    CHECK_EQUAL(partition_visible_end(p), acknowledged);
    append(p, &m, 3);
    append(p, &m, 3);
    partition_release(p);
    cut_power();
    CHECK(acknowledged == 0 || marker_is_whole());
    p = reopen(&options);
    uint64_t found = check_prefix(&m, p);
    CHECK(found >= acknowledged);
    CHECK_EQUAL(found, partition_next_offset(p)); /* and nothing invisible whose offsets could be given out again */
    CHECK_EQUAL(partition_offset_get(p, OFFSET_CONSUMER, 5, &value) ? value : MODEL_NONE, stored);
    *lost += m.count - found;
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

static void test_what_was_acknowledged_survives_power_loss_at_any_step(void) {
    uint64_t lost = 0;
    for (unsigned steps = 1; steps <= STEPS && check_errors == 0; steps++) try_steps(steps, true, &lost);
    CHECK(lost > 0); /* the power really went */
}

static void test_what_nobody_acknowledged_is_gone(void) {
    uint64_t lost = 0;
    try_steps(10, false, &lost);
    CHECK(lost > 10);
}

/* The segments up to the first gap; a server withholds what lies behind it. */
static partition *reopen_to_gap(const partition_options *options) {
    static recovered found;
    size_t count = 0;
    uint64_t next = 0;
    recover(options->directory, &found);
    while (count < found.count && found.segments[count].start_offset == next) next += found.segments[count++].count;
    return partition_open(options, found.segments, count);
}

/* Acknowledged steps, more of them written, a sync that has brought some of its files to the device, then darkness. */
static void try_luck(uint64_t seed, uint64_t *lost, uint64_t *kept) {
    static model m;
    disk device = disk_system;
    device.fdatasync = device_sync;
    snprintf(root, sizeof(root), "%s/l%" PRIu64, test_root, seed);
    snprintf(directory, sizeof(directory), "%s/streams/1/topics/2/partitions/3", root);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    id_source_seed_fixed(&ids, 3);
    test_random_state = seed;
    model_init(&m, 6000);
    partition_options options = options_on(&device);
    options.segment_size_bytes = 6000;
    partition *p = partition_open(&options, NULL, 0);
    for (uint64_t i = test_random(20); i > 0; i--) {
        append(p, &m, 1 + (uint32_t)test_random(5));
        if (test_random(2) == 0) partition_sync_now(p);
    }
    uint64_t acknowledged = partition_visible_end(p);
    for (uint64_t i = test_random(12); i > 0; i--) append(p, &m, 1 + (uint32_t)test_random(5));
    int fds[64];
    size_t count = test_random(2) == 0 ? partition_sync_begin(p, SYNC_EVERYTHING, fds, 64) : 0;
    for (size_t i = 0; i < count; i++) {
        if (test_random(2) == 0) CHECK_EQUAL(device_sync(NULL, fds[i]), 0);
        close(fds[i]);
    }
    partition_release(p);
    lucky = true;
    cut_power();
    lucky = false;
    CHECK(acknowledged == 0 || marker_is_whole());
    p = reopen_to_gap(&options);
    uint64_t found = check_prefix(&m, p);
    CHECK(found >= acknowledged);
    CHECK_EQUAL(found, partition_next_offset(p));
    *lost += m.count - found;
    *kept += found - acknowledged;
    if (check_errors != 0) printf("seed %" PRIu64 "\n", seed);
    partition_close(p);
    partition_release(p);
    model_free(&m);
}

static void test_what_was_acknowledged_survives_whatever_else_came_to_the_device(void) {
    uint64_t lost = 0, kept = 0;
    const char *seeds = getenv("POWER_SEEDS");
    uint64_t count = seeds != NULL ? strtoull(seeds, NULL, 10) : SEEDS;
    for (uint64_t seed = 1; seed <= count && check_errors == 0; seed++) try_luck(seed, &lost, &kept);
    CHECK(lost > 0 && kept > 0); /* both happen */
}

/* Messages and a stored offset of another level, a change to `durable`, then (or not) one acknowledged message. */
static uint64_t lost_after_a_change(partition_level before, bool acknowledge) {
    static model m;
    disk device = disk_system;
    device.fdatasync = device_sync;
    snprintf(root, sizeof(root), "%s/change%d%d", test_root, before, acknowledge);
    snprintf(directory, sizeof(directory), "%s/streams/1/topics/2/partitions/3", root);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    id_source_seed_fixed(&ids, 3);
    model_init(&m, 1500);
    partition_options options = options_on(&device);
    options.level = before;
    options.journal_messages_max = 8;
    options.journal_bytes_max = 4000;
    partition *p = partition_open(&options, NULL, 0);
    for (int i = 0; i < 12; i++) append(p, &m, 2);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 5, 3), 0);
    CHECK_EQUAL(partition_set_level(p, LEVEL_DURABLE), 0);
    append(p, &m, 1);
    if (acknowledge) partition_sync_now(p);
    partition_release(p);
    cut_power();
    options.level = LEVEL_DURABLE;
    p = reopen(&options);
    uint64_t found = check_prefix(&m, p), total = m.count, value;
    CHECK_EQUAL(partition_offset_get(p, OFFSET_CONSUMER, 5, &value), acknowledge);
    partition_close(p);
    partition_release(p);
    model_free(&m);
    return total - found;
}

static void test_the_first_acknowledgement_after_a_change_covers_all_before_it(void) {
    CHECK_EQUAL(lost_after_a_change(LEVEL_WRITTEN, true), 0);
    CHECK_EQUAL(lost_after_a_change(LEVEL_MEMORY, true), 0);
    CHECK(lost_after_a_change(LEVEL_WRITTEN, false) > 0); /* the change alone promises nothing */
}

/* ---- checkpoints ---- */

static void sync_part(partition *p, bool finish) {
    int fds[64];
    size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQUAL(device_sync(NULL, fds[i]), 0);
        close(fds[i]);
    }
    if (finish) partition_sync_done(p, 0);
}

/* The kernel writes manifests back whenever it likes: all of them reach the device as they are now. */
static void write_back_manifests(const partition *p) {
    for (uint32_t i = 0; i < inside_segments(p)->count; i++) {
        char path[FILE_PATH_MAX];
        struct stat st;
        segment_path(inside_segments(p), &inside_segments(p)->items[i], SEGMENT_MANIFEST, path, sizeof(path));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0) keep_content(fd, &st);
        if (fd >= 0) close(fd);
    }
}

/* Appends, syncs and checkpoints in any order, then darkness: what a manifest says is there. */
static void try_checkpoints(unsigned seed, bool lying, uint64_t *trusted, uint64_t *refused) {
    static model m;
    disk device = disk_system;
    device.fdatasync = device_sync;
    snprintf(root, sizeof(root), "%s/c%u%d", test_root, seed, lying);
    snprintf(directory, sizeof(directory), "%s/streams/1/topics/2/partitions/3", root);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    test_random_state = seed;
    model_init(&m, 1500);
    partition_options options = options_on(&device);
    options.level = LEVEL_WRITTEN;
    partition *p = partition_open(&options, NULL, 0);
    append(p, &m, 1);
    sync_part(p, true);
    uint64_t synced = 0;
    for (unsigned steps = 5 + (unsigned)test_random(20); steps > 0; steps--) {
        append(p, &m, 1 + (uint32_t)test_random(3));
        if (test_random(2) == 0) continue;
        sync_part(p, false);
        synced = m.count;
        if (test_random(2) == 0) append(p, &m, 1);
        partition_sync_done(p, 0);
        if (lying) { /* canary: a checkpoint of what no sync has covered */
            const segment *s = segment_active(inside_segments(p));
            inside_checkpoint(p)->done = (manifest_checkpoint){s->log_bytes, s->count, s->first_timestamp,
                                                               s->last_timestamp};
        }
        partition_checkpoint_write(p);
    }
    write_back_manifests(p);
    partition_release(p);
    cut_power();
    recovered_partition found;
    bool usual = recover_partition(directory, options.incarnation, no_boot, &found);
    if (usual) {
        const segment_info *last = &found.segments[found.segments_count - 1];
        CHECK(last->start_offset + last->count >= synced);
        CHECK(last->start_offset + last->count <= m.count);
        recover_free(&found);
    }
    *trusted += usual;
    *refused += !usual;
    model_free(&m);
}

static void test_a_checkpoint_that_survives_is_never_ahead_of_its_log(void) {
    uint64_t trusted = 0, refused = 0;
    for (unsigned seed = 1; seed <= 60 && check_errors == 0; seed++) try_checkpoints(seed, false, &trusted, &refused);
    CHECK_EQUAL(refused, 0);
    for (unsigned seed = 1; seed <= 60 && check_errors == 0; seed++) try_checkpoints(seed, true, &trusted, &refused);
    CHECK(refused > 5);
}

/* ---- a second attempt at a segment ---- */

static int open_but_no_log(void *context, const char *path, int flags, mode_t mode) {
    size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ".log") == 0) {
        errno = ENOSPC;
        return -1;
    }
    return disk_system.open(context, path, flags, mode);
}

/* The manifest of a segment that could not be made; the kernel has written it back. Its descriptor. */
static int fail_to_make_segment(partition *p, disk *device, uint64_t now_us) {
    static uint8_t buffer[1 << 10];
    char path[FILE_PATH_MAX];
    append_batch b = {.messages = buffer, .count = 1, .length = make_records(buffer, 1, 100, 300)};
    device->open = open_but_no_log;
    partition_append(p, &b, 1, now_us);
    device->open = disk_system.open;
    CHECK_EQUAL(b.status, 10006);
    segment_manifest_path(inside_segments(p), partition_next_offset(p), path, sizeof(path));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK_EQUAL(device_sync(NULL, fd), 0);
    return fd;
}

/* The clock goes back between two attempts. The process is killed before a sync has the second manifest, and the next
 * one syncs what it found: the first manifest would say that all records are older than their segment. */
static void test_no_manifest_of_a_failed_attempt_comes_back(void) {
    static model m;
    disk device = disk_system;
    device.fdatasync = device_sync;
    snprintf(root, sizeof(root), "%s/attempts", test_root);
    snprintf(directory, sizeof(directory), "%s/streams/1/topics/2/partitions/3", root);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    id_source_seed_fixed(&ids, 3);
    model_init(&m, 1500);
    partition_options options = options_on(&device);
    partition *p = partition_open(&options, NULL, 0);
    int held = fail_to_make_segment(p, &device, 5000); /* open: no other file gets its inode */
    while (inside_segments(p)->count < 2) append(p, &m, 1);
    partition_release(p);
    p = reopen(&options);
    CHECK_EQUAL(partition_visible_end(p), m.count); /* promised */
    partition_release(p);
    cut_power();
    close(held);
    char path[256];
    uint8_t content[4096];
    manifest found;
    snprintf(path, sizeof(path), "%s/%020u.manifest", directory, 0u);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, content, sizeof(content));
    CHECK(manifest_decode(content, (size_t)length, &found) != MANIFEST_OK || found.born_at <= m.records[0].timestamp);
    if (fd >= 0) close(fd);
    p = reopen(&options);
    CHECK_EQUAL(check_prefix(&m, p), m.count);
    partition_release(p);
    model_free(&m);
}

int main(void) {
    test_root_make();
    RUN(test_what_was_acknowledged_survives_power_loss_at_any_step);
    RUN(test_what_nobody_acknowledged_is_gone);
    RUN(test_a_checkpoint_that_survives_is_never_ahead_of_its_log);
    RUN(test_what_was_acknowledged_survives_whatever_else_came_to_the_device);
    RUN(test_the_first_acknowledgement_after_a_change_covers_all_before_it);
    RUN(test_no_manifest_of_a_failed_attempt_comes_back);
    test_root_remove();
    for (size_t i = 0; i < contents_count; i++) free(contents[i].bytes);
    return check_report();
}
