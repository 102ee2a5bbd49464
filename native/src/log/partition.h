/* One partition of the log on its owner shard: segments, append, index, poll lookups, consumer offsets.
 *
 * Knows files (through the disk seam), no sockets, no ring and no Python. Single-threaded. The level says when a batch
 * counts as acknowledged: `memory` when it is in the partition's journal, `written` when the kernel has the bytes
 * (both: when partition_append has returned 0), `durable` when a sync that began afterwards is done (the caller holds
 * the answer until then; polls end at the durable end; the active .log has up to 1 MiB of zeros behind its records).
 * Files:
 *   <dir>/<start offset, 20 digits>.log and .index      (record.h)
 *   <dir>/<start offset, 20 digits>.manifest            (manifest.h)
 *   <dir>/incarnation                            16 bytes: "SHRDINC1", u64 incarnation (made with the first file)
 *   <dir>/consumer-offsets                       stored offsets (offsets_table.h), written in place
 * Directory and files are made at the first append (or the first stored offset).
 *
 * The index of the active segment is kept in memory for its newest entries (at most INDEX_CACHE_MAX); entries reach the
 * .index file in groups: when 256 wait, at partition_flush, at a roll and at close. The index is never evidence about
 * the log: whoever reads through it verifies the records it led to.
 */
#ifndef SHARDD_PARTITION_H
#define SHARDD_PARTITION_H
#include "log/batch.h"
#include "io/disk.h"
#include "log/file_cache.h"
#include "log/offsets_table.h"
#include "log/producers.h"
#include "log/record.h"
#include "log/segment_reader.h"
#include "base/shared.h"

#define INDEX_CACHE_MAX 65536u

enum { POLL_OFFSET = 1, POLL_TIMESTAMP = 2, POLL_FIRST = 3, POLL_LAST = 4, POLL_NEXT = 5 };

typedef struct partition partition;

typedef struct segment_info { /* what recovery found; ascending by start offset, the last one is active */
    uint64_t start_offset;
    uint64_t log_bytes;
    uint64_t count; /* records */
    uint64_t first_timestamp;
    uint64_t last_timestamp; /* no later record may be older, also when count == 0 */
    uint64_t absent;         /* offsets without a record, explained by the manifest; end = start + count + absent */
    const segment_layout *layout; /* NULL: plain */
    uint64_t counted_us;          /* as in segment.h */
} segment_info;

typedef struct expiry_clock expiry_clock; /* expiry_clock.h */
typedef struct known_users known_users;   /* offset_shares.h */

/* What a partition keeps no longer, and when its active segment is sealed; zeros: no such limit. */
typedef struct partition_limits {
    uint64_t expiry_us;      /* age at which a message is not served any more */
    uint64_t held_us;        /* how much longer a stored offset may hold messages back that it has not passed */
    uint64_t messages_max;   /* kept */
    uint64_t bytes_max;      /* kept, of whole segments; the active one stays */
    uint64_t segment_bytes;  /* instead of `segment_size_bytes` */
    uint64_t segment_age_us; /* of its first message: the next append goes into another segment */
    uint64_t size_held_us;   /* age up to which a stored offset holds messages back that a size or count limit wants to
                                go; 0: the limit wins over every stored offset */
} partition_limits;

typedef enum partition_level { LEVEL_WRITTEN, LEVEL_MEMORY, LEVEL_DURABLE } partition_level;

/* Where journals live: one account of a worker with a cap over all partitions. */
typedef struct journal_memory {
    uint64_t used_bytes, bytes_max;
    void *(*take)(void *context, size_t bytes); /* NULL: none now */
    void (*give)(void *context, void *block);
    void *context;
} journal_memory;

