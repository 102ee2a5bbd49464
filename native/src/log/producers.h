/* What a partition knows of the producers whose batches it stores once (docs/adr/0073-idempotent-producers.md): the
 * last batches of each, in memory and in the file `<dir>/producers`, written in place.
 *
 *   head    0  8  "SHRDPROD"      8  4  version, 3      12  4  size of an entry, PRODUCER_ENTRY_BYTES
 *          16  8  incarnation of the partition          24  8  barrier: a record of the metadata
 *          32 16  boot of the machine that wrote it     48  8  0
 *          56  8  checksum of the bytes before
 *   covered at 64, two halves
 *           0  8  end: written before the sync that is to bring log and slots up to there to the device
 *           8  8  proven: up to there an earlier sync has brought both; 2^64-1: not known
 *          16  4  number, the higher one counts      20  4  batches with messages that end behind `proven` and not
 *          24  8  checksum of the bytes before              behind `end`, 2^31-2: they cannot be counted; with bit 31:
 *                                                           at level durable; 2^32-1: not counted, at another level
 *   then entries
 *           0  8  producer        8 48  0               56  8  checksum of the bytes before
 *          64     PRODUCER_SLOTS slots; a batch is in that of its running number modulo their count
 *   slot    0  8  sequence        8  8  first offset    16  4  messages, 20  4  epoch
 *          24  8  running number: which batch of this producer in this partition and epoch it is, from 0 on
 *          32  8  digest of its content as the producer told it (docs/adr/0132-content-digests.md); 0: it told none
 *          40 16  0              56  8  checksum of the producer's id and the bytes before
 *
 * No slot crosses a sector of the device. Little-endian; checksums are XXH3-64 with the incarnation as seed. A slot is
 * written before the records of its batch: after a kill it counts if and only if the log has them. After a power loss
 * the log may have records whose slot is lost. The file is believed when the log ends exactly at an `end` of which all
 * batches have their slots, or at `proven`. Else nothing is known, and who began before that is a stranger here (the
 * barrier). Version 2 has slots of 32 bytes, without a running number (the sequence number is it) and without a digest;
 * a file of it is made anew when it is read. Version 1 is the same, but its halves were written after the sync: it is
 * believed after a kill and forgotten after a power loss. Single-threaded. */
#ifndef SHARDD_PRODUCERS_H
#define SHARDD_PRODUCERS_H
#include "io/disk.h"
#include "log/file_cache.h"
#include "log/offset_shares.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRODUCER_WINDOW 32u /* batches of a producer whose place is told again */
#define PRODUCER_SLOTS 40u  /* of the file: a torn one is none of those */
#define PRODUCER_ENTRY_BYTES (64u + 64u * PRODUCER_SLOTS)
#define PRODUCERS_HEAD_BYTES 128u
#define PRODUCERS_UNCOUNTED (UINT64_C(1) << 32)
/* A user may have as many as are left free, one that is alone half (docs/adr/0130-shares-of-stored-things.md); the
 * metadata give no user more than that half. Those of root count for no user. */
#define PRODUCERS_OF_PARTITION_MAX 8192u
/* The writer makes no larger file. Earlier versions never used the place of a forgotten producer again, so every reader
 * takes a file up to the second bound; one that is larger still is forgotten as a damaged one is. */
#define PRODUCERS_FILE_BYTES_MAX (PRODUCERS_HEAD_BYTES + PRODUCERS_OF_PARTITION_MAX * PRODUCER_ENTRY_BYTES)
#define PRODUCERS_FILE_READ_MAX (64u << 20)
/* About 2 KiB each. A worker accepts no further producer above this bound, and of a user as many as are left free;
 * producers that a file names are always taken, because a start with fewer shards brings the files of several workers
 * to one. */
#define PRODUCERS_OF_WORKER_MAX 65536u

#define PRODUCERS_BOOT_BYTES 16u

/* What may be asked of the append of a batch without a producer. */
enum {
    APPEND_TELLS = 1,   /* its answer says where the messages are: PRODUCED_PLACED */
    APPEND_EXPECTS = 2, /* it is stored at one offset or not at all */
    /* Its messages have timestamps of their own, each later than that of the message before it; they are their origin
     * timestamps, too, where those are 0. */
    APPEND_DISTINCT = 4
};

/* What the batch says of itself; producer 0: nothing, but it may ask for something. */
typedef struct producer_batch {
    uint64_t producer, sequence; /* APPEND_EXPECTS: `sequence` is that offset */
    uint64_t begun;              /* the record of the metadata that began its epoch */
    uint64_t digest;             /* of its content; 0: not told */
    uint32_t epoch;
    uint8_t asks; /* APPEND_* */
} producer_batch;

typedef enum produced_kind {
    PRODUCED_NONE, /* of a batch without a producer */
    PRODUCED_STORED,
    PRODUCED_DUPLICATE, /* stored before: `count` messages from `first` on; 0: where is not known any more */
    PRODUCED_GAP,       /* `first` is the sequence number that has to come */
    PRODUCED_STALE,     /* a later epoch has begun: `count` */
    PRODUCED_UNKNOWN,   /* no such producer, or this partition cannot know what it has stored for it */
    PRODUCED_REFUSED,   /* never at level `memory` */
    PRODUCED_DIFFERENT, /* its number was stored with other content: `count` messages from `first` on */
    PRODUCED_PLACED /* without a producer, when the batch asks for something: `count` from `first` on, `timestamp` */
} produced_kind;

