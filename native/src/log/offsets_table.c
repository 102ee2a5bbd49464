/* See offsets_table.h. */
#include "log/offsets_table.h"

#include "base/bytes.h"
#include "base/checksum.h"

#include <errno.h>
#include <string.h>

#define VERSION 2u
#define KIND_SHIFT 56u
#define SEQUENCE_MAX (UINT64_C(1) << 55) /* nobody stores so often: what says more was not written by us */
#define READ_BYTES ((size_t)64 << 10)
#define FIRST_VERSION 1u

static const uint8_t magic[8] = "SHRDOFFS";
static const uint8_t zeros[OFFSETS_ENTRY_BYTES];

static void store_u64(uint8_t *out, uint64_t value) { memcpy(out, &value, sizeof value); }

void offsets_encode_head(uint8_t out[OFFSETS_HEAD_BYTES], uint64_t incarnation) {
    memset(out, 0, OFFSETS_HEAD_BYTES);
    memcpy(out, magic, sizeof magic);
    out[8] = VERSION;
    out[12] = OFFSETS_ENTRY_BYTES;
    store_u64(out + 16, incarnation);
    store_u64(out + 56, checksum_64(out, 56));
}

void offsets_encode_half(uint8_t out[OFFSETS_HALF_BYTES], const offsets_half *half) {
    store_u64(out, half->id);
    store_u64(out + 8, half->value);
    store_u64(out + 16, half->sequence | (uint64_t)half->kind << KIND_SHIFT);
    store_u64(out + 24, half->use.used_us);
    store_u64(out + 32, half->use.owner);
    store_u64(out + 40, half->use.name);
    store_u64(out + 48, 0);
    store_u64(out + 56, checksum_64(out, 56));
}

offsets_head offsets_decode_head(const uint8_t *data, size_t length, uint64_t incarnation, uint32_t *entry_bytes) {
    *entry_bytes = OFFSETS_ENTRY_BYTES;
    if (length < OFFSETS_HEAD_BYTES || memcmp(data, zeros, OFFSETS_HEAD_BYTES) == 0) return OFFSETS_HEAD_UNBORN;
    if (memcmp(data, magic, sizeof magic) != 0 || load_u64(data + 56) != checksum_64(data, 56))
        return OFFSETS_HEAD_DAMAGED;
    uint32_t version = load_u32(data + 8), bytes = load_u32(data + 12);
    bool known = (version == VERSION && bytes == OFFSETS_ENTRY_BYTES) ||
                 (version == FIRST_VERSION && bytes == OFFSETS_FIRST_ENTRY_BYTES);
    if (!known) return OFFSETS_HEAD_UNKNOWN;
    *entry_bytes = bytes;
    return load_u64(data + 16) == incarnation ? OFFSETS_HEAD_WHOLE : OFFSETS_HEAD_FOREIGN;
}

static uint64_t sequence_of(const uint8_t *half) { return load_u64(half + 16) << 8 >> 8; }

typedef enum half_state { HALF_EMPTY, HALF_WHOLE, HALF_DAMAGED } half_state;

static half_state judge_half(const uint8_t *half, uint32_t bytes) {
    uint64_t id = load_u64(half), kind = load_u64(half + 16) >> KIND_SHIFT;
    if (memcmp(half, zeros, bytes) == 0) return HALF_EMPTY;
    uint64_t sequence = sequence_of(half);
    bool known = kind <= OFFSET_GROUP && (kind == 0 || id <= UINT32_MAX) && sequence > 0 && sequence <= SEQUENCE_MAX;
    return known && load_u64(half + bytes - 8) == checksum_64(half, bytes - 8) ? HALF_WHOLE : HALF_DAMAGED;
}

void offsets_decode_place(const uint8_t *data, uint32_t entry_bytes, offsets_place *out) {
    uint32_t half_bytes = entry_bytes / 2;
    const uint8_t *a = data, *b = data + half_bytes;
    half_state of_a = judge_half(a, half_bytes), of_b = judge_half(b, half_bytes);
    *out = (offsets_place){.half = 1, .hurt = of_a == HALF_DAMAGED || of_b == HALF_DAMAGED};
    if (of_a != HALF_WHOLE && of_b != HALF_WHOLE) {
        out->state = out->hurt ? OFFSETS_PLACE_LOST : OFFSETS_PLACE_FREE;
        return;
    }
    bool second = of_a != HALF_WHOLE || (of_b == HALF_WHOLE && sequence_of(b) > sequence_of(a));
    const uint8_t *half = second ? b : a;
    out->half = second;
    out->sequence = sequence_of(half);
    out->kind = half[23];
    if (out->kind == 0) return;
    out->state = OFFSETS_PLACE_TAKEN;
    out->id = (uint32_t)load_u64(half);
    out->value = load_u64(half + 8);
    if (entry_bytes == OFFSETS_ENTRY_BYTES)
        out->use = (offset_use){
            .used_us = load_u64(half + 24), .owner = load_u64(half + 32), .name = load_u64(half + 40)};
}

