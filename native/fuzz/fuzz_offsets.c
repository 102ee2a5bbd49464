/* libFuzzer: any bytes as a file of stored offsets. The scan ends, counts what it visits, and what it says of a place
 * is what the bytes of that place say. With the first bit of the first byte set halves get a right checksum. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log/offsets_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct seen {
    const uint8_t *file;
    size_t size;
    uint32_t places, taken, hurt, entry_bytes;
} seen;

static int ignore(void *context, uint32_t place, const offsets_place *what) {
    (void)context;
    (void)place;
    (void)what;
    return 0;
}

static int visit(void *context, uint32_t place, const offsets_place *what) {
    seen *s = context;
    uint8_t entry[OFFSETS_ENTRY_BYTES] = {0};
    uint32_t bytes = s->entry_bytes;
    size_t at = OFFSETS_HEAD_BYTES + (size_t)place * bytes, left = s->size - at;
    if (place != s->places++ || at >= s->size) abort();
    memcpy(entry, s->file + at, left < bytes ? left : bytes);
    offsets_place again;
    offsets_decode_place(entry, bytes, &again);
    if (again.state != what->state || again.value != what->value || again.sequence != what->sequence) abort();
    if (what->kind > OFFSET_GROUP || (what->state == OFFSETS_PLACE_TAKEN) != (what->kind != 0) || what->half > 1)
        abort();
    if (what->state == OFFSETS_PLACE_TAKEN &&
        bytes == OFFSETS_ENTRY_BYTES) { /* the next value goes into the other half and counts */
        offsets_half half = {.value = 7, .sequence = what->sequence + 1, .id = what->id, .kind = what->kind};
        offsets_encode_half(entry + (size_t)!what->half * OFFSETS_HALF_BYTES, &half);
        offsets_decode_place(entry, bytes, &again);
        if (again.state != OFFSETS_PLACE_TAKEN || again.id != what->id || again.value != 7 || again.half == what->half)
            abort();
    }
    s->taken += what->state == OFFSETS_PLACE_TAKEN;
    s->hurt += what->hurt;
    return 0;
}

static void mend(uint8_t *file, size_t size, size_t half) {
    for (size_t at = OFFSETS_HEAD_BYTES; at + half <= size; at += half) {
        file[at + 22] &= 0x7f; /* no sequence that nobody reaches */
        uint64_t checksum = XXH3_64bits(file + at, half - 8);
        memcpy(file + at + half - 8, &checksum, 8);
    }
}

static void put_head(uint8_t *file, bool first) {
    offsets_encode_head(file, 5);
    if (!first) return;
    file[8] = 1;
    file[12] = OFFSETS_FIRST_ENTRY_BYTES;
    uint64_t checksum = XXH3_64bits(file, 56);
    memcpy(file + 56, &checksum, 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    if (size < 1) return 0;
    if (fd < 0) fd = memfd_create("offsets", 0);
    size_t length = size - 1;
    bool first = (data[0] & 4) != 0;
    uint8_t *file = malloc(length + 1);
    memcpy(file, data + 1, length);
    if ((data[0] & 1) != 0) mend(file, length, first ? OFFSETS_FIRST_ENTRY_BYTES / 2 : OFFSETS_HALF_BYTES);
    if ((data[0] & 2) != 0 && length >= OFFSETS_HEAD_BYTES) put_head(file, first);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, file, length, 0) != (ssize_t)length) abort();
    seen s = {.file = file, .size = length};
    offsets_scan scan;
    /* the version of the entries comes first */
    if (offsets_scan_file(&disk_system, fd, 5, &scan, ignore, NULL) != 0) abort();
    s.entry_bytes = scan.entry_bytes;
    if (offsets_scan_file(&disk_system, fd, 5, &scan, visit, &s) != 0) abort();
    if (scan.places != s.places || scan.taken != s.taken || scan.hurt != s.hurt) abort();
    bool read = scan.head != OFFSETS_HEAD_FOREIGN && scan.head != OFFSETS_HEAD_UNKNOWN;
    size_t bytes = length > OFFSETS_HEAD_BYTES ? length - OFFSETS_HEAD_BYTES : 0;
    if (read && s.places != (bytes + s.entry_bytes - 1) / s.entry_bytes) abort();
    free(file);
    return 0;
}