typedef struct partition_options {
    uint64_t ns;
    uint64_t incarnation;
    const char *directory; /* copied */
    uint64_t segment_size_bytes;
    uint32_t state;       /* 0, or the status that sends get from the start (read only) */
    uint64_t durable_end; /* offsets below it were on the device before the start: a checkpoint says so */
    partition_level level;
    uint64_t log_start;             /* below it nothing is served; 0: at the first segment */
    const partition_limits *limits; /* NULL: none */
    expiry_clock *clock;            /* outlives the partition; needed where a limit has an age, and for a window */
    known_users *users;             /* outlives the partition; NULL: each user is there */
    /* `memory` only: the journal holds less than these; a batch that would fill it is written with it, and so is one
     * for which there is no memory. */
    uint64_t journal_messages_max, journal_bytes_max;
    journal_memory *journals; /* outlives the partition */
    uint32_t offsets_max;     /* stored ones, of consumers and groups together; 0: OFFSETS_PLACES_MAX */
    partition_stats *stats;   /* slot in the shared region; may be NULL in tests */
    const disk *disk;
    struct room *room;          /* on it; outlives the partition; NULL: there is always some */
    file_cache *files;          /* its open files; outlives the partition */
    producer_memory *producing; /* outlives it; NULL: it takes no batches of producers */
    id_source *ids;
    /* The last entries of the active segment's index, which its file does not have: there was no room for them. */
    const index_entry *waiting;
    size_t waiting_count;
} partition_options;

/* Opens with what recovery found (count 0: never written), and reads the stored offsets. NULL and errno on failure.
 * Reference count 1. At `durable` it waits until the device has what was found: a killed process may have left it in
 * the page cache only. At every level it does when stored offsets were behind the log: they are lowered to its end. */
partition *partition_open(const partition_options *options, const segment_info *segments, size_t count);
partition *partition_retain(partition *p);
void partition_release(partition *p); /* the last reference frees it and closes its files */
/* Flushes the index, marks the partition closed (everything answers 3007 from now on) and zeroes its stats slot. */
void partition_close(partition *p);

uint64_t partition_namespace(const partition *p);
uint64_t partition_incarnation(const partition *p);
uint64_t partition_next_offset(const partition *p); /* 0 = never held a message */
uint64_t partition_first_offset(const partition *p);
bool partition_is_sparse(const partition *p);        /* a segment has, or had, offsets without a record */
uint64_t partition_active_start(const partition *p); /* where it will be, when never written */
/* Where the segment behind the one that starts at `start` begins. False: there is none. */
bool partition_next_start(const partition *p, uint64_t start, uint64_t *next);
uint32_t partition_segments(const partition *p); /* that hold what is served; 1 when never written */
uint64_t partition_size_bytes(const partition *p);
uint64_t partition_messages(const partition *p);
uint32_t partition_state(const partition *p); /* 0, or the sticky status after EIO */
partition_level partition_level_of(const partition *p);
/* Changes the level (partition/level.c): for what is acknowledged from now on. 0; 3007; or why a journal that `memory`
 * leaves is not written yet: it stays, the level changes all the same. To `durable`: the caller sees to the sync. */
uint32_t partition_set_level(partition *p, partition_level level);
void partition_poison(partition *p, uint32_t status);

/* ---- append ---- */
typedef struct append_batch {
    uint8_t *messages; /* validated records, changed in place */
    uint64_t length;
    uint32_t count;
    uint32_t status;       /* out: 0 or 10006 (disk full, I/O error) or the sticky status or 3007 */
    uint64_t first_offset; /* out when status == 0 */
    producer_batch by;     /* producer 0: whoever sends it takes care of repeats himself. APPEND_EXPECTS is the
                            * caller's to judge, when all before it is stored */
    produced made;         /* of one with a producer, or that asks for something: its answer when status == 0 */
} append_batch;
/* Appends the batches in order, as few vectored writes as possible, each judged for the roll as if it came alone
 * (docs/protocol/records.md#segments: a segment that was full BEFORE a request takes this request and is then sealed).
 * One timestamp for each batch: max(now, last timestamp); with APPEND_DISTINCT one for each message. On ENOSPC, EDQUOT,
 * ENOMEM, EFBIG the log is cut back to the last acknowledged byte, the batches of the failed write get 10006 and later
 * calls may succeed; EIO poisons. Short writes and EINTR are continued. */
