/* Power loss at level `durable`: a disk that forgets every byte and every name that was not synced. What was
 * acknowledged before the power went must be there afterwards, and nothing that was never sent. */
#include "partition_files.h"
#include "partition_internal.h"
#include "recover.h"
#include "test_partition_fixture.h"

#define INODES_MAX 512
#define NAMES_MAX 1024
#define STEPS 24u

static id_source ids;
static char root[128], directory[192];

/* ---- the device: what fdatasync has brought there ---- */

static struct {
    ino_t inode;
    uint8_t *bytes;
    size_t length;
} contents[INODES_MAX];
static size_t contents_count;
static struct {
    char path[256]; /* below the root */
    ino_t inode;
    bool directory;
} names[NAMES_MAX];
static size_t names_count;

static void keep_content(int fd, const struct stat *st)
{
    size_t i = 0;
    while (i < contents_count && contents[i].inode != st->st_ino)
        i++;
    if (i == INODES_MAX)
        abort();
    contents_count += i == contents_count;
    contents[i].inode = st->st_ino;
    contents[i].length = (size_t)st->st_size;
    contents[i].bytes = realloc(contents[i].bytes, contents[i].length + 1);
    CHECK_EQUAL(pread(fd, contents[i].bytes, contents[i].length, 0), contents[i].length);
}

static void keep_names(const char *path)
{
    size_t length = strlen(path), kept = 0;
    for (size_t i = 0; i < names_count; i++) { /* what the directory held before */
        const char *slash = strrchr(names[i].path, '/');
        if ((size_t)(slash - names[i].path) != length || strncmp(names[i].path, path, length) != 0)
            names[kept++] = names[i];
    }
    names_count = kept;
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        if (names_count == NAMES_MAX)
            abort();
        snprintf(names[names_count].path, sizeof(names[0].path), "%.100s/%.100s", path, e->d_name);
        names[names_count].inode = e->d_ino;
        names[names_count++].directory = e->d_type == DT_DIR;
    }
    closedir(d);
}

static int device_sync(void *context, int fd)
{
    (void)context;
    char link[64], path[256];
    struct stat st;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (length < 0 || fstat(fd, &st) != 0)
        return -1;
    path[length] = '\0';
    if (S_ISDIR(st.st_mode))
        keep_names(path);
    else
        keep_content(fd, &st);
    return 0;
}

static int by_length(const void *a, const void *b)
{
    size_t x = strlen(*(const char *const *)a), y = strlen(*(const char *const *)b);
    return x < y ? -1 : x > y;
}

