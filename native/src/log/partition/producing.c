/* Batches of producers that are stored once: what a partition knows of them (producers.h). A partition that none has
 * sent to pays nothing. */
#include "log/partition/inside.h"

#include "base/assert.h"
#include "log/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static producers *make(const partition *p) {
    producers *made = malloc(sizeof *made);
    if (made == NULL) return NULL;
    *made = (producers){.incarnation = p->files.incarnation,
                        .barrier = p->producers.unproduced ? 0 : p->producers.memory->barrier,
                        .covered = UINT64_MAX,
                        .proven = UINT64_MAX,
                        .fd = -1,
                        .durable = p->level == LEVEL_DURABLE,
                        .memory = p->producers.memory,
                        .disk = p->files.disk,
                        .files = p->history.segments.files,
                        .directory = p->files.directory};
    return made;
}

/* The names in the directory are on the device. */
static bool sync_names(partition *p) {
    int fd = file_open(p->files.disk, p->history.segments.files, p->files.directory, O_RDONLY | O_DIRECTORY), result;
    if (fd < 0) return false;
    do result = p->files.disk->fdatasync(p->files.disk->context, fd);
    while (result != 0 && errno == EINTR);
    p->files.disk->close(p->files.disk->context, fd);
    if (result != 0) { /* what the device has is not known */
        progress_lost(&p->sync);
        partition_poison(p, STATUS_CANNOT_SYNC_FILE);
    }
    return result == 0;
}

int partition_open_producers(partition *p) {
    p->producers.unproduced = p->history.segments.count == 0; /* without a record nothing can have been stored twice */
    if (p->producers.memory == NULL || p->history.segments.count == 0 || p->state != 0) return 0;
    producers *found = make(p);
    int result = found != NULL ? producers_open(found, p->history.next_offset) : -1, error = errno;
    if (result == 0 && found->exists) {
        p->producers.known = found;
        if (!found->renewed || sync_names(p)) return 0;
        error = errno;
        partition_free_producers(p);
        errno = error;
        return -1;
    }
    if (found != NULL) producers_free(found);
    free(found);
    errno = error;
    return result;
}

void partition_free_producers(partition *p) {
    if (p->producers.known != NULL) producers_free(p->producers.known);
    free(p->producers.known);
    p->producers.known = NULL;
}

/* ---- one that cannot be read (docs/adr/0108-side-files.md) ---- */

void partition_find_producers(partition *p) {
    ASSERT(p->producers.known == NULL);
    if (partition_open_producers(p) == 0) p->producers.side.error = 0;
    else side_failed(&p->producers.side, errno);
}

uint32_t partition_look_for_producers(partition *p) {
    if (side_is_due(&p->producers.side)) partition_find_producers(p);
    if (p->producers.side.error == 0) return 0;
    return side_passes(p->producers.side.error) ? (uint32_t)STATUS_CANNOT_WRITE_TO_FILE
                                                : (uint32_t)STATUS_CANNOT_READ_FILE;
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
    return p->producers.side.error == 0;
}

uint32_t partition_part_with_producers(partition *p) {
    partition_find_producers(p);
    int error = p->producers.side.error;
    bool readable = error == 0 || side_passes(error) || side_is_foreign(error) || set_aside(p);
    if (p->state != 0) return p->state;
    return readable && p->producers.side.error == 0 ? 0 : (uint32_t)STATUS_CANNOT_WRITE_TO_FILE;
}

/* ---- batches ---- */

uint32_t partition_judge_producer(partition *p, append_batch *b) {
    if (p->closed) return STATUS_PARTITION_NOT_FOUND;
    if (p->state != 0) return p->state;
    if (p->producers.side.error != 0) {
        uint32_t status = partition_look_for_producers(p);
        if (status != 0) return status;
    }
    if (p->producers.known == NULL && p->producers.memory != NULL) p->producers.known = make(p);
    if (p->producers.known == NULL) return STATUS_CANNOT_WRITE_TO_FILE;
    return producers_judge(p->producers.known, &b->by, &b->made);
}

/* What is written must not count, as its records are not there: a restart could take others for them. Where they could
 * not be cut off again it stays: a restart takes them for that batch, and it is not stored once more. */
static void take_back(partition *p, const append_batch *b) {
    if (partition_has_refused(p) || !producers_failed(p->producers.known, &b->by))
        partition_poison(p, STATUS_CANNOT_WRITE_TO_FILE);
}

uint32_t partition_note_producers(partition *p, const append_batch *batches, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const append_batch *b = &batches[i];
        if (b->by.producer == 0 || producers_write(p->producers.known, &b->by, b->first_offset, b->count) == 0)
            continue;
        partition_unnote_producers(p, batches, i + 1);
        return STATUS_CANNOT_WRITE_TO_FILE;
    }
    return 0;
}

void partition_unnote_producers(partition *p, const append_batch *batches, size_t count) {
    while (count-- > 0)
        if (batches[count].by.producer != 0) take_back(p, &batches[count]);
}

void partition_keep_producers(partition *p, const append_batch *batches, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const append_batch *b = &batches[i];
        if (b->by.producer != 0) producers_stored(p->producers.known, &b->by, b->first_offset, b->count);
    }
}

uint32_t partition_note_group(partition *p, segment *s, const append_batch *batches, size_t count, int *fd) {
    uint32_t status = partition_note_producers(p, batches, count);
    if (status != 0) return status;
    *fd = segment_fd(&p->history.segments, s, SEGMENT_LOG);
    if (*fd >= 0) return 0;
    if (file_error_poisons(errno)) partition_poison(p, STATUS_CANNOT_WRITE_TO_FILE);
    partition_unnote_producers(p, batches, count);
    return p->state != 0 ? p->state : (uint32_t)STATUS_CANNOT_WRITE_TO_FILE;
}

uint32_t partition_produced_nothing(partition *p, append_batch *b) {
    b->first_offset = p->history.next_offset;
    uint32_t status = p->history.segments.count > 0 ? partition_note_producers(p, b, 1) : STATUS_CANNOT_WRITE_TO_FILE;
    if (status == 0) partition_keep_producers(p, b, 1);
    return status;
}

void partition_sweep_producers(partition *p, bool (*is_known)(void *context, uint64_t producer), void *context) {
    if (p->producers.known != NULL && !p->closed && p->state == 0)
        producers_sweep(p->producers.known, is_known, context);
}

int partition_unread_producers(const partition *p) { return p->producers.side.error; }
