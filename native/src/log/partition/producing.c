/* Batches of producers that are stored once: what others ask, and when a failure ends all writes (producer_guard.h). */
#include "log/partition/inside.h"

#include "base/assert.h"
#include "log/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

/* The names in the directory are on the device. */
static bool sync_names(partition *p) {
    int fd = file_open(p->files.disk, history_files(&p->history), p->files.directory, O_RDONLY | O_DIRECTORY), result;
    if (fd < 0) return false;
    do result = p->files.disk->fdatasync(p->files.disk->context, fd);
    while (result != 0 && errno == EINTR);
    p->files.disk->close(p->files.disk->context, fd);
    if (result != 0) partition_sync_lost(p); /* what the device has is not known */
    return result == 0;
}

/* 0 or errno. */
static int open_producers(partition *p) {
    bool empty = history_count(&p->history) == 0;
    guard_set_unproduced(&p->producers, empty);
    if (!guard_takes(&p->producers) || empty || p->state != 0) return 0;
    int error = guard_open(&p->producers, &p->files, history_files(&p->history), history_end(&p->history),
                           p->level == LEVEL_DURABLE);
    if (error != 0 || !guard_is_renewed(&p->producers) || sync_names(p)) return error;
    error = errno;
    guard_free(&p->producers);
    return error;
}

/* ---- one that cannot be read (docs/adr/0108-side-files.md) ---- */

void partition_find_producers(partition *p) {
    ASSERT(!guard_has(&p->producers));
    guard_opened(&p->producers, open_producers(p));
}

uint32_t partition_look_for_producers(partition *p) {
    if (guard_is_due(&p->producers)) partition_find_producers(p);
    int error = guard_error(&p->producers);
    if (error == 0) return 0;
    return side_passes(error) ? (uint32_t)STATUS_CANNOT_WRITE_TO_FILE : (uint32_t)STATUS_CANNOT_READ_FILE;
}

/* The file that cannot be read gets another name, and one without any producer its own, durably: read later, it would
 * speak of a log that has gone on without it. Each step can be done again by the next start, which finds the other
 * name. */
static bool set_aside(partition *p) {
    char from[FILE_PATH_MAX], to[FILE_PATH_MAX];
    snprintf(from, sizeof from, "%s/producers", p->files.directory);
    snprintf(to, sizeof to, "%s/" PRODUCERS_UNREADABLE, p->files.directory);
    int result;
    do result = p->files.disk->rename(p->files.disk->context, from, to);
    while (result != 0 && errno == EINTR);
    if (result != 0) return false;
    partition_find_producers(p);
    return guard_error(&p->producers) == 0;
}

uint32_t partition_part_with_producers(partition *p) {
    partition_find_producers(p);
    int error = guard_error(&p->producers);
    bool readable = error == 0 || side_passes(error) || side_is_foreign(error) || set_aside(p);
    if (p->state != 0) return p->state;
    return readable && guard_error(&p->producers) == 0 ? 0 : (uint32_t)STATUS_CANNOT_WRITE_TO_FILE;
}

/* ---- batches ---- */

uint32_t partition_judge_producer(partition *p, append_batch *b) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (p->state != 0) return p->state;
    if (guard_error(&p->producers) != 0) {
        uint32_t status = partition_look_for_producers(p);
        if (status != 0) return status;
    }
    file_cache *cache = history_files(&p->history);
    if (!guard_begin(&p->producers, &p->files, cache, p->level == LEVEL_DURABLE)) return STATUS_CANNOT_WRITE_TO_FILE;
    return producers_judge(guard_known(&p->producers), &b->by, &b->made);
}

uint32_t partition_note_producers(partition *p, const append_batch *batches, size_t count) {
    size_t noted = guard_note(&p->producers, batches, count);
    if (noted == count) return 0;
    partition_unnote_producers(p, batches, noted + 1);
    return STATUS_CANNOT_WRITE_TO_FILE;
}

void partition_unnote_producers(partition *p, const append_batch *batches, size_t count) {
    bool gone = guard_unnote(&p->producers, batches, count, partition_has_refused(p));
    if (!gone) partition_poison(p, STATUS_CANNOT_WRITE_TO_FILE);
}

uint32_t partition_note_group(partition *p, segment *s, const append_batch *batches, size_t count, int *fd) {
    uint32_t status = partition_note_producers(p, batches, count);
    if (status != 0) return status;
    *fd = history_fd(&p->history, s, SEGMENT_LOG);
    if (*fd >= 0) return 0;
    if (file_error_poisons(errno)) partition_poison(p, STATUS_CANNOT_WRITE_TO_FILE);
    partition_unnote_producers(p, batches, count);
    return p->state != 0 ? p->state : (uint32_t)STATUS_CANNOT_WRITE_TO_FILE;
}

uint32_t partition_produced_nothing(partition *p, append_batch *b) {
    b->first_offset = history_end(&p->history);
    uint32_t status = history_count(&p->history) > 0 ? partition_note_producers(p, b, 1) : STATUS_CANNOT_WRITE_TO_FILE;
    if (status == 0) guard_keep(&p->producers, b, 1);
    return status;
}

void partition_sweep_producers(partition *p, bool (*is_known)(void *context, uint64_t producer), void *context) {
    if (guard_has(&p->producers) && !p->closed && p->state == 0)
        producers_sweep(guard_known(&p->producers), is_known, context);
}

int partition_unread_producers(const partition *p) { return guard_error(&p->producers); }
