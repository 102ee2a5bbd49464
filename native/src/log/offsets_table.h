/* Bytes of the file `consumer-offsets`: what is stored for the consumers and groups of one partition. Knows no table in
 * memory (offsets.h). Little-endian, checksums are XXH3-64, seed 0. shardd/log/offsets_table.py is its twin.
 *
 *   head   0  8  "SHRDOFFS"      8  4  version, 2       12  4  size of an entry, 128
 *         16  8  incarnation of the partition           24 32  0
 *         56  8  checksum of the bytes before
 *   then entries of two halves
 *   half   0  8  consumer id, or number of the group     8  8  last processed offset
 *         16  8  sequence; top byte: OFFSET_CONSUMER, OFFSET_GROUP, 0 free
 *         24  8  time of last use, 0: not known         32  8  incarnation of the user of the last store, 0: nobody
 *         40  8  hash of the consumer's name, 0: none   48  8  0
 *         56  8  checksum of the bytes before; a half of zeros was never written
 *
 * Version 1 has entries of 64 bytes, whose halves end with a checksum at 24: no time, no user, no name. It is read, and
 * written anew as version 2 before the first change.
 *
 * The whole half with the higher sequence counts, the next value goes into the other one: a write of 64 bytes that is
 * torn leaves the value before. A half lies within one sector, as its size divides that of sectors. Sequences grow over
 * the whole file, so of two entries of one consumer (the deletion of one of them was lost with the power) the newer one
 * is known. What lies behind the last whole entry counts as if zeros followed. */
#ifndef SHARDD_OFFSETS_TABLE_H
#define SHARDD_OFFSETS_TABLE_H
#include "io/disk.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OFFSETS_HEAD_BYTES 64u
#define OFFSETS_HALF_BYTES 64u
#define OFFSETS_ENTRY_BYTES 128u
#define OFFSETS_FIRST_ENTRY_BYTES 64u /* of version 1 */
#define OFFSETS_PLACES_MAX (1u << 24) /* entries of a file; one with more is refused (EFBIG) */
#define OFFSETS_SPARSE_MIN 64u
_Static_assert(512 % OFFSETS_HALF_BYTES == 0 && OFFSETS_HEAD_BYTES % OFFSETS_HALF_BYTES == 0,
               "no half crosses a sector");

enum { OFFSET_CONSUMER = 1, OFFSET_GROUP = 2 };

typedef enum offsets_head {
    OFFSETS_HEAD_WHOLE,
    OFFSETS_HEAD_UNBORN,  /* short, or zeros: its birth never came to the device, nothing in it was promised */
    OFFSETS_HEAD_DAMAGED, /* the entries count all the same: each proves itself */
    OFFSETS_HEAD_FOREIGN, /* of another incarnation */
    OFFSETS_HEAD_UNKNOWN  /* of a version that this program may not judge */
} offsets_head;

typedef enum offsets_place_state { OFFSETS_PLACE_FREE, OFFSETS_PLACE_TAKEN, OFFSETS_PLACE_LOST } offsets_place_state;

/* Who stores: the incarnation of a user (0: the entry counts for no user), and hash_name() of the consumer's name (0:
 * it has none). */
typedef struct offset_user {
    uint64_t owner, name;
} offset_user;

typedef struct offset_use {
    uint64_t used_us; /* by the believed clock; 0: not known */
    uint64_t owner;   /* incarnation of the user of the last store; 0: the entry counts for no user */
    uint64_t name;    /* hash_name() of the consumer's name; 0: it has none */
} offset_use;

typedef struct offsets_half { /* kind 0: the entry is free since then */
    uint64_t value, sequence;
    offset_use use;
    uint32_t id;
    uint8_t kind;
} offsets_half;

typedef struct offsets_place { /* an entry of the file */
    uint64_t value, sequence;
    offset_use use;
    uint32_t id;
    uint8_t kind;
    uint8_t half; /* that counts; the next value goes into the other one */
    bool hurt;    /* a half is neither whole nor zeros */
    offsets_place_state state;
} offsets_place;

typedef struct offsets_scan {
    offsets_head head;
    uint32_t entry_bytes;         /* OFFSETS_FIRST_ENTRY_BYTES: of version 1 */
    uint32_t places, taken, hurt; /* hurt: with a half that is damaged, lost ones too */
    uint32_t timeless;            /* taken, without a time of last use */
    uint64_t sequence;            /* the highest */
} offsets_scan;

/* Mostly free places: it is written anew before its partition is opened. */
static inline bool offsets_scan_is_sparse(const offsets_scan *s) {
    return s->places >= OFFSETS_SPARSE_MIN && (uint64_t)s->taken * 4 < s->places;
}

void offsets_encode_head(uint8_t out[OFFSETS_HEAD_BYTES], uint64_t incarnation);
void offsets_encode_half(uint8_t out[OFFSETS_HALF_BYTES], const offsets_half *half);
/* `entry_bytes`: of the version that the head tells; those of version 2 where it tells none. */
offsets_head offsets_decode_head(const uint8_t *data, size_t length, uint64_t incarnation, uint32_t *entry_bytes);
void offsets_decode_place(const uint8_t *data, uint32_t entry_bytes, offsets_place *out);
/* `out` has room for `count` of them; zeros follow the end of the file. 0, -1 and errno. */
int offsets_read_places(const disk *d, int fd, uint32_t entry_bytes, uint32_t first, uint32_t count, uint8_t *out);
/* Reads a file; `visit` sees every place, 0 goes on. A head that is not of this incarnation, or of an unknown version,
 * ends it before the first place. Where the head tells no version, entries are those of the version of which some are
 * whole. 0, -1 and errno, or what `visit` returned. */
int offsets_scan_file(const disk *d, int fd, uint64_t incarnation, offsets_scan *out,
                      int (*visit)(void *context, uint32_t place, const offsets_place *what), void *context);
#endif
