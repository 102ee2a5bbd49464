/* One partition behind a small flat interface, for the simulator in tests/sim (`make -C native sim`): the real code on
 * a disk whose calls go to the caller, which decides what each does, fails with, or loses. A call returns what the
 * system call would, or -errno. */
#include "core/fence.h"
#include "log/expiry_clock.h"
#include "log/files.h"
#include "partition_inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(append_batch) == 96, "_Batch of tests/sim/log_library.py");

#define EXPORT __attribute__((visibility("default")))

typedef struct sim_calls {
    int64_t (*open)(const char *path, int flags);
    int64_t (*close)(int fd);
    int64_t (*duplicate)(int fd);
    int64_t (*pwrite)(int fd, const void *data, uint64_t length, int64_t position);
    int64_t (*pread)(int fd, void *data, uint64_t length, int64_t position);
    int64_t (*ftruncate)(int fd, int64_t length);
    int64_t (*allocate)(int fd, int mode, int64_t from, int64_t length);
    int64_t (*fdatasync)(int fd);
    int64_t (*rename)(const char *from, const char *to);
    int64_t (*unlink)(const char *path);
    int64_t (*mkdir)(const char *path);
} sim_calls;

typedef struct sim_log {
    sim_calls calls;
    disk disk;
    id_source ids;
    journal_memory journals;
    file_cache files;
    expiry_clock clock;
    producer_memory producing;
    uint64_t wall_us;
    int64_t monotonic_us;
    partition *p;
} sim_log;

static uint64_t sim_wall(void *context) { return ((sim_log *)context)->wall_us; }

static int64_t sim_monotonic(void *context) { return ((sim_log *)context)->monotonic_us; }

static int64_t judged(int64_t result) {
    if (result >= 0) return result;
    errno = (int)-result;
    return -1;
}

#define CALLS (&((sim_log *)context)->calls)

static int sim_open(void *context, const char *path, int flags, mode_t mode) {
    (void)mode;
    return (int)judged(CALLS->open(path, flags));
}

static int sim_close(void *context, int fd) { return (int)judged(CALLS->close(fd)); }

static int sim_duplicate(void *context, int fd) { return (int)judged(CALLS->duplicate(fd)); }

static ssize_t sim_pwritev(void *context, int fd, const struct iovec *parts, int count, off_t position) {
    size_t length = 0, at = 0;
    for (int i = 0; i < count; i++) length += parts[i].iov_len;
    uint8_t *data = malloc(length + 1);
    if (data == NULL) abort();
    for (int i = 0; i < count; at += parts[i++].iov_len) memcpy(data + at, parts[i].iov_base, parts[i].iov_len);
    ssize_t result = (ssize_t)judged(CALLS->pwrite(fd, data, length, position));
    int error = errno;
    free(data);
    errno = error;
    return result;
}

static ssize_t sim_pread(void *context, int fd, void *data, size_t length, off_t position) {
    return (ssize_t)judged(CALLS->pread(fd, data, length, position));
}

static int sim_ftruncate(void *context, int fd, off_t length) { return (int)judged(CALLS->ftruncate(fd, length)); }

static int sim_allocate(void *context, int fd, int mode, off_t from, off_t length) {
    return (int)judged(CALLS->allocate(fd, mode, from, length));
}

static int sim_fdatasync(void *context, int fd) { return (int)judged(CALLS->fdatasync(fd)); }

static int sim_rename(void *context, const char *from, const char *to) { return (int)judged(CALLS->rename(from, to)); }

static int sim_unlink(void *context, const char *path) { return (int)judged(CALLS->unlink(path)); }

static int sim_mkdir(void *context, const char *path, mode_t mode) {
    (void)mode;
    return (int)judged(CALLS->mkdir(path));
}

static void *take(void *context, size_t bytes) {
    (void)context;
    return malloc(bytes);
}

static void give(void *context, void *block) {
    (void)context;
    free(block);
}