void partition_append(partition *p, append_batch *batches, size_t count, uint64_t now_us);
/* ---- no message twice (partition/ids.c, docs/adr/0070-deduplication.md) ---- */
typedef struct id_memory id_memory; /* id_window.h */
/* From now on the ids of the last `entries_max` messages that are not older than `age_us` are known, as far as they
 * come from now on; entries_max 0: none are. False: no memory now, what was set before holds. `memory` outlives it. */
bool partition_set_window(partition *p, id_memory *memory, uint64_t entries_max, uint64_t age_us);
bool partition_has_window(const partition *p);
/* Of the newest messages that are there, oldest first: 16 bytes id, u64 timestamp each. False as above. */
bool partition_load_window(partition *p, const uint8_t *entries, size_t count);
/* Room for the ids of so many messages. False: no memory. */
bool partition_reserve_ids(partition *p, uint64_t count, uint64_t now_us);
/* Gives back the memory of a window in which all is too old. */
void partition_expire_ids(partition *p, uint64_t now_us);
typedef struct id_filter { /* how far it is in a batch; all zero at the beginning */
    uint64_t read_bytes, kept_bytes;
    uint32_t read, kept;
} id_filter;
#define ID_GROUP_MAX 64u  /* ids whose places are fetched together */
typedef struct id_group { /* of the messages that come next, in one or more batches; none at the beginning */
    uint32_t count, used;
    uint32_t hashes[ID_GROUP_MAX];
    bool fresh[ID_GROUP_MAX]; /* it had no id, and has got one */
} id_group;
/* Looks at the next `most` messages of a batch, with room reserved for all: those whose id the window has, or that came
 * before in the batch, leave it; the others are known from now on. An id of 0 gets one of the server first. True: it is
 * done, and the batch has its new length and count. The `behind` batches behind it are those that come next, with the
 * same group: their ids are fetched with those of this one, so that no batch waits for the memory alone. */
bool partition_filter(partition *p, append_batch *b, size_t behind, id_filter *f, id_group *g, uint32_t most,
                      uint64_t now_us);
/* A batch of so many messages is not looked at. */
void partition_filter_skips(id_group *g, uint32_t count);
/* The newest `count` ids belong to messages that were not stored. */
void partition_take_back_ids(partition *p, uint64_t count);

/* ---- batches of producers, each once (partition/producing.c, docs/adr/0073-idempotent-producers.md) ---- */
/* Whether the batch may be appended (`made` is PRODUCED_STORED then), alone in a call of partition_append and not
 * large. 0, or a status: STATUS_FEATURE_UNAVAILABLE when there is no room for one more producer. */
uint32_t partition_judge_producer(partition *p, append_batch *b);
/* It may, but nothing of it is new: it is remembered all the same. 0 or a status. */
uint32_t partition_produced_nothing(partition *p, append_batch *b);
void partition_sweep_producers(partition *p, bool (*is_known)(void *context, uint64_t producer), void *context);

#define APPEND_LARGE_BYTES (2u << 20) /* a batch with more is large */
#define APPEND_PART_BYTES (1u << 20)  /* at least 64 for a record: 16,384 of them at most */
/* Where a poll of now ends: it saves the journal first. */
uint64_t partition_polls_end(const partition *p);
/* Assigns and writes the next part of a large batch, APPEND_PART_BYTES at most. Nothing of it is visible, and a restart
 * takes what is there for an interrupted write. False: there is no more to do before `partition_append` of this batch,
 * first and alone, which makes it visible. What happens in between ends the parts, and that call does it all at once;
 * it also gives the status of a part that failed. */
bool partition_append_part(partition *p, append_batch *batch, uint64_t now_us);

