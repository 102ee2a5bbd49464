/* Bytes of the file `consumer-offsets`: what is stored for the consumers and groups of one partition. Knows no table in
 * memory (offsets.h). Little-endian, checksums are XXH3-64, seed 0. shardd/log/offsets_table.py is its twin.
 *
 *   head   0  8  "SHRDOFFS"      8  4  version, 1       12  4  size of an entry, 64
 *         16  8  incarnation of the partition           24 32  0
 *         56  8  checksum of the bytes before
 *   then entries of two halves
 *   half   0  8  consumer id, or number of the group     8  8  last processed offset
 *         16  8  sequence; top byte: OFFSET_CONSUMER, OFFSET_GROUP, 0 free
 *         24  8  checksum of the bytes before; a half of zeros was never written
 *
 * The whole half with the higher sequence counts, the next value goes into the other one: a write of 32 bytes that is
 * torn leaves the value before. Sequences grow over the whole file, so of two entries of one consumer (the deletion of
 * one of them was lost with the power) the newer one is known. What lies behind the last whole entry counts as if zeros
 * followed. */
#ifndef SHARDD_OFFSETS_TABLE_H
#define SHARDD_OFFSETS_TABLE_H
#include "io/disk.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OFFSETS_HEAD_BYTES 64u
#define OFFSETS_HALF_BYTES 32u
#define OFFSETS_ENTRY_BYTES 64u
#define OFFSETS_PLACES_MAX (1u << 24) /* entries of a file; one with more is refused (EFBIG) */
#define OFFSETS_SPARSE_MIN 64u

enum { OFFSET_CONSUMER = 1, OFFSET_GROUP = 2 };

typedef enum offsets_head {
    OFFSETS_HEAD_WHOLE,
    OFFSETS_HEAD_UNBORN,  /* short, or zeros: its birth never came to the device, nothing in it was promised */
    OFFSETS_HEAD_DAMAGED, /* the entries count all the same: each proves itself */
    OFFSETS_HEAD_FOREIGN, /* of another incarnation */
    OFFSETS_HEAD_UNKNOWN  /* of a version that this program may not judge */
} offsets_head;

typedef enum offsets_place_state { OFFSETS_PLACE_FREE, OFFSETS_PLACE_TAKEN, OFFSETS_PLACE_LOST } offsets_place_state;

typedef struct offsets_place { /* an entry of the file */
    uint64_t value, sequence;
    uint32_t id;
    uint8_t kind;
    uint8_t half; /* that counts; the next value goes into the other one */
    bool hurt;    /* a half is neither whole nor zeros */
    offsets_place_state state;
} offsets_place;

typedef struct offsets_scan {
    offsets_head head;
    uint32_t places, taken, hurt; /* hurt: with a half that is damaged, lost ones too */
    uint64_t sequence;            /* the highest */
} offsets_scan;

/* Mostly free places: it is written anew before its partition is opened. */
static inline bool offsets_scan_is_sparse(const offsets_scan *s) {
    return s->places >= OFFSETS_SPARSE_MIN && (uint64_t)s->taken * 4 < s->places;
}

void offsets_encode_head(uint8_t out[OFFSETS_HEAD_BYTES], uint64_t incarnation);
void offsets_encode_half(uint8_t out[OFFSETS_HALF_BYTES], uint8_t kind, uint32_t id, uint64_t value, uint64_t sequence);
offsets_head offsets_decode_head(const uint8_t *data, size_t length, uint64_t incarnation);
void offsets_decode_place(const uint8_t data[OFFSETS_ENTRY_BYTES], offsets_place *out);
/* `out` has room for `count` of them; zeros follow the end of the file. 0, -1 and errno. */
int offsets_read_places(const disk *d, int fd, uint32_t first, uint32_t count, uint8_t *out);
/* Reads a file; `visit` sees every place, 0 goes on. A head that is not of this incarnation and version ends it before
 * the first place. 0, -1 and errno, or what `visit` returned. */
int offsets_scan_file(const disk *d, int fd, uint64_t incarnation, offsets_scan *out,
                      int (*visit)(void *context, uint32_t place, const offsets_place *what), void *context);
#endif