/* NULL and errno when the partition cannot be opened. */
EXPORT sim_log *sim_log_open(const sim_calls *calls, const char *directory, uint64_t incarnation, uint32_t level,
                             uint64_t segment_size_bytes, uint32_t state, uint64_t seed, uint64_t boot,
                             uint64_t barrier, uint64_t known_last, const segment_info *segments, uint64_t count) {
    sim_log *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    s->calls = *calls;
    s->producing = (producer_memory){.barrier = barrier, .known_last = known_last};
    memcpy(s->producing.boot, &boot, sizeof boot);
    file_cache_open(&s->files, (descriptor_budget)FILE_BUDGET_LARGEST);
    s->disk = (disk){.open = sim_open,
                     .close = sim_close,
                     .duplicate = sim_duplicate,
                     .pwritev = sim_pwritev,
                     .pread = sim_pread,
                     .ftruncate = sim_ftruncate,
                     .allocate = sim_allocate,
                     .fdatasync = sim_fdatasync,
                     .rename = sim_rename,
                     .unlink = sim_unlink,
                     .mkdir = sim_mkdir,
                     .context = s};
    s->clock = (expiry_clock){.wall_us = sim_wall, .monotonic_us = sim_monotonic, .context = s};
    id_source_seed_fixed(&s->ids, seed);
    s->journals = (journal_memory){.bytes_max = 1 << 20, .take = take, .give = give};
    partition_options options = {.ns = 1,
                                 .incarnation = incarnation,
                                 .directory = directory,
                                 .segment_size_bytes = segment_size_bytes,
                                 .state = state,
                                 .level = (partition_level)level,
                                 .journal_messages_max = 8,
                                 .journal_bytes_max = 4096,
                                 .journals = &s->journals,
                                 .clock = &s->clock,
                                 .producing = &s->producing,
                                 .disk = &s->disk,
                                 .files = &s->files,
                                 .ids = &s->ids};
    s->p = partition_open(&options, segments, count);
    if (s->p != NULL) return s;
    int error = errno;
    free(s);
    errno = error;
    return NULL;
}

/* `orderly`: as when the partition is closed; else only memory and descriptors go. */
EXPORT void sim_log_free(sim_log *s, bool orderly) {
    if (orderly) partition_close(s->p);
    partition_release(s->p);
    file_cache_close(&s->files);
    free(s);
}

/* `batches` with messages, length and count; status and first_offset come back. */
EXPORT void sim_log_append(sim_log *s, append_batch *batches, uint64_t count, uint64_t now_us) {
    partition_append(s->p, batches, count, now_us);
}

/* One batch of a producer, judged as core/producing.c does it: `status` and `made` come back. */
EXPORT void sim_log_send_once(sim_log *s, append_batch *b, uint64_t now_us) {
    if (partition_level_of(s->p) == LEVEL_MEMORY) {
        b->made = (produced){.kind = PRODUCED_REFUSED};
        return;
    }
    b->status = partition_judge_producer(s->p, b);
    if (b->status != 0 || b->made.kind != PRODUCED_STORED) return;
    if (b->count > 0) partition_append(s->p, b, 1, now_us);
    else b->status = partition_produced_nothing(s->p, b);
    b->made = b->status == 0 ? (produced){.kind = PRODUCED_STORED, .count = b->count, .first = b->first_offset}
                             : (produced){0};
}

/* Whole records into `out`. The status; how many came and from which offset on, and bytes in all. */
EXPORT uint32_t sim_log_poll(sim_log *s, uint8_t strategy, uint64_t value, uint32_t count, uint32_t consumer,
                             uint8_t *out, uint64_t capacity, uint64_t *first_offset, uint64_t *records,
                             uint64_t *bytes) {
    poll_cursor cursor;
    poll_window window;
    *first_offset = *records = *bytes = 0;
    uint32_t status = partition_poll(s->p, strategy, value, count, OFFSET_CONSUMER, consumer, &cursor);
    if (status != 0) return status;
    if (cursor.total_bytes > capacity) abort();
    while (partition_cursor_next(&cursor, 700, &window, &status)) {
        if (*records == 0) *first_offset = window.first_offset;
        record_good good;
        if (window.records->block != NULL) {
            memcpy(out + *bytes, window.records->block, window.length);
        } else if (file_read(&s->disk, window.records->fd, out + *bytes, window.length, window.records->position) !=
                   0) {
            status = 10002;
            break;
        }
        uint32_t valid = record_verify(out + *bytes, window.length, window.first_offset, window.end_offset,
                                       window.count, &good);
        *records += valid;
        *bytes += good.bytes;
        if (valid < window.count) {
            status = 4027;
            break;
        }
    }
    partition_cursor_end(&cursor);
    return status;
}

