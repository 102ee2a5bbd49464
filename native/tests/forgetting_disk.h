/* A disk for power cuts: below `root` it has the bytes and names that were synced, and forgets the others. When
 * `lucky`, any of those may be there all the same, in any order and torn at sectors. */
#ifndef SHARDD_FORGETTING_DISK_H
#define SHARDD_FORGETTING_DISK_H
#define INODES_MAX 512
#define NAMES_MAX 1024
#define SECTOR_BYTES 512u
#define DISK_BYTES_MAX (1u << 16) /* of one file */

static char root[128];

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
static bool lucky; /* the next cut: what was not synced may be there all the same */

static void keep_content(int fd, const struct stat *st) {
    size_t i = 0;
    while (i < contents_count && contents[i].inode != st->st_ino) i++;
    if (i == INODES_MAX) abort();
    contents_count += i == contents_count;
    contents[i].inode = st->st_ino;
    contents[i].length = (size_t)st->st_size;
    contents[i].bytes = realloc(contents[i].bytes, contents[i].length + 1);
    CHECK_EQUAL(pread(fd, contents[i].bytes, contents[i].length, 0), contents[i].length);
}

static void keep_names(const char *path) {
    size_t length = strlen(path), kept = 0;
    for (size_t i = 0; i < names_count; i++) { /* what the directory held before */
        const char *slash = strrchr(names[i].path, '/');
        if ((size_t)(slash - names[i].path) != length || strncmp(names[i].path, path, length) != 0)
            names[kept++] = names[i];
    }
    names_count = kept;
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        if (names_count == NAMES_MAX) abort();
        snprintf(names[names_count].path, sizeof(names[0].path), "%.100s/%.100s", path, e->d_name);
        names[names_count].inode = e->d_ino;
        names[names_count++].directory = e->d_type == DT_DIR;
    }
    closedir(d);
}

static int device_sync(void *context, int fd) {
    (void)context;
    char link[64], path[256];
    struct stat st;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (length < 0 || fstat(fd, &st) != 0) return -1;
    path[length] = '\0';
    if (S_ISDIR(st.st_mode)) keep_names(path);
    else keep_content(fd, &st);
    return 0;
}

static int by_length(const void *a, const void *b) {
    size_t x = strlen(*(const char *const *)a), y = strlen(*(const char *const *)b);
    return x < y ? -1 : x > y;
}

/* Sector by sector what was synced or what was written last, as long as one of them or anything in between. */
static size_t mix(const char *path, const uint8_t *synced, size_t synced_length, uint8_t *out) {
    static uint8_t current[DISK_BYTES_MAX];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : pread(fd, current, sizeof(current), 0);
    if (fd >= 0) close(fd);
    size_t length = got > 0 ? (size_t)got : 0, low = length < synced_length ? length : synced_length;
    size_t high = length < synced_length ? synced_length : length;
    CHECK(high < DISK_BYTES_MAX);
    size_t kept = test_random(2) == 0 ? high : low + test_random(high - low + 1);
    uint64_t chance = test_random(5);
    memset(out, 0, kept);
    for (size_t at = 0; at < kept; at += SECTOR_BYTES) {
        size_t end = at + SECTOR_BYTES < kept ? at + SECTOR_BYTES : kept;
        const uint8_t *from = test_random(4) < chance ? current : synced;
        size_t limit = from == current ? length : synced_length;
        if (at < limit) memcpy(out + at, from + at, (end < limit ? end : limit) - at);
    }
    return kept;
}

/* Writes what the device has of a file; `before`: the tree when the power went. */
static void restore(const char *path, ino_t inode, const char *before) {
    static uint8_t mixed[DISK_BYTES_MAX];
    char old[512];
    size_t c = 0;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    while (c < contents_count && contents[c].inode != inode) c++;
    const uint8_t *bytes = c < contents_count ? contents[c].bytes : NULL;
    size_t length = c < contents_count ? contents[c].length : 0;
    if (lucky) {
        snprintf(old, sizeof(old), "%s%s", before, path + strlen(root));
        length = mix(old, bytes, length, mixed);
        bytes = mixed;
    }
    if (fd >= 0 && length > 0) /* -1: an ancestor was lost */
        CHECK_EQUAL(pwrite(fd, bytes, length, 0), length);
    if (fd >= 0) close(fd);
}

/* Some names that no sync has brought to the device are there all the same. */
static void keep_more_names(const char *path, uint64_t chance) {
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char below[256];
        size_t known = 0;
        if (e->d_name[0] == '.') continue;
        snprintf(below, sizeof(below), "%.100s/%.100s", path, e->d_name);
        while (known < names_count && strcmp(names[known].path, below) != 0) known++;
        if (known == names_count && test_random(4) < chance && names_count < NAMES_MAX) {
            snprintf(names[names_count].path, sizeof(names[0].path), "%s", below);
            names[names_count].inode = e->d_ino;
            names[names_count++].directory = e->d_type == DT_DIR;
        }
        if (e->d_type == DT_DIR) keep_more_names(below, chance);
    }
    closedir(d);
}

/* What the tree holds now is on the device. */
static inline void keep_tree(const char *path) {
    keep_names(path);
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char below[256];
        if (e->d_name[0] == '.') continue;
        snprintf(below, sizeof(below), "%.100s/%.100s", path, e->d_name);
        int fd = e->d_type == DT_DIR ? -1 : open(below, O_RDONLY | O_CLOEXEC);
        if (fd < 0) keep_tree(below);
        else CHECK_EQUAL(device_sync(NULL, fd), 0);
        if (fd >= 0) close(fd);
    }
    closedir(d);
}

/* The power goes and comes back: the tree is what the device has. */
static void cut_power(void) {
    char old[160], command[512];
    if (lucky) keep_more_names(root, test_random(5));
    snprintf(old, sizeof(old), "%s.before", root);
    CHECK_EQUAL(rename(root, old), 0);
    CHECK_EQUAL(mkdir(root, 0755), 0);
    const char *order[NAMES_MAX];
    for (size_t i = 0; i < names_count; i++) order[i] = names[i].path;
    qsort(order, names_count, sizeof(order[0]), by_length); /* parents first */
    for (size_t n = 0; n < names_count; n++) {
        size_t i = 0;
        while (names[i].path != order[n]) i++;
        if (strncmp(names[i].path, root, strlen(root)) != 0) continue;
        if (names[i].directory) mkdir(names[i].path, 0755); /* fails when an ancestor was lost */
        else restore(names[i].path, names[i].inode, old);
    }
    snprintf(command, sizeof(command), "rm -rf '%s'", old);
    CHECK_EQUAL(system(command), 0);
    for (size_t i = 0; i < contents_count; i++) {
        free(contents[i].bytes);
        contents[i].bytes = NULL;
    }
    contents_count = names_count = 0;
}
#endif
