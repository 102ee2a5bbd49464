/* The compressed layout: .blocks and .index. A few bytes (headers of records, where a poll begins) are unpacked at
 * once, as an index is read at once. Windows are fetched: what is stored is read with operations, and a few blocks are
 * unpacked when each completes, so that no turn of the loop unpacks more than UNPACK_BLOCKS_AT_ONCE for one poll. */
#include "log/blocks.h"
#include "log/manifest.h"
#include "log/files.h"
#include "log/record.h"
#include "log/segment_reader.h"
#include "log/unpacked.h"

#include <errno.h>
#include <stdlib.h>

#define UNPACK_BLOCKS_AT_ONCE 4u

typedef struct compressed_fetch {
    operation operation;
    unpacked_cache *cache;
    segment_wait *wait; /* NULL: nobody wants it any more */
    segment_set *set;   /* valid while it stands in line */
    const disk *disk;
    uint64_t segment, start_offset; /* its number in the cache */
    uint64_t position, length;
    struct compressed_fetch *next, *previous;    /* in line */
    struct compressed_fetch **place;             /* among those that run; NULL: it stands in line */
    int fd;                                      /* its own, while it runs */
    uint64_t plain_bytes, block, end;            /* the next block, and behind the last one */
    uint32_t entries_count, have, stored;        /* no entries: they are read now */
    blocks_entry entries[UNPACK_BLOCKS_AT_ONCE]; /* of the blocks that are read now */
    unpacked_run *run;
    uint64_t position_read; /* in the file, of what is read now */
    uint8_t *packed;        /* `stored` bytes of them, or the entries, of which it has `have` */
} compressed_fetch;

/* How many of the entries of up to `wanted` blocks from `block` on are whole and lead to one stretch of the file. */
static uint32_t take_entries(const uint8_t *data, uint64_t plain_bytes, uint64_t block, uint32_t wanted,
                             blocks_entry *out) {
    uint32_t count = 0;
    for (; count < wanted; count++) {
        blocks_entry *e = &out[count];
        if (!blocks_decode_entry(data + (size_t)count * BLOCKS_ENTRY_SIZE, plain_bytes, block + count, e)) break;
        if (count > 0 && e->position != e[-1].position + e[-1].stored) break;
    }
    return count;
}

static uint64_t run_length(uint64_t plain_bytes, uint64_t block, uint64_t end) {
    uint64_t to = end * BLOCK_PLAIN_BYTES;
    return (to < plain_bytes ? to : plain_bytes) - block * BLOCK_PLAIN_BYTES;
}

static uint8_t *place_of(unpacked_run *r, uint64_t block) {
    return r->bytes + (block * BLOCK_PLAIN_BYTES - r->position);
}

/* ---- at once ---- */

/* A file that is too short is damaged; one that cannot be read now need not be. */
static segment_answer read_stored(const disk *d, int fd, void *to, size_t length, uint64_t position) {
    if (file_read(d, fd, to, length, position) == 0) return SEGMENT_READY;
    return errno == ENODATA ? SEGMENT_DAMAGED : SEGMENT_UNREADABLE;
}

static segment_answer unpack_block(const disk *d, int fd, uint64_t plain_bytes, uint64_t block, uint8_t *packed,
                                   uint8_t *out) {
    uint8_t entry[BLOCKS_ENTRY_SIZE];
    blocks_entry e;
    segment_answer answer = read_stored(d, fd, entry, sizeof entry, blocks_entry_position(block));
    if (answer != SEGMENT_READY) return answer;
    if (!blocks_decode_entry(entry, plain_bytes, block, &e)) return SEGMENT_DAMAGED;
    answer = read_stored(d, fd, packed, e.stored, e.position);
    return answer == SEGMENT_READY && !blocks_unpack(&e, packed, out) ? SEGMENT_DAMAGED : answer;
}

/* Reads and unpacks the blocks [block, end) into the run. */
static segment_answer unpack_all(const disk *d, int fd, uint64_t plain_bytes, uint64_t block, uint64_t end,
                                 unpacked_run *r) {
    uint8_t *packed = malloc(BLOCK_PLAIN_BYTES);
    segment_answer answer = packed != NULL ? SEGMENT_READY : SEGMENT_UNREADABLE;
    for (; answer == SEGMENT_READY && block < end; block++) {
        answer = unpack_block(d, fd, plain_bytes, block, packed, place_of(r, block));
        r->cache->blocks++;
    }
    free(packed);
    return answer;
}