/* ---- poll ---- */
#define PARTITION_WAITS UINT32_MAX /* no status for anybody: partition_fetch, then ask again */
typedef struct poll_cursor {
    partition *owner;        /* retained; partition_cursor_end releases */
    uint64_t bytes_max;      /* of all messages of the answer, but one, however large that is */
    uint64_t current_offset; /* last offset of the partition, 0 when empty */
    uint64_t next_offset;    /* first offset of the next window */
    uint64_t remaining;      /* messages still to come */
    uint64_t total_bytes;    /* bytes of all messages of the answer, known from the start */
    uint64_t total_count;
    uint64_t last_offset;                /* last offset of the answer (for auto commit), valid when total_count > 0 */
    uint64_t sent_bytes;                 /* given out so far by partition_cursor_next */
    segment_records records;             /* of the last window, until they are released */
    uint64_t held_offset;                /* an offset in the segment of these; UINT64_MAX: none */
    struct poll_cursor *next, *previous; /* of the same partition: a cursor keeps its place in memory until its end */
} poll_cursor;
typedef struct poll_window {           /* whole records only */
    const segment_records *records;    /* the cursor's, until it releases them */
    uint64_t length;                   /* of them, bytes */
    uint64_t first_offset, end_offset; /* dense: `count` apart; else some of them have no record */
    uint32_t count;
} poll_window;
/* Decides what a poll returns (docs/protocol/messages.md#poll-start; first message with timestamp >= t for
 * POLL_TIMESTAMP). Status 0 (also for an empty answer), 3007 closed, 4027 when the first message is withheld as damaged
 * or the poll reaches the end of a partition that was opened with that state, 10002 when the index cannot be read or
 * contradicts the log, and always when the partition was opened with another state and without segments: it could not
 * be read. PARTITION_WAITS as below. An answer ends before a message that is withheld, and goes on behind isolated
 * ones. `value` = offset or timestamp; for POLL_NEXT the stored offset of (consumer_kind, consumer_id) decides.
 * total_bytes is at most 4 GiB - 1 MiB, and `bytes_max` unless that is 0: fewer messages are announced when it would be
 * more, but one. */
uint32_t partition_poll_within(partition *p, uint8_t strategy, uint64_t value, uint32_t count, uint8_t consumer_kind,
                               uint32_t consumer_id, uint64_t bytes_max, poll_cursor *out);
static inline uint32_t partition_poll(partition *p, uint8_t strategy, uint64_t value, uint32_t count,
                                      uint8_t consumer_kind, uint32_t consumer_id, poll_cursor *out) {
    return partition_poll_within(p, strategy, value, count, consumer_kind, consumer_id, 0, out);
}
/* Next window of at most `max_bytes` (more only for one larger record). Releases the records of the one before.
 * False when nothing remains or (status set) on an error: 3007, 10002 as above, 4027 when the layout of the segment
 * finds its records damaged, or PARTITION_WAITS. */
bool partition_cursor_next(poll_cursor *cursor, uint64_t max_bytes, poll_window *window, uint32_t *status);
/* The records of the last window are not needed any more. */
static inline void partition_cursor_release(poll_cursor *cursor) {
    segment_records_release(&cursor->records);
    cursor->held_offset = UINT64_MAX;
}
void partition_cursor_end(poll_cursor *cursor);
/* Right after PARTITION_WAITS: begins to bring here what was missing (segment_reader.h); then ask again. False: it
 * cannot, which is an error of reading (10002). */
bool partition_fetch(partition *p, segment_wait *w);
/* Asks for the calls that follow, until NULL does: it hears why its fetch has brought nothing. */
void partition_asks(partition *p, segment_wait *w);

/* ---- damage (partition/damage_map.c) ---- */
/* Withholds the offsets [start, end), as far as they are not withheld yet: polls that start there get 4027, those that
 * reach them end before. Isolated ones are passed over as if the messages were not there. False: there are 1,024 ranges
 * already (the reader finds it again), or no memory. */
