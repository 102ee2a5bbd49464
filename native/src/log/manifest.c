/* Manifests of segments. Only the head and the checkpoint slots are written here. */
#include "log/manifest.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "log/files.h"

#include <errno.h>
#include <fcntl.h>

#define BLOCK_SIZE 64u
#define VERSION 1u
#define VERSION_2 2u /* read, not made: docs/adr/0028-format-version-2.md */
#define TAG_SEALED 1u
#define SEALED_SIZE 48u
#define TAG_STORED 4u
#define STORED_SIZE 24u
#define TAG_COUNTED 5u
#define COUNTED_SIZE 8u
#define SECTION_EXTRA 16u /* tag and length before the bytes, the checksum behind */

static const uint8_t magic[8] = "SHRDMANI";

static void store_u64(uint8_t *out, uint64_t value) { memcpy(out, &value, sizeof value); }

static void seal_block(uint8_t *block) { store_u64(block + BLOCK_SIZE - 8, checksum_64(block, BLOCK_SIZE - 8)); }

static bool block_is_whole(const uint8_t *block) {
    return load_u64(block + BLOCK_SIZE - 8) == checksum_64(block, BLOCK_SIZE - 8);
}

static manifest_checkpoint load_checkpoint(const uint8_t *data) {
    return (manifest_checkpoint){load_u64(data), load_u64(data + 8), load_u64(data + 16), load_u64(data + 24)};
}

/* 0: nothing was ever written there, or not whole. */
static uint64_t slot_sequence(const uint8_t *slot) { return block_is_whole(slot) ? load_u64(slot) : 0; }

/* The newer slot; NULL: none. */
static const uint8_t *newest_slot(const uint8_t *manifest) {
    const uint8_t *a = manifest + BLOCK_SIZE, *b = a + BLOCK_SIZE;
    uint64_t of_a = slot_sequence(a), of_b = slot_sequence(b);
    return of_a == 0 && of_b == 0 ? NULL : of_a > of_b ? a : b;
}

static uint64_t slot_log_start(const uint8_t *slot) { return slot_sequence(slot) > 0 ? load_u64(slot + 40) : 0; }

static bool decode_sections(const uint8_t *data, size_t length, manifest *out) {
    for (size_t at = MANIFEST_BIRTH_SIZE; at < length;) {
        if (length - at < SECTION_EXTRA) return false;
        uint32_t tag = load_u32(data + at), bytes = load_u32(data + at + 4);
        if (bytes > length - at - SECTION_EXTRA) return false;
        const uint8_t *content = data + at + 8;
        if (load_u64(content + bytes) != checksum_64(data + at, bytes + 8u)) return false;
        if (tag == TAG_SEALED) {
            if (bytes != SEALED_SIZE || out->sealed.count > 0) return false;
            out->sealed = load_checkpoint(content);
        } else if (tag == TAG_STORED && out->compressed) {
            if (bytes != STORED_SIZE || out->stored_bytes > 0) return false;
            out->stored_bytes = load_u64(content);
        } else if (tag == TAG_COUNTED) {
            if (bytes != COUNTED_SIZE) return false;
            out->counted_us = load_u64(content);
        } else {
            out->others = true;
        }
        at += bytes + SECTION_EXTRA;
    }
    return true;
}

/* Bytes that are 0 in the versions that are known. In a slot that is not whole they say nothing. */
static bool slot_is_known(const uint8_t *slot) { return !block_is_whole(slot) || load_u64(slot + 48) == 0; }

/* What is in a head of version 2 and not in one of version 1, beside the layout. */
static bool decode_version_2(const uint8_t *data, manifest *out) {
    static const uint8_t nothing[3];
    out->sparse = (data[12] & MANIFEST_LAYOUT_SPARSE) != 0;
    out->compressed = (data[12] & MANIFEST_LAYOUT_COMPRESSED) != 0;
    out->end_offset = load_u64(data + 48);
    return (data[12] & ~(MANIFEST_LAYOUT_SPARSE | MANIFEST_LAYOUT_COMPRESSED)) == 0 &&
           memcmp(data + 13, nothing, sizeof nothing) == 0 && slot_is_known(data + BLOCK_SIZE) &&
           slot_is_known(data + (size_t)2 * BLOCK_SIZE);
}

/* A sparse segment is sealed and has fewer records than offsets; a compressed one is sealed. */
static bool fits_layout(const manifest *m) {
    if (m->compressed && (m->sealed.count == 0 || m->stored_bytes == 0)) return false;
    return !m->sparse || (m->sealed.count > 0 && m->end_offset > m->start_offset &&
                          m->end_offset - m->start_offset > m->sealed.count);
}