static segment_answer unpack_now(segment_set *set, segment *s, uint64_t position, uint64_t length, unpacked_run **out) {
    int fd = segment_fd(set, s, SEGMENT_LOG);
    if (fd < 0) return SEGMENT_UNREADABLE;
    uint64_t block = position / BLOCK_PLAIN_BYTES, end = blocks_count(position + length);
    *out = unpacked_make(&set->files->unpacked, s->unpacked, block * BLOCK_PLAIN_BYTES,
                         run_length(s->log_bytes, block, end));
    if (*out == NULL) return SEGMENT_UNREADABLE;
    segment_answer answer = unpack_all(set->disk, fd, s->log_bytes, block, end, *out);
    if (answer == SEGMENT_READY) unpacked_keep(*out);
    else free(*out);
    return answer;
}

/* ---- the layout ---- */

static segment_answer compressed_entries(segment_set *set, segment *s, uint64_t first, uint32_t count,
                                         index_entry *out) {
    return segment_plain.entries(set, s, first, count, out); /* the index is that of the plain log */
}

static void compressed_release(segment_records *r) { unpacked_read_end(r->held); }

static segment_answer compressed_records(segment_set *set, segment *s, uint64_t position, uint64_t length,
                                         segment_records *out) {
    unpacked_cache *c = &set->files->unpacked;
    if (set->closed) return SEGMENT_UNREADABLE;
    if (s->unpacked == 0) s->unpacked = unpacked_segment(c);
    segment_wait *w = set->asks;
    if (w != NULL && w->failed.length == length && w->failed.position == position && w->failed.segment == s->unpacked) {
        w->failed.length = 0;
        return w->failed.answer;
    }
    unpacked_run *r = unpacked_find(c, s->unpacked, position, length);
    if (r == NULL) {
        if (c->io != NULL && length > RECORD_HEADER_SIZE) return SEGMENT_WAIT;
        segment_answer answer = unpack_now(set, s, position, length, &r);
        if (answer != SEGMENT_READY) return answer;
    }
    unpacked_read(r);
    *out = (segment_records){.length = length,
                             .block = r->bytes + (position - r->position),
                             .fd = -1,
                             .release = compressed_release,
                             .held = r};
    return SEGMENT_READY;
}

/* ---- fetches ---- */

static void line_put(compressed_fetch *f) {
    unpacked_cache *c = f->cache;
    f->previous = c->last;
    *(f->previous != NULL ? &f->previous->next : &c->first) = f;
    c->last = f;
}

static void line_take(compressed_fetch *f) {
    unpacked_cache *c = f->cache;
    *(f->previous != NULL ? &f->previous->next : &c->first) = f->next;
    *(f->next != NULL ? &f->next->previous : &c->last) = f->previous;
    f->next = f->previous = NULL;
}

/* A place among those that run; NULL: none is free. */
static compressed_fetch **free_place(unpacked_cache *c) {
    for (unsigned i = 0; i < UNPACKED_FETCHES_MAX; i++)
        if (c->running[i] == NULL) return &c->running[i];
    return NULL;
}

static void fetch_free(compressed_fetch *f) {
    if (f->place != NULL) *f->place = NULL;
    if (f->fd >= 0) f->disk->close(f->disk->context, f->fd);
    free(f->packed);
    free(f->run);
    free(f);
}

/* Reads the entries of the next blocks. */
static void read_entries(compressed_fetch *f) {
    uint64_t left = f->end - f->block;
    f->entries_count = f->have = 0;
    f->stored = (left < UNPACK_BLOCKS_AT_ONCE ? (uint32_t)left : UNPACK_BLOCKS_AT_ONCE) * BLOCKS_ENTRY_SIZE;
    f->position_read = blocks_entry_position(f->block);
    io_read(f->cache->io, &f->operation, f->fd, f->packed, f->stored, f->position_read);
}

/* And the blocks themselves. */
static void read_blocks(compressed_fetch *f) {
    f->have = f->stored = 0;
    for (uint32_t i = 0; i < f->entries_count; i++) f->stored += f->entries[i].stored;
    f->position_read = f->entries[0].position;
    io_read(f->cache->io, &f->operation, f->fd, f->packed, f->stored, f->position_read);
}