bool partition_withhold(partition *p, uint64_t start, uint64_t end, bool isolated);
typedef struct damaged_range {
    uint64_t start, end; /* end exclusive */
    bool isolated;       /* with the operator's consent: passed over */
} damaged_range;
/* The first range that ends behind `offset`; NULL: none. Valid until the next change. */
const damaged_range *partition_damage_from(const partition *p, uint64_t offset);
/* The segment in which an index contradicted its log when a poll answered 10002, or with damaged records (4027). */
uint64_t partition_suspect(const partition *p);
uint64_t partition_segment_of(const partition *p, uint64_t offset); /* start of the segment that has to hold it */
uint32_t partition_segment_count(const partition *p);               /* 0 when never written */
/* What the i-th segment has in its file; false: there are not so many. */
bool partition_segment(const partition *p, uint32_t i, segment_info *out);
/* The records of a sealed segment lie in another layout from now on; the files are there. False: not now (an answer on
 * its way reads it, it is not synced yet), or there is no such segment. */
bool partition_change_layout(partition *p, uint64_t start_offset, const segment_layout *layout);
/* A survey has read the first timestamp of this segment from its records. */
void partition_surveyed(partition *p, uint64_t start_offset, uint64_t first_timestamp);

/* ---- consumer offsets (docs/formats.md#consumer-offsets) ---- */
bool partition_offset_get(const partition *p, uint8_t kind, uint32_t id, uint64_t *value);
/* Whether the stored offset of a plain consumer, if there is one, can be that of this name: offsets_is_of. */
bool partition_offset_is_of(const partition *p, uint32_t id, uint64_t name);
/* The same for a consumer that goes on from there: its offset is in use. */
bool partition_offset_read(partition *p, uint8_t kind, uint32_t id, uint64_t *value);
/* How far a consumer is behind what polls see; without a stored offset all of it. `since_us`: when the first message
 * that it has not passed was taken, near to it where only files know (partition/lag.c); 0: there is none, or not
 * known. */
typedef struct partition_lag {
    bool stored;
    uint64_t messages, since_us;
} partition_lag;
partition_lag partition_lag_of(const partition *p, uint8_t kind, uint32_t id);
/* 0, or 10002: the file of the stored offsets cannot be read; what is asked of them gets that. */
uint32_t partition_offsets_known(partition *p);
/* Whether a store of this user would find a place. 0, 10002, 3023. */
uint32_t partition_offset_place(partition *p, uint8_t kind, uint32_t id, uint64_t owner);
/* Stored offsets that were not used for `age_us`: see offsets_unused(). 0, 3007, 10002. */
uint32_t partition_offsets_unused(partition *p, uint32_t from, uint32_t count, uint64_t age_us, uint32_t *next,
                                  void (*visit)(void *context, const offsets_half *entry), void *context);
/* What lies beside the log and could not be read: errno, 0: it could. */
int partition_unread_offsets(const partition *p);
int partition_unread_producers(const partition *p);
uint32_t partition_offset_store_by(partition *p, uint8_t kind, uint32_t id, uint64_t value,
                                   const offset_user *by);                 /* 0, 4100, 3007, 10002, 10006, 3023 */
uint32_t partition_offset_delete(partition *p, uint8_t kind, uint32_t id); /* 0, 3021, 3007, 10002, 3011 */
static inline uint32_t partition_offset_store(partition *p, uint8_t kind, uint32_t id, uint64_t value) {
    return partition_offset_store_by(p, kind, id, value, &(offset_user){0});
}

/* ---- the log start (partition/start.c, partition/clean.c, docs/adr/0040-the-log-start.md) ---- */
/* New limits, for what is there and what comes. */
void partition_set_limits(partition *p, const partition_limits *limits);

typedef struct partition_cleaned {
    uint32_t removed;      /* segments whose files are gone now */
    bool pending;          /* there is more to remove: now, or when a sync, a second or a reader has passed */
    bool held;             /* stored offsets hold messages back */
    bool overtaken;        /* messages are gone that a stored offset has not passed */
    bool ahead;            /* its last times are ahead of the believed clock */
    bool unsynced;         /* files wait for nothing but the sync of the log start */
    uint64_t leased_bytes; /* of segments whose files stay for a reader alone */
} partition_cleaned;
/* One step of the retention, at most CLEAN_SEGMENTS_MAX segments: moves the log start, rolls an active segment whose
 * oldest message has expired, writes the log start down, takes away the files of segments that lie below it, once that
 * is on the device and nothing in them was acknowledged within the last second. `trash` as below. 0, or a status. */
