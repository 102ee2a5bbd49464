/* The believed clock (docs/adr/0127-one-believed-clock.md): by it messages expire and whatever has an age is forgotten,
 * on all shards alike. It follows the wall clock, but a jump of that, in either direction, is believed only when it has
 * lasted as long as it is far, or as long as a bound. Stamps go by a second track of the same kind, which begins with
 * the wall clock of the boot. Ages within a process can do without both: `expiry_clock_steady`.
 *
 * One clock of all of them looks at the wall clock (`looks`); the others read what it has found, and go on by the time
 * since the boot while it does not. Without a look for a while nothing is missed: what the clocks did between two looks
 * is compared. */
#ifndef SHARDD_EXPIRY_CLOCK_H
#define SHARDD_EXPIRY_CLOCK_H
#include "base/shared.h"

#include <stdbool.h>

#define CLOCK_STEP_US 1000000 /* what is nearer has been slewed, or is no matter */

typedef struct expiry_clock {
    uint64_t (*wall_us)(void *context);
    int64_t (*monotonic_us)(void *context); /* since the boot of the machine */
    void *context;
    shared_clock *shared; /* NULL: `own` */
    bool looks;           /* at the wall clock, for all that share it */
    shared_clock own;     /* begins as zero, but for `jump_max_us` */
} expiry_clock;

/* What an earlier run knew. */
typedef struct clock_memory {
    uint64_t believed_us, stamps_us;                 /* what time it is now; 0: as the wall clock says */
    uint64_t believed_doubted_us, stamps_doubted_us; /* for so long a jump within this boot is doubted; 0: it is not */
    uint64_t doubts[SHARED_DOUBTS][2];               /* as in shared_clock */
    uint64_t since_boot_us;                          /* when that was known; 0: now */
} clock_memory;

/* That of the machine, and not of a test. No process shares it yet. */
expiry_clock expiry_clock_of_system(void);
uint64_t expiry_clock_now(expiry_clock *c);
/* For what is stored now. May fall, when the wall clock was set back and that is believed. */
uint64_t expiry_clock_stamp(expiry_clock *c);
/* Never falls, jumps or stands still while the process lives, and is not the time of day. */
uint64_t expiry_clock_steady(expiry_clock *c);
/* When that was stored by the steady clock, which says `steady_us` now, as the believed one says `now_us`. */
uint64_t expiry_clock_steady_at(expiry_clock *c, uint64_t stamp_us, uint64_t now_us, uint64_t steady_us);
/* The first stamp of what has not reached `age_us`: all that is stamped earlier has. What was stored while a clock was
 * doubted counts as stored when that ended. */
uint64_t expiry_clock_first_younger(expiry_clock *c, uint64_t now_us, uint64_t age_us);
/* When what has that stamp reaches `age_us`; UINT64_MAX: never. */
uint64_t expiry_clock_reaches(expiry_clock *c, uint64_t stamp_us, uint64_t age_us);
/* What has ended, as in clock_memory, and for how long the tracks are in doubt. */
void expiry_clock_recall(expiry_clock *c, clock_memory *memory);
/* Before the first look. */
void expiry_clock_begin(expiry_clock *c, const clock_memory *memory);
/* Grows with every call, on whatever shard. */
uint64_t expiry_clock_session_number(expiry_clock *c);
#endif