/* The power goes and comes back: the tree is what the device has. */
static void cut_power(void)
{
    char old[160], command[512];
    snprintf(old, sizeof(old), "%s.before", root);
    CHECK_EQUAL(rename(root, old), 0);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    const char *order[NAMES_MAX];
    for (size_t i = 0; i < names_count; i++)
        order[i] = names[i].path;
    qsort(order, names_count, sizeof(order[0]), by_length); /* parents first */
    for (size_t n = 0; n < names_count; n++) {
        size_t i = 0, c = 0;
        while (names[i].path != order[n])
            i++;
        if (strncmp(names[i].path, root, strlen(root)) != 0)
            continue;
        if (names[i].directory) {
            mkdir(names[i].path, 0755); /* fails when an ancestor was lost */
            continue;
        }
        int fd = open(names[i].path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        while (c < contents_count && contents[c].inode != names[i].inode)
            c++;
        if (fd >= 0 && c < contents_count)
            CHECK_EQUAL(pwrite(fd, contents[c].bytes, contents[c].length, 0), contents[c].length);
        if (fd >= 0)
            close(fd);
    }
    snprintf(command, sizeof(command), "rm -rf '%s'", old);
    CHECK_EQUAL(system(command), 0);
    for (size_t i = 0; i < contents_count; i++) {
        free(contents[i].bytes);
        contents[i].bytes = NULL;
    }
    contents_count = names_count = 0;
}

/* ---- the partition on it ---- */

static partition_options options_on(const disk *d)
{
    return (partition_options){.ns = 1, .incarnation = 2, .directory = directory, .segment_size_bytes = 1500, .disk = d,
                               .ids = &ids, .level = LEVEL_DURABLE};
}

static void append(partition *p, model *m, uint32_t records)
{
    static uint8_t buffer[1 << 14];
    append_batch b = {.messages = buffer, .count = records, .length = make_records(buffer, records, 100, 300)};
    partition_append(p, &b, 1, 1000);
    CHECK_EQUAL(b.status, 0);
    model_append(m, &b);
}

static uint64_t check_prefix(const model *m, partition *p)
{
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
static void try_steps(unsigned steps, bool acknowledge, uint64_t *lost)
{
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
        if (acknowledge)
            partition_sync_now(p);
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
    char marker[FILE_PATH_MAX];
    struct stat st = {0};
    snprintf(marker, sizeof(marker), "%s/incarnation", directory);
    CHECK(!acknowledge || (stat(marker, &st) == 0 && st.st_size == 16)); /* without it the partition is read only */
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

static void test_what_was_acknowledged_survives_power_loss_at_any_step(void)
{
    uint64_t lost = 0;
    for (unsigned steps = 1; steps <= STEPS && check_errors == 0; steps++)
        try_steps(steps, true, &lost);
    CHECK(lost > 0); /* the power really went */
}

static void test_what_nobody_acknowledged_is_gone(void)
{
    uint64_t lost = 0;
    try_steps(10, false, &lost);
    CHECK(lost > 10);
}

/* Messages and a stored offset of another level, a change to `durable`, then (or not) one acknowledged message. */
static uint64_t lost_after_a_change(partition_level before, bool acknowledge)
{
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
    for (int i = 0; i < 12; i++)
        append(p, &m, 2);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 5, 3), 0);
    CHECK_EQUAL(partition_set_level(p, LEVEL_DURABLE), 0);
    append(p, &m, 1);
    if (acknowledge)
        partition_sync_now(p);
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

static void test_the_first_acknowledgement_after_a_change_covers_all_before_it(void)
{
    CHECK_EQUAL(lost_after_a_change(LEVEL_WRITTEN, true), 0);
    CHECK_EQUAL(lost_after_a_change(LEVEL_MEMORY, true), 0);
    CHECK(lost_after_a_change(LEVEL_WRITTEN, false) > 0); /* the change alone promises nothing */
}

/* ---- checkpoints ---- */

static void sync_part(partition *p, bool finish)
{
    int fds[64];
    size_t count = partition_sync_begin(p, SYNC_EVERYTHING, fds, 64);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQUAL(device_sync(NULL, fds[i]), 0);
        close(fds[i]);
    }
    if (finish)
        partition_sync_done(p, 0);
}

/* The kernel writes manifests back whenever it likes: all of them reach the device as they are now. */
static void write_back_manifests(const partition *p)
{
    for (uint32_t i = 0; i < p->segments.count; i++) {
        char path[FILE_PATH_MAX];
        struct stat st;
        segment_path(&p->segments, p->segments.items[i].start_offset, SEGMENT_MANIFEST, path, sizeof(path));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0)
            keep_content(fd, &st);
        if (fd >= 0)
            close(fd);
    }
}

/* Appends, syncs and checkpoints in any order, then darkness: what a manifest says is there. */
static void try_checkpoints(unsigned seed, bool lying, uint64_t *trusted, uint64_t *refused)
{
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
        if (test_random(2) == 0)
            continue;
        sync_part(p, false);
        synced = m.count;
        if (test_random(2) == 0)
            append(p, &m, 1);
        partition_sync_done(p, 0);
        if (lying) { /* canary: a checkpoint of what no sync has covered */
            const segment *s = segment_active(&p->segments);
            p->checkpoint =
                (manifest_checkpoint){s->log_bytes, s->count, s->first_timestamp, s->last_timestamp};
        }
        partition_checkpoint_write(p);
    }
    write_back_manifests(p);
    partition_release(p);
    cut_power();
    recovered_partition found;
    bool usual = recover_partition(directory, options.incarnation, &found);
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

static void test_a_checkpoint_that_survives_is_never_ahead_of_its_log(void)
{
    uint64_t trusted = 0, refused = 0;
    for (unsigned seed = 1; seed <= 60 && check_errors == 0; seed++)
        try_checkpoints(seed, false, &trusted, &refused);
    CHECK_EQUAL(refused, 0);
    for (unsigned seed = 1; seed <= 60 && check_errors == 0; seed++)
        try_checkpoints(seed, true, &trusted, &refused);
    CHECK(refused > 5);
}

int main(void)
{
    test_root_make();
    RUN(test_what_was_acknowledged_survives_power_loss_at_any_step);
    RUN(test_what_nobody_acknowledged_is_gone);
    RUN(test_a_checkpoint_that_survives_is_never_ahead_of_its_log);
    RUN(test_the_first_acknowledgement_after_a_change_covers_all_before_it);
    test_root_remove();
    for (size_t i = 0; i < contents_count; i++)
        free(contents[i].bytes);
    return check_report();
}
