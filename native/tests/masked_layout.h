/* A second layout, for tests of the seam: records and index of a segment are elsewhere until a helper (the test) brings
 * them. On disk it is <start offset>.masked: the plain log in blocks of MASKED_BLOCK bytes, each byte XORed, each block
 * with its checksum behind it. What was brought stays until masked_forget. Records are handed out as copies in blocks
 * of their own, which the layout counts. */
#ifndef SHARDD_MASKED_LAYOUT_H
#define SHARDD_MASKED_LAYOUT_H
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "log/partition.h"
#include "log/files.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MASKED_BLOCK 1000u
#define MASKED_STORED (MASKED_BLOCK + 8u)
#define MASKED_SEGMENTS 64u

typedef enum masked_state { MASKED_AWAY, MASKED_HERE, MASKED_DAMAGED } masked_state;

typedef struct masked_segment {
    uint64_t start, log_bytes;
    uint8_t *plain, *states; /* of the blocks */
    bool index_here;
} masked_segment;

typedef struct masked_fetch {
    segment_want want;
    masked_segment *of;
    segment_set *set;
    segment_wait *wait;
    struct masked_fetch *next;
    struct masked_layout *layout;
} masked_fetch;

typedef struct masked_layout {
    segment_layout calls; /* first */
    masked_segment segments[MASKED_SEGMENTS];
    unsigned count, live_blocks, handed_out, waits, forgotten;
    bool refuse; /* no fetch can begin */
    masked_fetch *fetches;
} masked_layout;

static masked_layout *masked_of(const segment *s) { return (masked_layout *)(uintptr_t)s->layout; }

static masked_segment *masked_find(masked_layout *l, const segment *s) {
    for (unsigned i = 0; i < l->count; i++)
        if (l->segments[i].start == s->start_offset) return &l->segments[i];
    if (l->count == MASKED_SEGMENTS) abort();
    masked_segment *m = &l->segments[l->count++];
    *m = (masked_segment){.start = s->start_offset, .log_bytes = s->log_bytes};
    m->plain = malloc(s->log_bytes);
    m->states = calloc(1, s->log_bytes / MASKED_BLOCK + 1);
    return m;
}

static segment_answer masked_entries(segment_set *set, segment *s, uint64_t first, uint32_t count, index_entry *out) {
    if (!masked_find(masked_of(s), s)->index_here) return SEGMENT_WAIT;
    int fd = segment_fd(set, s, SEGMENT_INDEX);
    bool read = fd >= 0 && file_read(set->disk, fd, out, count * sizeof *out, first * sizeof *out) == 0;
    return read ? SEGMENT_READY : SEGMENT_UNREADABLE;
}

static void masked_release(segment_records *r) {
    masked_layout *l = r->held;
    l->live_blocks--;
    free((void *)(uintptr_t)r->block);
    r->block = NULL;
}

static segment_answer masked_records(segment_set *set, segment *s, uint64_t position, uint64_t length,
                                     segment_records *out) {
    (void)set;
    masked_layout *l = masked_of(s);
    masked_segment *m = masked_find(l, s);
    for (uint64_t block = position / MASKED_BLOCK; block * MASKED_BLOCK < position + length; block++) {
        if (m->states[block] == MASKED_AWAY) return SEGMENT_WAIT;
        if (m->states[block] == MASKED_DAMAGED) return SEGMENT_DAMAGED;
    }
    uint8_t *copy = malloc(length);
    memcpy(copy, m->plain + position, length);
    *out = (segment_records){.length = length, .block = copy, .fd = -1, .release = masked_release, .held = l};
    l->live_blocks++;
    l->handed_out++;
    return SEGMENT_READY;
}

static void masked_cancel(segment_wait *w) {
    masked_fetch *f = w->fetch;
    masked_fetch **at = &f->layout->fetches;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    f->layout->forgotten++;
    free(f);
}

static bool masked_begin(segment_set *set, segment *s, const segment_want *want, segment_wait *w) {
    masked_layout *l = masked_of(s);
    if (l->refuse) return false;
    masked_fetch *f = malloc(sizeof *f);
    *f = (masked_fetch){*want, masked_find(l, s), set, w, l->fetches, l};
    l->fetches = f;
    l->waits++;
    w->forget = masked_cancel;
    w->fetch = f;
    return true;
}