EXPORT void sim_log_ends(const sim_log *s, uint64_t *first, uint64_t *next, uint64_t *visible, uint64_t *unsaved,
                         uint32_t *state) {
    *first = partition_first_offset(s->p);
    *next = partition_next_offset(s->p);
    *visible = partition_visible_end(s->p);
    *unsaved = inside_journal(s->p)->records;
    *state = partition_state(s->p);
}

EXPORT uint64_t sim_log_sync_begin(sim_log *s, bool everything, int *fds, uint64_t max) {
    return partition_sync_begin(s->p, everything ? SYNC_EVERYTHING : SYNC_ACKNOWLEDGEMENTS, fds, max);
}

EXPORT bool sim_log_sync_done(sim_log *s, int error) { return partition_sync_done(s->p, error); }

EXPORT uint32_t sim_log_flush(sim_log *s) { return partition_flush(s->p); }

EXPORT uint32_t sim_log_delete_segments(sim_log *s, uint32_t count, const char *trash, uint32_t *deleted) {
    bool busy;
    return partition_delete_segments(s->p, count, trash, deleted, &busy);
}

/* How records lie, for `segments` of sim_log_open. */
EXPORT const segment_layout *sim_layout(uint32_t bits) { return segment_layout_of(bits); }

EXPORT bool sim_log_change_layout(sim_log *s, uint64_t start_offset, uint32_t bits) {
    return partition_change_layout(s->p, start_offset, segment_layout_of(bits));
}

EXPORT void sim_log_limit(sim_log *s, uint64_t expiry_us, uint64_t held_us) {
    partition_set_limits(s->p, &(partition_limits){.expiry_us = expiry_us, .held_us = held_us});
}

EXPORT void sim_log_clock(sim_log *s, uint64_t wall_us, int64_t monotonic_us) {
    s->wall_us = wall_us;
    s->monotonic_us = monotonic_us;
}

EXPORT uint32_t sim_log_clean(sim_log *s, const char *trash, uint32_t *removed) {
    partition_cleaned done;
    uint32_t status = partition_clean(s->p, s->monotonic_us, trash, &done);
    *removed = done.removed;
    return status;
}

EXPORT uint32_t sim_log_offset_store(sim_log *s, uint8_t kind, uint32_t id, uint64_t value) {
    return partition_offset_store(s->p, kind, id, value);
}

EXPORT uint32_t sim_log_offset_delete(sim_log *s, uint8_t kind, uint32_t id) {
    return partition_offset_delete(s->p, kind, id);
}

/* UINT64_MAX: nothing is stored. */
EXPORT uint64_t sim_log_offset_get(const sim_log *s, uint8_t kind, uint32_t id) {
    uint64_t value;
    return partition_offset_get(s->p, kind, id, &value) ? value : UINT64_MAX;
}

/* ---- fences ---- */

EXPORT fences *sim_fences_make(void) { return calloc(1, sizeof(fences)); }

EXPORT bool sim_fences_pass(fences *f, uint32_t group, uint64_t generation) {
    return fences_pass(f, group, generation);
}

EXPORT void sim_fences_drop(fences *f, uint32_t group) { fences_drop(f, group); }

EXPORT void sim_fences_free(fences *f) {
    fences_free(f);
    free(f);
}

/* ---- the file of stored offsets ---- */

typedef struct sim_place {
    uint64_t value, sequence, used_us, owner, name;
    uint32_t place, id;
    uint8_t kind, half, hurt, state;
} sim_place;

typedef struct sim_table {
    sim_place *places;
    uint64_t max;
} sim_table;

static int keep_place(void *context, uint32_t place, const offsets_place *what) {
    sim_table *t = context;
    if (place >= t->max) abort();
    t->places[place] = (sim_place){.value = what->value,
                                   .sequence = what->sequence,
                                   .used_us = what->use.used_us,
                                   .owner = what->use.owner,
                                   .name = what->use.name,
                                   .place = place,
                                   .id = what->id,
                                   .kind = what->kind,
                                   .half = what->half,
                                   .hurt = what->hurt,
                                   .state = (uint8_t)what->state};
    return 0;
}

/* What the file says, by place; `head` as offsets_head. How many places there are, or -1. */
EXPORT int64_t sim_table_read(int fd, uint64_t incarnation, uint32_t *head, sim_place *places, uint64_t max) {
    sim_table table = {places, max};
    offsets_scan scan;
    if (offsets_scan_file(&disk_system, fd, incarnation, &scan, keep_place, &table) != 0) return -1;
    *head = scan.head;
    return scan.places;
}