/* False: there is no descriptor or no memory for it. */
static bool fetch_run(compressed_fetch *f, compressed_fetch **place) {
    segment *s = segment_find(f->set, f->start_offset);
    if (s == NULL || s->start_offset != f->start_offset || s->layout != &segment_compressed) return false;
    uint64_t block = f->position / BLOCK_PLAIN_BYTES, end = blocks_count(f->position + f->length);
    f->plain_bytes = s->log_bytes;
    f->block = block;
    f->end = end;
    f->run = unpacked_make(f->cache, s->unpacked, block * BLOCK_PLAIN_BYTES, run_length(s->log_bytes, block, end));
    f->packed = malloc((size_t)UNPACK_BLOCKS_AT_ONCE * BLOCK_PLAIN_BYTES);
    int fd = f->run != NULL && f->packed != NULL ? segment_fd(f->set, s, SEGMENT_LOG) : -1;
    if (fd < 0) return false;
    segment_files *pinned = segment_pin(s); /* another one goes when there is no descriptor left */
    f->fd = file_duplicate(f->disk, f->set->files, fd);
    segment_unpin(pinned);
    if (f->fd < 0) return false;
    f->place = place;
    *place = f;
    read_entries(f);
    return true;
}

/* Whoever waits asks again, and gets the run, or hears what is wrong. */
static void fetch_end(compressed_fetch *f, segment_answer answer) {
    segment_wait *w = f->wait;
    if (answer == SEGMENT_READY) {
        unpacked_keep(f->run);
        f->run = NULL;
    } else if (w != NULL) {
        w->failed.segment = f->segment;
        w->failed.position = f->position;
        w->failed.length = f->length;
        w->failed.answer = answer;
    }
    fetch_free(f);
    if (w != NULL) w->resume(w);
}

/* Begins what stands in line, as far as it may. */
static void line_go_on(unpacked_cache *c) {
    for (compressed_fetch **place; c->first != NULL && (place = free_place(c)) != NULL;) {
        compressed_fetch *f = c->first;
        line_take(f);
        if (!fetch_run(f, place)) fetch_end(f, SEGMENT_UNREADABLE);
    }
}

/* False: a block is damaged. */
static bool take_blocks(compressed_fetch *f) {
    const uint8_t *stored = f->packed;
    for (uint32_t i = 0; i < f->entries_count; i++) {
        if (!blocks_unpack(&f->entries[i], stored, place_of(f->run, f->block))) return false;
        stored += f->entries[i].stored;
        f->block++;
        f->cache->blocks++;
    }
    return true;
}

/* What was asked for is here. */
static void go_on(compressed_fetch *f) {
    if (f->entries_count == 0) {
        f->entries_count = take_entries(f->packed, f->plain_bytes, f->block, f->stored / BLOCKS_ENTRY_SIZE, f->entries);
        if (f->entries_count == 0) fetch_end(f, SEGMENT_DAMAGED);
        else read_blocks(f);
    } else if (!take_blocks(f)) {
        fetch_end(f, SEGMENT_DAMAGED);
    } else if (f->block < f->end) {
        read_entries(f);
    } else {
        fetch_end(f, SEGMENT_READY);
    }
}

void segment_compressed_on_read(void *fetch, int result) {
    compressed_fetch *f = fetch;
    unpacked_cache *c = f->cache;
    if (result > 0) f->have += (uint32_t)result;
    if (f->wait == NULL) fetch_free(f);
    else if (result == -EINTR || result == -EAGAIN || (result > 0 && f->have < f->stored))
        io_read(c->io, &f->operation, f->fd, f->packed + f->have, f->stored - f->have, f->position_read + f->have);
    else if (result < 0) fetch_end(f, SEGMENT_UNREADABLE);
    else if (result == 0) fetch_end(f, SEGMENT_DAMAGED); /* the file is too short */
    else go_on(f);
    line_go_on(c);
}

static void fetch_forget(segment_wait *w) {
    compressed_fetch *f = w->fetch;
    f->wait = NULL;
    if (f->place != NULL) return; /* its operation completes first */
    line_take(f);
    fetch_free(f);
}

static bool compressed_fetch_begin(segment_set *set, segment *s, const segment_want *want, segment_wait *w) {
    unpacked_cache *c = &set->files->unpacked;
    compressed_fetch *f = malloc(sizeof *f), **place = free_place(c);
    if (f == NULL) return false;
    *f = (compressed_fetch){.operation = operation_of(OPERATION_UNPACK, f),
                            .cache = c,
                            .wait = w,
                            .set = set,
                            .disk = set->disk,
                            .segment = s->unpacked,
                            .start_offset = s->start_offset,
                            .position = want->from,
                            .length = want->length,
                            .fd = -1};
    w->forget = fetch_forget;
    w->fetch = f;
    c->abandon = fetch_free;
    if (place == NULL) {
        line_put(f);
    } else if (!fetch_run(f, place)) {
        fetch_free(f);
        return false;
    }
    return true;
}

const segment_layout segment_compressed = {.suffix = "blocks",
                                           .bits = MANIFEST_LAYOUT_COMPRESSED,
                                           .entries = compressed_entries,
                                           .records = compressed_records,
                                           .fetch = compressed_fetch_begin};