static void masked_bring(const masked_fetch *f) {
    masked_segment *m = f->of;
    if (f->want.part == SEGMENT_PART_INDEX) {
        m->index_here = true;
        return;
    }
    char path[256];
    snprintf(path, sizeof path, "%s/%020" PRIu64 ".masked", f->set->directory, m->start);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (uint64_t block = f->want.from / MASKED_BLOCK; block * MASKED_BLOCK < f->want.from + f->want.length; block++) {
        uint8_t stored[MASKED_STORED];
        uint64_t at = block * MASKED_BLOCK, left = m->log_bytes - at, size = left < MASKED_BLOCK ? left : MASKED_BLOCK;
        uint64_t checksum;
        CHECK_EQUAL(pread(fd, stored, size + 8, (off_t)(block * MASKED_STORED)), size + 8);
        for (uint64_t i = 0; i < size; i++) m->plain[at + i] = stored[i] ^ 0x5A;
        memcpy(&checksum, stored + size, 8);
        m->states[block] = XXH3_64bits(m->plain + at, size) == checksum ? MASKED_HERE : MASKED_DAMAGED;
    }
    close(fd);
}

/* The helper does what was asked for before this call. How many waited. */
static inline unsigned masked_help(masked_layout *l) {
    unsigned count = 0;
    masked_fetch *last = NULL;
    for (masked_fetch *f = l->fetches; f != NULL; f = f->next, count++) masked_bring(f);
    for (unsigned i = 0; i < count && l->fetches != NULL; i++) { /* the oldest first; others may come or go meanwhile */
        masked_fetch **at = &l->fetches;
        while ((*at)->next != NULL) at = &(*at)->next;
        last = *at;
        *at = NULL;
        segment_wait *w = last->wait;
        free(last);
        w->resume(w);
    }
    return count;
}

/* Everything is elsewhere again. */
static inline void masked_forget(masked_layout *l) {
    for (unsigned i = 0; i < l->count; i++) {
        l->segments[i].index_here = false;
        memset(l->segments[i].states, MASKED_AWAY, l->segments[i].log_bytes / MASKED_BLOCK + 1);
    }
}

/* Damages a block of the segment that starts at 0. */
static inline void masked_flip(masked_layout *l, const char *directory, unsigned block) {
    char path[256];
    snprintf(path, sizeof path, "%s/%020u.masked", directory, 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;
    off_t at = (off_t)block * MASKED_STORED + 5;
    CHECK_EQUAL(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    CHECK_EQUAL(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    masked_forget(l);
}

static inline void masked_open(masked_layout *l) {
    *l = (masked_layout){
        .calls = {.suffix = "masked", .entries = masked_entries, .records = masked_records, .fetch = masked_begin}};
}

static inline void masked_close(masked_layout *l) {
    CHECK_EQUAL(l->live_blocks, 0);
    CHECK(l->fetches == NULL);
    for (unsigned i = 0; i < l->count; i++) {
        free(l->segments[i].plain);
        free(l->segments[i].states);
    }
}

/* Stores the plain log of a closed segment in this layout; the .log goes. */
static inline void masked_convert(const char *directory, uint64_t start) {
    char path[256];
    snprintf(path, sizeof path, "%s/%020" PRIu64 ".log", directory, start);
    int from = open(path, O_RDONLY | O_CLOEXEC);
    unlink(path);
    snprintf(path, sizeof path, "%s/%020" PRIu64 ".masked", directory, start);
    int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    uint8_t stored[MASKED_STORED];
    for (ssize_t size; (size = read(from, stored, MASKED_BLOCK)) > 0;) {
        uint64_t checksum = XXH3_64bits(stored, (size_t)size);
        for (ssize_t i = 0; i < size; i++) stored[i] ^= 0x5A;
        memcpy(stored + size, &checksum, 8);
        CHECK_EQUAL(write(to, stored, (size_t)size + 8), size + 8);
    }
    close(from);
    close(to);
}

/* Opens a partition with what `before` (closed here) has; every second sealed segment gets this layout. */
static inline partition *masked_reopen(masked_layout *l, partition *before, const partition_options *options) {
    segment_info infos[MASKED_SEGMENTS];
    uint32_t count = partition_segment_count(before);
    if (count > MASKED_SEGMENTS) abort();
    CHECK_EQUAL(partition_flush(before), 0);
    for (uint32_t i = 0; i < count; i++) CHECK(partition_segment(before, i, &infos[i]));
    partition_close(before);
    for (uint32_t i = 0; i + 1 < count; i += 2) {
        masked_convert(options->directory, infos[i].start_offset);
        infos[i].layout = &l->calls;
    }
    return partition_open(options, infos, count);
}
#endif
