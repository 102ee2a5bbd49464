/* What a partition is made of; private to this folder. */
#ifndef SHARDD_PARTITION_INSIDE_H
#define SHARDD_PARTITION_INSIDE_H
#include "base/status.h"
#include "log/files.h"
#include "log/partition.h"
#include "log/partition/checkpoint.h"
#include "log/partition/damage_map.h"
#include "log/partition/history.h"
#include "log/partition/journal.h"
#include "log/partition/large_append.h"
#include "log/partition/log_start.h"
#include "log/partition/message_ids.h"
#include "log/partition/producer_guard.h"
#include "log/partition/retention.h"
#include "log/partition/roll_plan.h"
#include "log/partition/space.h"
#include "log/partition/stored_offsets.h"
#include "log/partition/sync_progress.h"

#define INDEX_FLUSH_ENTRIES 256u /* entries that wait before they are written */
#define STATS_STORE(p, field, value) \
    do { \
        if ((p)->stats != NULL) atomic_store_explicit(&(p)->stats->field, (value), memory_order_release); \
    } while (0)

/* Members that every send and every poll touches come first. */
struct partition {
    uint32_t state; /* 0, or the status that ended all writes */
    partition_level level;
    uint32_t references;
    bool closed;
    bool unreadable;        /* it could not be read when it was opened: that it holds nothing is not known */
    partition_stats *stats; /* slot of the shared region; NULL: there is no slot */
    roll_plan roll;
    space space;
    journal journal;
    history history;
    log_start start;
    sync_progress sync;
    large_append *large; /* NULL: there is no large batch on its way */
    message_ids ids;
    producer_guard producers;
    damage_map damage;
    stored_offsets offsets;
    poll_cursor *cursors; /* of answers on their way */
    checkpoint checkpoint;
    retention retention;
    log_files files;
    expiry_clock *clock;
    uint64_t ns;
};
_Static_assert(sizeof(struct partition) <= 1024, "a server has up to 1,000,000 partitions");

/* Around the write of a group (producing.c): before it (0 or a status), when it failed, when it is there. */
uint32_t partition_note_producers(partition *p, const append_batch *batches, size_t count);
/* Of a group for this segment. It may open a file, and for want of descriptors that closes another one, the log too: so
 * `fd` is that of the log afterwards. */
uint32_t partition_note_group(partition *p, segment *s, const append_batch *batches, size_t count, int *fd);
void partition_unnote_producers(partition *p, const append_batch *batches, size_t count);
/* Reads what is stored of producers; guard_error() says what became of it. */
void partition_find_producers(partition *p);
/* What could not be read is tried again, now and then. 0, or the status of who needs it. */
uint32_t partition_look_for_producers(partition *p);
/* Before something is stored without them. 0, or the status: they may be told later. */
uint32_t partition_part_with_producers(partition *p);
/* Reads the stored offsets; stored_offsets_error() says what became of it. True: some were changed, a sync is due. */
bool partition_open_offsets(partition *p);
uint32_t partition_look_for_offsets(partition *p);
/* 0, or 10002: what is stored cannot be read. */
static inline uint32_t partition_have_offsets(partition *p) {
    return __builtin_expect(stored_offsets_error(&p->offsets) == 0, true) ? 0 : partition_look_for_offsets(p);
}
/* Moves the log start up to `offset`, at most to the end of what polls see. */
void partition_move_start(partition *p, uint64_t offset);
/* The same, also beyond what polls see: what is before it is not there any more. */
void partition_hide(partition *p, uint64_t offset);
/* Brings it to where it has to be now, by the age of messages and the stored offsets. */
void partition_expire(partition *p);
/* `wanted`, or how far the messages are that stored offsets may still hold back: those up to `held_age`. False: an
 * index cannot be read now. */
bool partition_unless_held(partition *p, uint64_t now, uint64_t held_age, uint64_t *wanted, bool *held);
static inline void partition_expire_due(partition *p) {
    if (retention_may_expire(&p->retention)) partition_expire(p);
}
/* By the believed clock; 0 without one. */
uint64_t partition_now(const partition *p);
/* Whether a time is further ahead than any clock of this server says (docs/adr/0135-times-that-are-ahead.md). */
bool partition_is_ahead(const partition *p, uint64_t timestamp, uint64_t now);
/* segment.h's counted_us of what is sealed or begun `now`, with such a time: 0 unless that is ahead. */
uint64_t partition_counted_at(const partition *p, uint64_t timestamp, uint64_t now);
/* When a record of the segment with that timestamp counts as stored, by the believed clock, which says `now`. */
uint64_t partition_counted(const partition *p, segment *s, uint64_t timestamp, uint64_t now);
/* The same of the first record of the active segment, as far as that decides when it is sealed. */
uint64_t partition_began(const segment *s);
/* Seals the active segment and makes the next one. 0 or a status. */
uint32_t partition_roll(partition *p, uint64_t now_us);
/* The first offset whose segment an answer on its way still reads: that of records that it holds, too. */
uint64_t partition_first_read(const partition *p);
/* The window has ids of messages before `end`: a restart reads them in their segments. */
bool partition_window_holds(partition *p, uint64_t end);
/* Renames the files of the segment into the trash, its log first. */
bool partition_remove_files(partition *p, segment *s, const char *trash);
/* The files of the first `count` segments are gone: the partition forgets these segments. */
void partition_forget_segments(partition *p, uint32_t count);
void partition_parts_end(partition *p); /* forgets them; what is written of them is cut by the next append */
/* Syncs what an acknowledgement needs before it returns, as far as descriptors can be had. */
void partition_sync_now(partition *p);
#endif