typedef struct produced {
    produced_kind kind;
    uint32_t count;
    uint64_t first;
    uint64_t timestamp; /* PRODUCED_PLACED: of the first message */
} produced;

typedef struct producer_memory { /* of all partitions of a worker */
    uint32_t used;
    uint8_t boot[PRODUCERS_BOOT_BYTES];
    uint64_t barrier;    /* of a partition without a file */
    uint64_t known_last; /* the last record of the metadata that was followed when partitions are opened */
    offset_shares shares;
    /* The user of a producer; 0: root, or there is no such producer (any more). NULL: they have no users. */
    uint64_t (*owner_of)(const void *context, uint64_t producer);
    const void *context;
} producer_memory;

typedef struct producer_slot {
    uint64_t sequence, first_offset;
    uint32_t count, epoch;
    uint64_t running, digest;
} producer_slot;

typedef struct producer_entry {
    uint64_t producer, next; /* sequence number that has to come */
    uint64_t owner;          /* for whom it counts; 0: for no user */
    uint64_t running;        /* of the batch that has to come */
    uint32_t epoch, place;
    producer_slot slots[PRODUCER_SLOTS]; /* epoch UINT32_MAX: empty */
} producer_entry;

typedef struct producers {
    producer_entry **table; /* open addressing by id; NULL until the first one */
    uint32_t capacity, count;
    uint32_t places;                                /* of the file, those of forgotten producers too */
    uint64_t used[PRODUCERS_OF_PARTITION_MAX / 64]; /* a bit for each place that an entry has */
    offset_shares shares;
    uint64_t incarnation, barrier;
    uint64_t proven;   /* log and slots are on the device up to here; UINT64_MAX: not known */
    uint64_t covered;  /* the last `end` of the file; UINT64_MAX: none */
    uint64_t counted;  /* batches behind `proven`; PRODUCERS_UNCOUNTED and more: not known how many */
    uint64_t covering; /* of them, those before `covered` */
    uint32_t covered_number;
    bool exists, dirty, directory_dirty;
    bool durable;       /* the level at which the last `end` was written */
    bool renewed;       /* when it was opened: the one before could not be read and has another name */
    bool lost;          /* what the file says cannot be trusted */
    int fd;             /* -1: not open */
    cached_file listed; /* while it is open */
    producer_memory *memory;
    const disk *disk;
    file_cache *files;
    const char *directory;
} producers;

/* What a file becomes that cannot be read, once the log goes on without it: whoever began before is a stranger then. */
#define PRODUCERS_UNREADABLE "producers.unreadable"
/* Reads the file, if there is one. `end`: of the log. What cannot be trusted is forgotten, and `known_last` becomes the
 * barrier. 0, or -1 and errno. */
int producers_open(producers *p, uint64_t end);
/* For a recovery: whether a log that ends there ends inside a batch of this file. The batch was cut short, so it is not
 * stored, and what is there of it has to go. */
bool producers_end_inside(const uint8_t *content, size_t length, uint64_t incarnation, uint64_t end);
/* The same after a power loss: where a log that ends at `end` has to be cut, so that it and the file prove each other;
 * `end`: not at all. `torn`: there are bytes behind it. Only for a file that was written at level durable in another
 * boot: nothing that lies behind was acknowledged (docs/adr/0087-cutting-to-what-is-proven.md). */
uint64_t producers_proven_end(const uint8_t *content, size_t length, uint64_t incarnation,
                              const uint8_t boot[PRODUCERS_BOOT_BYTES], uint64_t end, bool torn);
void producers_free(producers *p);
/* What becomes of a batch: PRODUCED_STORED when it may be appended. 0, or a status: there is no room for one more. */
uint32_t producers_judge(producers *p, const producer_batch *b, produced *out);
/* Before the records of a batch that was judged are written; `first`: its offset. 0 or 10006. */
uint32_t producers_write(producers *p, const producer_batch *b, uint64_t first, uint32_t count);
/* They are there. */
void producers_stored(producers *p, const producer_batch *b, uint64_t first, uint32_t count);
/* They are not. False: the file says that they are, and they must never be (the partition takes no more writes). */
bool producers_failed(producers *p, const producer_batch *b);
/* Before a sync of log and slots up to this offset, the end of the log, at this level. False and errno: the file does
 * not say so. */
bool producers_cover(producers *p, uint64_t end, bool durable);
/* The level is another one: what comes from now on may be acknowledged without a sync. Best effort. */
void producers_not_durable(producers *p);
/* It has succeeded. */
void producers_covered(producers *p);
/* Forgets those that `is_known` does not know. */
void producers_sweep(producers *p, bool (*is_known)(void *context, uint64_t producer), void *context);
int producers_duplicate(producers *p); /* a descriptor for a sync; -1 and errno */
#endif
