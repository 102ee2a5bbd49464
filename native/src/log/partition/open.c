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

/* Entries that the file of the index has no room for wait here, like those of an append. */
static int take_waiting(partition *p, const partition_options *options) {
    index_cache *c = &p->history.index;
    uint64_t count = p->history.segments.count > 0 ? segment_active(&p->history.segments)->count : 0,
             n = options->waiting_count;
    if (n == 0) return 0;
    if (n > count || n > UINT32_MAX) {
        errno = EINVAL;
        return -1;
    }
    index_cache_reset(c, count - n);
    index_entry *entries = index_cache_reserve(c, (uint32_t)n, UINT32_MAX);
    if (entries == NULL) return -1;
    memcpy(entries, options->waiting, n * sizeof *entries);
    c->count += (uint32_t)n;
    return 0;
}

static int take_segments(partition *p, const segment_info *segments, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const segment_info *info = &segments[i];
        const segment_layout *layout = info->layout != NULL ? info->layout : &segment_plain;
        bool grows = i + 1 == count && p->state == 0; /* entry k of it is made for the offset start + k */
        if ((i > 0 && info->start_offset < p->history.next_offset) ||
            (grows && (info->absent > 0 || layout != &segment_plain))) {
            errno = EINVAL;
            return -1;
        }
        segment *s = segment_add(&p->history.segments, info->start_offset, layout);
        if (s == NULL) return -1;
        s->log_bytes = info->log_bytes;
        s->count = info->count;
        s->absent = info->absent;
        s->counted_us = info->counted_us;
        p->history.segments.sparse |= info->absent > 0;
        s->first_timestamp = info->count > 0 ? info->first_timestamp : p->history.last_timestamp;
        if (info->count > 0 && info->last_timestamp > p->history.last_timestamp)
            p->history.last_timestamp = info->last_timestamp;
        s->last_timestamp = p->history.last_timestamp;
        if (info->last_timestamp > p->history.last_timestamp)
            p->history.last_timestamp = info->last_timestamp; /* the birth of an empty segment */
        /* What a killed process wrote may be in the page cache only: what no checkpoint covers is durable after the
         * first sync. Files of other layouts are synced before they get their names. */
        s->log_dirty = info->count > 0 && layout == &segment_plain;
        p->history.next_offset = segment_end(s);
        log_start_grew(&p->start, info->log_bytes, info->count);
    }
    if (count > 0) {
        p->history.segments.items[count - 1].index_dirty = segments[count - 1].count >
                                                           0; /* recovery may have written them */
        p->history.segments.items[count - 1].manifest_dirty = segments[count - 1].count > 0 ||
                                                              log_start_manifest(&p->start) > 0;
        progress_mark_marker(&p->sync);
        index_cache_reset(&p->history.index, segments[count - 1].count);
        progress_mark_all_directories(&p->sync);
        space_begins(&p->space, p->level == LEVEL_DURABLE, true);
    }
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
    if (directory == NULL || take_segments(p, segments, count) != 0 || take_waiting(p, options) != 0) {
        int error = errno;
        index_cache_free(&p->history.index);
        segment_set_free(&p->history.segments);
        free(p->files.directory);
        free(p);
        errno = error;
        return NULL;
    }
    partition_hide(p, options->log_start);
    progress_set_durable_end(&p->sync, options->durable_end < p->history.next_offset ? options->durable_end
                                                                                     : p->history.next_offset);
    stored_offsets_set_end(&p->offsets, p->history.next_offset);
    bool lowered = !p->unreadable && partition_open_offsets(p);
    if (!p->unreadable) partition_find_producers(p);
    if (lowered || p->level == LEVEL_DURABLE) partition_sync_now(p);
    if (progress_has_failed(&p->sync)) progress_found(&p->sync, p->history.next_offset);
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
    segment_set_free(&p->history.segments);
    journal_free(&p->journal);
    partition_parts_end(p);
    index_cache_free(&p->history.index);
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
    segment_set_close(&p->history.segments);
    index_cache_free(&p->history.index);
    offsets_free(stored_offsets_table(&p->offsets));
}