/* Up to `size` bytes, less at the end of the file. -1 and errno. */
static ssize_t read_part(const disk *d, int fd, uint8_t *out, size_t size, uint64_t position) {
    size_t done = 0;
    while (done < size) {
        ssize_t n = d->pread(d->context, fd, out + done, size - done, (off_t)(position + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int offsets_read_places(const disk *d, int fd, uint32_t entry_bytes, uint32_t first, uint32_t count, uint8_t *out) {
    size_t size = (size_t)count * entry_bytes;
    ssize_t length = read_part(d, fd, out, size, OFFSETS_HEAD_BYTES + (uint64_t)first * entry_bytes);
    if (length < 0) return -1;
    memset(out + length, 0, size - (size_t)length);
    return 0;
}

typedef int visitor(void *context, uint32_t place, const offsets_place *what);

static int scan_places(const disk *d, int fd, offsets_scan *out, visitor *visit, void *context) {
    uint8_t data[READ_BYTES];
    ssize_t length;
    for (uint64_t position = OFFSETS_HEAD_BYTES;; position += READ_BYTES) {
        length = read_part(d, fd, data, READ_BYTES, position);
        if (length <= 0) break;
        memset(data + length, 0, READ_BYTES - (size_t)length);
        for (size_t at = 0; at < (size_t)length; at += out->entry_bytes) {
            offsets_place place;
            if (out->places == OFFSETS_PLACES_MAX) {
                errno = EFBIG;
                return -1;
            }
            offsets_decode_place(data + at, out->entry_bytes, &place);
            bool taken = place.state == OFFSETS_PLACE_TAKEN;
            out->taken += taken;
            out->timeless += taken && place.use.used_us == 0;
            out->hurt += place.hurt;
            if (place.sequence > out->sequence) out->sequence = place.sequence;
            int result = visit(context, out->places++, &place);
            if (result != 0) return result;
        }
        if ((size_t)length < READ_BYTES) break;
    }
    return length < 0 ? -1 : 0;
}

static int see_nothing(void *context, uint32_t place, const offsets_place *what) {
    (void)context;
    (void)place;
    (void)what;
    return 0;
}

/* Some entry of the first version is whole, and no entry of this version is. 0 or -1. */
static int guess_version(const disk *d, int fd, offsets_scan *out) {
    offsets_scan now = {.entry_bytes = OFFSETS_ENTRY_BYTES}, first = {.entry_bytes = OFFSETS_FIRST_ENTRY_BYTES};
    if (scan_places(d, fd, &now, see_nothing, NULL) != 0) return -1;
    if (now.sequence > 0) return 0;
    if (scan_places(d, fd, &first, see_nothing, NULL) != 0) return -1;
    if (first.sequence > 0) out->entry_bytes = OFFSETS_FIRST_ENTRY_BYTES;
    return 0;
}

int offsets_scan_file(const disk *d, int fd, uint64_t incarnation, offsets_scan *out, visitor *visit, void *context) {
    uint8_t head[OFFSETS_HEAD_BYTES];
    ssize_t length = read_part(d, fd, head, OFFSETS_HEAD_BYTES, 0);
    if (length < 0) return -1;
    *out = (offsets_scan){0};
    out->head = offsets_decode_head(head, (size_t)length, incarnation, &out->entry_bytes);
    if (out->head == OFFSETS_HEAD_FOREIGN || out->head == OFFSETS_HEAD_UNKNOWN) return 0;
    if (out->head != OFFSETS_HEAD_WHOLE && guess_version(d, fd, out) != 0) return -1;
    int result = scan_places(d, fd, out, visit, context);
    if (result != 0) return result;
    if (out->head == OFFSETS_HEAD_UNBORN && out->sequence > 0) out->head = OFFSETS_HEAD_DAMAGED;
    return 0;
}
