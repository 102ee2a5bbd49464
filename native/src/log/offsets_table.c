/* See offsets_table.h. */
#include "log/offsets_table.h"

#include "base/bytes.h"
#include "base/checksum.h"

#include <errno.h>
#include <string.h>

#define VERSION 1u
#define KIND_SHIFT 56u
#define SEQUENCE_MAX (UINT64_C(1) << 55) /* nobody stores so often: what says more was not written by us */
#define READ_BYTES ((size_t)64 << 10)

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

void offsets_encode_half(uint8_t out[OFFSETS_HALF_BYTES], uint8_t kind, uint32_t id, uint64_t value,
                         uint64_t sequence) {
    store_u64(out, id);
    store_u64(out + 8, value);
    store_u64(out + 16, sequence | (uint64_t)kind << KIND_SHIFT);
    store_u64(out + 24, checksum_64(out, 24));
}

offsets_head offsets_decode_head(const uint8_t *data, size_t length, uint64_t incarnation) {
    if (length < OFFSETS_HEAD_BYTES || memcmp(data, zeros, OFFSETS_HEAD_BYTES) == 0) return OFFSETS_HEAD_UNBORN;
    if (memcmp(data, magic, sizeof magic) != 0 || load_u64(data + 56) != checksum_64(data, 56))
        return OFFSETS_HEAD_DAMAGED;
    if (load_u32(data + 8) != VERSION || load_u32(data + 12) != OFFSETS_ENTRY_BYTES) return OFFSETS_HEAD_UNKNOWN;
    return load_u64(data + 16) == incarnation ? OFFSETS_HEAD_WHOLE : OFFSETS_HEAD_FOREIGN;
}

static uint64_t sequence_of(const uint8_t *half) { return load_u64(half + 16) << 8 >> 8; }

typedef enum half_state { HALF_EMPTY, HALF_WHOLE, HALF_DAMAGED } half_state;

static half_state judge_half(const uint8_t *half) {
    uint64_t id = load_u64(half), kind = load_u64(half + 16) >> KIND_SHIFT;
    if (memcmp(half, zeros, OFFSETS_HALF_BYTES) == 0) return HALF_EMPTY;
    uint64_t sequence = sequence_of(half);
    bool known = kind <= OFFSET_GROUP && (kind == 0 || id <= UINT32_MAX) && sequence > 0 && sequence <= SEQUENCE_MAX;
    return known && load_u64(half + 24) == checksum_64(half, 24) ? HALF_WHOLE : HALF_DAMAGED;
}

void offsets_decode_place(const uint8_t data[OFFSETS_ENTRY_BYTES], offsets_place *out) {
    const uint8_t *a = data, *b = data + OFFSETS_HALF_BYTES;
    half_state of_a = judge_half(a), of_b = judge_half(b);
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

int offsets_read_places(const disk *d, int fd, uint32_t first, uint32_t count, uint8_t *out) {
    size_t size = (size_t)count * OFFSETS_ENTRY_BYTES;
    ssize_t length = read_part(d, fd, out, size, OFFSETS_HEAD_BYTES + (uint64_t)first * OFFSETS_ENTRY_BYTES);
    if (length < 0) return -1;
    memset(out + length, 0, size - (size_t)length);
    return 0;
}

int offsets_scan_file(const disk *d, int fd, uint64_t incarnation, offsets_scan *out,
                      int (*visit)(void *context, uint32_t place, const offsets_place *what), void *context) {
    uint8_t data[READ_BYTES];
    ssize_t length = read_part(d, fd, data, OFFSETS_HEAD_BYTES, 0);
    if (length < 0) return -1;
    *out = (offsets_scan){.head = offsets_decode_head(data, (size_t)length, incarnation)};
    if (out->head == OFFSETS_HEAD_FOREIGN || out->head == OFFSETS_HEAD_UNKNOWN) return 0;
    for (uint64_t position = OFFSETS_HEAD_BYTES;; position += READ_BYTES) {
        length = read_part(d, fd, data, READ_BYTES, position);
        if (length <= 0) break;
        memset(data + length, 0, READ_BYTES - (size_t)length);
        for (size_t at = 0; at < (size_t)length; at += OFFSETS_ENTRY_BYTES) {
            offsets_place place;
            if (out->places == OFFSETS_PLACES_MAX) {
                errno = EFBIG;
                return -1;
            }
            offsets_decode_place(data + at, &place);
            out->taken += place.state == OFFSETS_PLACE_TAKEN;
            out->hurt += place.hurt;
            if (place.sequence > out->sequence) out->sequence = place.sequence;
            int result = visit(context, out->places++, &place);
            if (result != 0) return result;
        }
        if ((size_t)length < READ_BYTES) break;
    }
    if (out->head == OFFSETS_HEAD_UNBORN && out->sequence > 0) out->head = OFFSETS_HEAD_DAMAGED;
    return length < 0 ? -1 : 0;
}
