/* Power loss and the stored offsets of consumers. The messages: test_partition_power.c. */
#include "log/files.h"
#include "partition_inside.h"
#include "test_partition_fixture.h"

#include "forgetting_disk.h"

static id_source ids;
static char directory[192];
static disk device;

/* An empty disk for one test. */
static partition_options options_on(const char *name, partition_level level) {
    device = disk_system;
    device.fdatasync = device_sync;
    snprintf(root, sizeof(root), "%s/%s", test_root, name);
    snprintf(directory, sizeof(directory), "%s/streams/1/topics/2/partitions/3", root);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    id_source_seed_fixed(&ids, 3);
    return (partition_options){.ns = 1,
                               .incarnation = 2,
                               .directory = directory,
                               .segment_size_bytes = 1500,
                               .disk = &device,
                               .files = &open_files,
                               .ids = &ids,
                               .level = level};
}

static void append(partition *p, uint32_t records) {
    static uint8_t buffer[1 << 14];
    append_batch b = {.messages = buffer, .count = records, .length = make_records(buffer, records, 100, 300)};
    partition_append(p, &b, 1, 1000);
    CHECK_EQUAL(b.status, 0);
}

static void test_an_offset_of_a_killed_process_is_synced_by_the_next_one(void) {
    partition_options options = options_on("killed", LEVEL_DURABLE);
    partition *p = partition_open(&options, NULL, 0);
    append(p, 3);
    partition_sync_now(p);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 5, 1), 0);
    partition_release(p); /* killed before its sync */
    p = reopen(&options);
    CHECK(partition_is_dirty(p));
    partition_sync_now(p);
    partition_release(p);
    cut_power();
    p = reopen(&options);
    uint64_t value = MODEL_NONE;
    CHECK(partition_offset_get(p, OFFSET_CONSUMER, 5, &value));
    CHECK_EQUAL(value, 1);
    partition_close(p);
    partition_release(p);
}

/* A sync that the power interrupts: the files of offsets have come to the device, or all the others have. */
static void sync_some(partition *p, bool offsets) {
    int fds[64];
    size_t count = partition_sync_begin(p, SYNC_ACKNOWLEDGEMENTS, fds, 64);
    for (size_t i = 0; i < count; i++) {
        char link[64], path[256] = "";
        struct stat st;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fds[i]);
        CHECK(readlink(link, path, sizeof(path) - 1) > 0 && fstat(fds[i], &st) == 0);
        bool of_offsets = strstr(path, "/consumer-offsets") != NULL, name = offsets && S_ISDIR(st.st_mode);
        if (of_offsets == offsets || name) CHECK_EQUAL(device_sync(NULL, fds[i]), 0);
        close(fds[i]);
    }
}

/* `kept` messages survive a power cut and an offset behind them. A second one must not bring it back. */
static void try_lowered(uint32_t kept) {
    partition_options options = options_on(kept > 0 ? "lowered" : "dropped", LEVEL_WRITTEN);
    uint64_t value = MODEL_NONE;
    partition *p = partition_open(&options, NULL, 0);
    if (kept > 0) append(p, kept);
    partition_sync_now(p);
    append(p, 5);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_GROUP, 9, kept + 3), 0);
    sync_some(p, true);
    partition_release(p);
    cut_power();
    keep_tree(root);
    p = reopen(&options);
    CHECK_EQUAL(partition_next_offset(p), kept);
    CHECK_EQUAL(partition_offset_get(p, OFFSET_GROUP, 9, &value), kept > 0);
    CHECK(kept == 0 || value == kept - 1);
    append(p, 8);
    sync_some(p, false);
    partition_release(p);
    cut_power();
    p = reopen(&options);
    CHECK_EQUAL(partition_next_offset(p), kept + 8);
    CHECK_EQUAL(partition_offset_get(p, OFFSET_GROUP, 9, &value), kept > 0);
    CHECK(kept == 0 || value == kept - 1); /* else the group would never see the new messages */
    partition_close(p);
    partition_release(p);
}

static void test_an_offset_that_was_lowered_stays_low(void) {
    try_lowered(3);
    try_lowered(0);
}

/* The birth of an offset was cut short before its rename: what it left must not become the value of the next one. */
static void test_an_offset_never_gets_the_bytes_of_a_birth_that_was_cut_short(void) {
    partition_options options = options_on("birth", LEVEL_WRITTEN);
    partition *p = partition_open(&options, NULL, 0);
    append(p, 5);
    partition_sync_now(p);
    char path[256], temporary[256];
    uint8_t left_behind[192];
    offsets_encode_head(left_behind, 2);
    memset(left_behind + 64, 0, 128);
    offsets_encode_half(left_behind + 64, &(offsets_half){.value = 3, .sequence = 1, .id = 5, .kind = OFFSET_CONSUMER});
    snprintf(path, sizeof(path), "%s/consumer-offsets", directory);
    snprintf(temporary, sizeof(temporary), "%.240s.tmp", path);
    int left = open(temporary, O_RDWR | O_CREAT | O_CLOEXEC, 0644); /* open to the end: no other file gets its inode */
    CHECK_EQUAL(write(left, left_behind, sizeof(left_behind)), sizeof(left_behind));
    CHECK_EQUAL(device_sync(NULL, left), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 5, 1), 0);
    keep_names(directory); /* the name has come to the device, the bytes have not */
    partition_release(p);
    cut_power();
    close(left);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQUAL(read(fd, left_behind, sizeof(left_behind)), 0);
    close(fd);
    uint64_t value;
    p = reopen(&options); /* a file without a byte was never promised to anybody */
    CHECK(!partition_offset_get(p, OFFSET_CONSUMER, 5, &value));
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 5, 2), 0);
    partition_release(p);
    p = reopen(&options);
    CHECK(partition_offset_get(p, OFFSET_CONSUMER, 5, &value) && value == 2);
    partition_close(p);
    partition_release(p);
}

int main(void) {
    test_root_make();
    RUN(test_an_offset_of_a_killed_process_is_synced_by_the_next_one);
    RUN(test_an_offset_that_was_lowered_stays_low);
    RUN(test_an_offset_never_gets_the_bytes_of_a_birth_that_was_cut_short);
    test_root_remove();
    for (size_t i = 0; i < contents_count; i++) free(contents[i].bytes);
    return check_report();
}