manifest_fault manifest_decode(const uint8_t *data, size_t length, manifest *out) {
    if (length < BLOCK_SIZE || memcmp(data, magic, sizeof magic) != 0 || !block_is_whole(data)) return MANIFEST_DAMAGED;
    uint32_t version = load_u32(data + 8);
    if (version != VERSION_2 && (version != VERSION || data[12] != MANIFEST_LAYOUT_PLAIN)) return MANIFEST_UNKNOWN;
    if (length < MANIFEST_BIRTH_SIZE) return MANIFEST_DAMAGED;
    *out = (manifest){.incarnation = load_u64(data + 16),
                      .start_offset = load_u64(data + 24),
                      .born_at = load_u64(data + 32)}; /* a sealer once wrote another log start into the head */
    if (version == VERSION_2 && !decode_version_2(data, out)) return MANIFEST_UNKNOWN;
    const uint8_t *newest = newest_slot(data);
    if (newest != NULL) out->checkpoint = load_checkpoint(newest + 8);
    for (size_t slot = 1; slot <= 2; slot++) {
        uint64_t log_start = slot_log_start(data + slot * BLOCK_SIZE);
        if (log_start > out->log_start_offset) out->log_start_offset = log_start;
    }
    return decode_sections(data, length, out) && fits_layout(out) ? MANIFEST_OK : MANIFEST_DAMAGED;
}

static void put_counted(uint8_t *section, uint64_t counted_us) {
    uint32_t head[2] = {TAG_COUNTED, COUNTED_SIZE};
    memcpy(section, head, sizeof head);
    store_u64(section + sizeof head, counted_us);
    store_u64(section + sizeof head + COUNTED_SIZE, checksum_64(section, sizeof head + COUNTED_SIZE));
}

int manifest_make(const disk *d, file_cache *cache, const char *path, const manifest *m) {
    uint8_t content[MANIFEST_BIRTH_SIZE + SECTION_EXTRA + COUNTED_SIZE] = {0};
    memcpy(content, magic, sizeof magic);
    content[8] = VERSION;
    content[12] = MANIFEST_LAYOUT_PLAIN;
    store_u64(content + 16, m->incarnation);
    store_u64(content + 24, m->start_offset);
    store_u64(content + 32, m->born_at);
    store_u64(content + 40, m->log_start_offset);
    seal_block(content);
    if (m->log_start_offset > 0) { /* a slot without records */
        store_u64(content + BLOCK_SIZE, 1);
        store_u64(content + BLOCK_SIZE + 40, m->log_start_offset);
        seal_block(content + BLOCK_SIZE);
    }
    /* What a failed attempt has left may name a later birth, when the clock went back since. */
    int fd = file_create_anew(d, cache, path);
    if (fd < 0) return -1;
    if (m->counted_us > 0) put_counted(content + MANIFEST_BIRTH_SIZE, m->counted_us);
    struct iovec part = {.iov_base = content, .iov_len = m->counted_us > 0 ? sizeof content : MANIFEST_BIRTH_SIZE};
    int result = file_write(d, fd, &part, 1, 0, NULL), error = errno;
    d->close(d->context, fd);
    errno = error;
    return result;
}

/* Puts the checkpoint into the older slot of an open file. */
static int put_slot(const disk *d, int fd, const manifest *m) {
    uint8_t present[MANIFEST_BIRTH_SIZE], slot[BLOCK_SIZE] = {0};
    if (file_read(d, fd, present, sizeof present, 0) != 0) return -1;
    if (!block_is_whole(present) || load_u64(present + 16) != m->incarnation ||
        load_u64(present + 24) != m->start_offset) {
        errno = EBADMSG; /* not that of this segment: nothing here is worth a checkpoint */
        return -1;
    }
    uint64_t a = slot_sequence(present + BLOCK_SIZE), b = slot_sequence(present + (size_t)2 * BLOCK_SIZE);
    store_u64(slot, (a > b ? a : b) + 1);
    const uint8_t *newest = newest_slot(present);
    manifest_checkpoint c = m->checkpoint;
    if (c.count == 0 && newest != NULL) c = load_checkpoint(newest + 8);
    store_u64(slot + 8, c.log_bytes);
    store_u64(slot + 16, c.count);
    store_u64(slot + 24, c.first_timestamp);
    store_u64(slot + 32, c.last_timestamp);
    store_u64(slot + 40, m->log_start_offset);
    seal_block(slot);
    struct iovec part = {.iov_base = slot, .iov_len = sizeof slot};
    return file_write(d, fd, &part, 1, a > b ? 2 * BLOCK_SIZE : BLOCK_SIZE, NULL);
}

int manifest_put_checkpoint(const disk *d, file_cache *cache, const char *path, const manifest *m) {
    int fd = file_open(d, cache, path, O_RDWR);
    if (fd < 0) return -1;
    int result = put_slot(d, fd, m), error = errno;
    d->close(d->context, fd);
    errno = error;
    return result;
}
