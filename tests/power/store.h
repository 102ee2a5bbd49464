/* The memory of the forgetful file system: what programs see (`current`) and what is on the device (`device`).
 *
 * DATA. A page has 4 KiB, a sector 512 bytes. A write changes the current page only. A sync of the file copies the
 * pages that were dirty when it began, and the length of that moment, to the device. Now and then a write is followed
 * by a background write-back of the page it touched: the device then has a version that nobody asked for.
 * LENGTHS. Growing (write, fallocate, truncate) and shrinking are events of the file, in order, until a sync of it.
 * NAMES. Every change of a directory (create, mkdir, rename, unlink, rmdir) is one operation in a journal: one or two
 * assignments `directory/name = inode or nothing` that happen together. In the mode NAMES_STRICT a sync of a directory
 * commits the operations that touch it, and the older ones on the same names. In NAMES_EXT4 any sync of a directory,
 * or of a file whose own name is not committed, commits the whole journal up to its beginning.
 * SYNCS take time: begun, then ended. What changes in between is not covered.
 *
 * A CUT decides by its seed what was lucky. Names: NAMES_STRICT any subset of the pending operations in which no
 * operation survives without the older ones on its names; NAMES_EXT4 a prefix. Length: a prefix of the events; the
 * first event that is not whole may grow the file partly. Each dirty page: whole, not at all, or sector by sector. How
 * much survives on the whole is drawn first, so that cuts which keep nothing, little and nearly all are all seen.
 * What a truncation has freed does not come back once the truncation is there.
 *
 * LIES. `lying`: syncs succeed and do nothing. `failing` > 0: so many syncs fail with EIO and the pages count as clean
 * from then on although the device never got them.
 *
 * Inodes are never freed: one store lives for one cut. Memory is bounded by STORE_BYTES_MAX (then ENOSPC). */
#ifndef FORGETFUL_STORE_H
#define FORGETFUL_STORE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

#define PAGE_BYTES 4096u
#define SECTOR_BYTES 512u
#define NAME_BYTES_MAX 255u
#define STORE_BYTES_MAX ((uint64_t)2 << 30)
#define LENGTH_EVENTS_MAX 64u
#define NOTHING 0u /* no inode; the root is number 1, as FUSE has it */
#define ROOT 1u

typedef enum { NAMES_STRICT, NAMES_EXT4 } names_mode;

typedef struct {
    uint8_t *current, *device;          /* NULL: zeros */
    uint64_t version, clean, on_device; /* dirty while version != clean; on_device: the version that the device has */
} page;

typedef struct {
    uint64_t length, sequence;
    bool shrinks;
} length_event;

typedef struct {
    char *name;
    uint32_t inode;
} entry;

typedef struct {
    entry *items;
    size_t count, room;
} entries;

typedef struct {
    mode_t mode;
    uid_t uid;
    gid_t gid;
    struct timespec changed;
    uint32_t links;
    /* files */
    page *pages;
    size_t pages_count;
    uint64_t length, device_length;
    length_event events[LENGTH_EVENTS_MAX];
    size_t events_count;
    bool sealed; /* a sync has seen the last event: it must not grow any more */
    /* directories */
    entries names, device_names;
} inode;

typedef struct {
    uint32_t directory, inode;
    char *name;
} assignment;

typedef struct {
    uint64_t sequence;
    assignment parts[2];
    unsigned parts_count;
    bool kept;
} name_operation;

typedef struct store {
    names_mode mode;
    inode **inodes; /* by number - 1 */
    size_t inodes_count, inodes_room;
    name_operation *journal;
    size_t journal_count, journal_room;
    uint64_t sequence, bytes;
    uint64_t random_state;
    unsigned failing;
    bool lying;
} store;

typedef struct {
    uint64_t version;
    size_t index;
    uint8_t bytes[PAGE_BYTES];
} page_copy;

/* A sync between its beginning and its end. */
typedef struct {
    uint32_t number;
    uint64_t sequence;
    page_copy *pages;
    size_t pages_count;
    int result; /* 0 or -EIO */
    bool lie;
} sync_run;

typedef struct {
    uint64_t dirty_pages, kept_pages, torn_pages, lengths, short_lengths, names, kept_names;
} cut_result;

void store_init(store *s, names_mode mode, uint64_t seed);
inode *store_inode(store *s, uint32_t number);
uint64_t store_random(store *s, uint64_t below);

/* Names. All return 0 or a negative errno; `*number` is the inode. */
int store_lookup(store *s, uint32_t directory, const char *name, uint32_t *number);
int store_make(store *s, uint32_t directory, const char *name, mode_t mode, uint32_t *number);
int store_remove(store *s, uint32_t directory, const char *name, bool is_directory);
int store_rename(store *s, uint32_t from, const char *old, uint32_t to, const char *new, unsigned flags);

/* Data. */
int store_write(store *s, uint32_t number, const void *data, size_t length, uint64_t position);
size_t store_read(store *s, uint32_t number, void *data, size_t length, uint64_t position);
int store_resize(store *s, uint32_t number, uint64_t length);
int store_zero(store *s, uint32_t number, uint64_t from, uint64_t length);

/* Syncs. */
void sync_begin(store *s, uint32_t number, sync_run *run);
int sync_end(store *s, sync_run *run); /* 0 or -EIO */
void sync_drop(sync_run *run);

/* The tree of a plain directory becomes durable content; the cut writes what survives into an empty plain directory.
 * Both return 0 or a negative errno. */
int store_load(store *s, const char *directory);
int store_cut(store *s, uint64_t seed, const char *directory, cut_result *result);

/* Between the two halves of the store. */
int entries_set(entries *e, const char *name, uint32_t number); /* NOTHING removes */
uint32_t entries_get(const entries *e, const char *name);
uint32_t store_add(store *s, mode_t mode);
page *page_at(store *s, inode *file, size_t index);
void apply_operation(store *s, const name_operation *o);
#endif
