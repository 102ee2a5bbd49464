/* Opening and closing a partition. */
#include "log/partition/inside.h"

#include "base/assert.h"
#include "log/files.h"
#include "log/partition/save.h"
#include "log/partition/state.h"
#include "log/segment_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* 0 or errno. */
static int take_segments(partition *p, const segment_info *segments, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int error = history_take(&p->history, &segments[i], i + 1 == count && p->state == 0);
        if (error != 0) return error;
        log_start_grew(&p->start, segments[i].log_bytes, segments[i].count);
    }
    if (count == 0) return 0;
    segment *active = history_active(&p->history);
    active->index_dirty = active->count > 0; /* recovery may have written them */
    active->manifest_dirty = active->count > 0 || log_start_manifest(&p->start) > 0;
    progress_mark_marker(&p->sync);
    progress_mark_all_directories(&p->sync);
    space_begins(&p->space, p->level == LEVEL_DURABLE, true);
    return 0;
}

partition *partition_open(const partition_options *options, const segment_info *segments, size_t count) {
    ASSERT(options->disk != NULL && options->files != NULL && options->ids != NULL);
    if (options->directory[0] == '\0' || strlen(options->directory) > FILE_PATH_MAX - 64) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    partition *p = calloc(1, sizeof(*p));
    if (p == NULL) return NULL;
    char *directory = strdup(options->directory);
    *p = (partition){
        .state = options->state,
        .level = options->level,
        .unreadable = count == 0 && options->state != 0 && options->state != STATUS_INVALID_MESSAGE_CHECKSUM,
        .stats = options->stats,
        .roll = roll_open(options->segment_size_bytes),
        .space = {.room = options->room},
        .history = {.segments = {.disk = options->disk,
                                 .files = options->files,
                                 .directory = directory,
                                 .read_only = options->state != 0}},
        .start = {.written = options->log_start},
        .ids = {.source = options->ids},
        .producers = {.memory = options->producing},
        .offsets = {.table = {.disk = options->disk,
                              .files = options->files,
                              .directory = directory,
                              .incarnation = options->incarnation,
                              .users = options->users,
                              .count_max = options->offsets_max > 0 ? options->offsets_max : OFFSETS_PLACES_MAX}},
        .retention = retention_open(),
        .files = {.disk = options->disk, .directory = directory, .incarnation = options->incarnation},
        .clock = options->clock,
        .ns = options->ns,
        .references = 1,
    };
    journal_open(&p->journal, options->journals, options->journal_bytes_max, options->journal_messages_max);
    int error = directory == NULL ? ENOMEM : take_segments(p, segments, count);
    if (error == 0) error = history_take_waiting(&p->history, options->waiting, options->waiting_count);
    if (error != 0) {
        history_free(&p->history);
        free(p->files.directory);
        free(p);
        errno = error;
        return NULL;
    }
    partition_hide(p, options->log_start);
    progress_set_durable_end(&p->sync, options->durable_end < history_end(&p->history) ? options->durable_end
                                                                                       : history_end(&p->history));
    stored_offsets_set_end(&p->offsets, history_end(&p->history));
    bool lowered = !p->unreadable && partition_open_offsets(p);
    if (!p->unreadable) partition_find_producers(p);
    if (lowered || p->level == LEVEL_DURABLE) partition_sync_now(p);
    if (progress_has_failed(&p->sync)) progress_found(&p->sync, history_end(&p->history));
    if (options->limits != NULL) partition_set_limits(p, options->limits);
    partition_publish(p);
    STATS_STORE(p, incarnation, p->files.incarnation);
    return p;
}

partition *partition_retain(partition *p) {
    ASSERT(p->references > 0);
    p->references++;
    return p;
}

void partition_release(partition *p) {
    ASSERT(p->references > 0);
    if (--p->references > 0) return;
    history_free(&p->history);
    journal_free(&p->journal);
    partition_parts_end(p);
    offsets_free(stored_offsets_table(&p->offsets));
    partition_set_window(p, NULL, 0, 0);
    guard_free(&p->producers);
    damage_free(&p->damage);
    free(p->files.directory);
    free(p);
}

void partition_close(partition *p) {
    if (p->closed) return;
    if (partition_save(p) == 0) partition_index_flush(p);
    if (p->state == 0) partition_cut_ahead(p); /* zeros that stay are cut by the next recovery */
    else partition_cut_refused(p);
    if (space_has_reserved(&p->space)) partition_give_back(p);
    partition_checkpoint_write(p);
    partition_write_start(p);
    p->closed = true;
    journal_free(&p->journal);
    if (p->stats != NULL && atomic_load(&p->stats->incarnation) != p->files.incarnation)
        p->stats = NULL; /* deleted while its shard started: the slot has been given to another partition */
    STATS_STORE(p, incarnation, 0);
    STATS_STORE(p, next_offset, 0);
    STATS_STORE(p, size_bytes, 0);
    STATS_STORE(p, messages_count, 0);
    STATS_STORE(p, segments_count, 0);
    STATS_STORE(p, durable_offset, 0);
    STATS_STORE(p, first_offset, 0);
    STATS_STORE(p, state, 0);
    STATS_STORE(p, unseen, 0);
    p->stats = NULL; /* the slot may belong to another partition from now on */
    segment_set_close(history_segments(&p->history));
    index_cache_free(history_index(&p->history));
    offsets_free(stored_offsets_table(&p->offsets));
}