#define CLEAN_SEGMENTS_MAX 4u
uint32_t partition_clean(partition *p, int64_t monotonic_us, const char *trash, partition_cleaned *out);
/* Somebody reads the files of messages from `offset` on: the next steps leave them, though the log start has passed
 * them. UINT64_MAX: nobody does. */
void partition_lease(partition *p, uint64_t offset);
/* What DROP_OLDEST would take: when the first message of the oldest segment counts as stored, and its bytes that are
 * served. False: nothing can be dropped (now). `only_active`: an early roll would help. `waits`: what it holds was
 * acknowledged within the last second, so soon it can be. */
typedef struct partition_oldest {
    uint64_t first_timestamp, bytes;
    bool only_active, waits;
} partition_oldest;
bool partition_oldest_segment(partition *p, partition_oldest *out);
/* Moves the log start behind that segment; the files go with the next steps. Bytes that are not served any more. */
uint64_t partition_drop_oldest(partition *p);
/* Whose stored offset is the lowest: what it has not passed may be held back. False: nothing is stored. */
bool partition_slowest(const partition *p, uint8_t *kind, uint32_t *id, uint64_t *value);
/* Seals the active segment before it is full, when all of it was acknowledged more than a second ago. */
uint32_t partition_roll_early(partition *p);

/* ---- retention (partition/delete.c) ---- */
/* Takes up to `count` of the oldest sealed segments away (docs/protocol/streams.md#delete-segments): their files are
 * renamed to "<trash>-<start offset>.log", ".index" and ".manifest". A segment stays, with all behind it, while the
 * lowest stored offset lies before its end, and (busy) while an answer on its way reads it. 0 also for fewer than
 * `count`; 3007, 10008, or the sticky status. */
uint32_t partition_delete_segments(partition *p, uint32_t count, const char *trash, uint32_t *deleted, bool *busy);

/* ---- flush and background sync ---- */
/* Writes the journal to the log and waiting index entries to the .index file. 0, 10006, 4007 or the sticky status. */
uint32_t partition_flush(partition *p);
uint64_t partition_unsaved_bytes(const partition *p); /* in the journal */
/* The log still has a part of a write that was refused, as the device also refused to cut it off and to overwrite it. A
 * restart could take it for messages, so each sync and flush tries again, until it is closed. */
bool partition_has_refused(const partition *p);
/* True when bytes, files or offsets are not known to be on the device. */
bool partition_is_dirty(const partition *p);
/* What a sync covers: all of it, or what an acknowledgement at `durable` needs (an index is made anew from its log). */
typedef enum sync_scope { SYNC_EVERYTHING, SYNC_ACKNOWLEDGEMENTS } sync_scope;
/* Returns up to `max` file descriptors (duplicates; the caller closes them) to fdatasync: directories with new names,
 * dirty logs, offset files, and with SYNC_EVERYTHING the indexes, flushed first. Moves `durable` to the value taken
 * here only in sync_done. */
size_t partition_sync_begin(partition *p, sync_scope scope, int *fds, size_t max);
/* Result of the sync that begin started: 0 moves the durable end; an errno poisons with 10009 and nothing is retried.
 * So does an error of the device (EIO ...) at the opening of a file for it; for want of descriptors it is tried again.
 * True when names, records and offsets that were there at the beginning are on the device now, all of them. */
bool partition_sync_done(partition *p, int error);
/* Somebody else's fdatasync of a file of the partition failed: the kernel may call lost pages clean from now on. */
void partition_sync_lost(partition *p);
bool partition_sync_failed(const partition *p); /* no sync will ever begin again */
#endif
