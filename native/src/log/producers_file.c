/* The file of the producers of a partition: producers.h has its table. */
#include "log/producers_file.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "log/partition_files.h"
#include "log/producers_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 2u
#define VERSION_FIRST 1u
#define COVERED_AT 64u
#define HALF_BYTES 32u
#define SLOT_BYTES 32u
#define ENTRY_HEAD_BYTES 64u

static const uint8_t magic[8] = "SHRDPROD";

static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static void put_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, sizeof value); }

static uint64_t check_of(const producers *p, uint64_t producer, const uint8_t *bytes, size_t length) {
    uint8_t all[16 + ENTRY_HEAD_BYTES];
    put_u64(all, p->incarnation);
    put_u64(all + 8, producer);
    memcpy(all + 16, bytes, length);
    return checksum_64(all, 16 + length);
}

static void path_of(const producers *p, char *out, size_t size) { snprintf(out, size, "%s/producers", p->directory); }

static uint64_t entry_at(uint32_t place) { return PRODUCERS_HEAD_BYTES + (uint64_t)place * PRODUCER_ENTRY_BYTES; }

/* ---- bytes ---- */

static void encode_head(const producers *p, uint8_t *out) {
    memset(out, 0, PRODUCERS_HEAD_BYTES);
    memcpy(out, magic, sizeof magic);
    put_u32(out + 8, VERSION);
    put_u32(out + 12, PRODUCER_ENTRY_BYTES);
    put_u64(out + 16, p->incarnation);
    put_u64(out + 24, p->barrier);
    memcpy(out + 32, p->memory->boot, sizeof p->memory->boot);
    put_u64(out + 56, check_of(p, 0, out, 56));
}

static void encode_covered(const producers *p, uint8_t out[HALF_BYTES]) {
    put_u64(out, p->covered);
    put_u64(out + 8, p->proven);
    put_u32(out + 16, p->covered_number);
    put_u32(out + 20, p->covering < UINT32_MAX ? (uint32_t)p->covering : UINT32_MAX);
    put_u64(out + 24, check_of(p, 0, out, 24));
}

static void encode_slot(const producers *p, uint64_t producer, const producer_slot *s, uint8_t out[SLOT_BYTES]) {
    memset(out, 0, SLOT_BYTES);
    if (s->epoch == UINT32_MAX) return;
    put_u64(out, s->sequence);
    put_u64(out + 8, s->first_offset);
    put_u32(out + 16, s->count);
    put_u32(out + 20, s->epoch);
    put_u64(out + 24, check_of(p, producer, out, 24));
}

static void encode_entry(const producers *p, const producer_entry *e, uint8_t out[PRODUCER_ENTRY_BYTES]) {
    memset(out, 0, PRODUCER_ENTRY_BYTES);
    put_u64(out, e->producer);
    put_u64(out + 56, check_of(p, e->producer, out, 56));
    for (uint32_t i = 0; i < PRODUCER_SLOTS; i++)
        encode_slot(p, e->producer, &e->slots[i], out + ENTRY_HEAD_BYTES + (size_t)i * SLOT_BYTES);
}

static producer_slot slot_in(const uint8_t *at) {
    return (producer_slot){load_u64(at), load_u64(at + 8), load_u32(at + 16), load_u32(at + 20)};
}

static bool decode_slot(const producers *p, uint64_t producer, const uint8_t *at, producer_slot *out) {
    *out = slot_in(at);
    return load_u64(at + 24) == check_of(p, producer, at, 24) && out->epoch != UINT32_MAX;
}

/* ---- the descriptor, one of those that the worker keeps for small files ---- */

void producers_file_close(producers *p) {
    if (p->fd < 0) return;
    p->disk->close(p->disk->context, p->fd);
    file_list_remove(&p->files->offset_files, &p->listed);
    p->fd = -1;
}

static bool give_up(cached_file *listed) {
    producers_file_close((producers *)(void *)((uint8_t *)listed - offsetof(producers, listed)));
    return true;
}

/* Takes over the descriptor. */
static void cache(producers *p, int fd) {
    file_cache *c = p->files;
    producers_file_close(p);
    while (c->offset_files.count >= c->budget.offset_files && file_list_give_up(&c->offset_files)) {
    }
    p->listed = (cached_file){.give_up = give_up};
    p->fd = fd;
    file_list_add(&c->offset_files, &p->listed);
}

static int open_file(producers *p) {
    char path[FILE_PATH_MAX];
    if (p->fd >= 0) {
        file_list_use(&p->files->offset_files, &p->listed);
        return 0;
    }
    path_of(p, path, sizeof path);
    int fd = file_open(p->disk, p->files, path, O_RDWR);
    if (fd < 0) return -1;
    cache(p, fd);
    return 0;
}

/* ---- reading ---- */

static bool is_there(const producer_slot *s, uint64_t end) {
    return s->first_offset <= end && s->count <= end - s->first_offset;
}

static bool ends_inside(const producer_slot *s, uint64_t end) {
    return s->first_offset < end && s->count > end - s->first_offset;
}

static bool is_zero(const uint8_t *at) {
    static const uint8_t none[SLOT_BYTES];
    return memcmp(at, none, SLOT_BYTES) == 0;
}

/* The slots of one entry that the log proves. False: one of them has no records there, or is torn, or there was no
 * room. After a power loss (`lossy`) slots behind the end may have overwritten the newest before it: then all is
 * lost. */
static bool take_entry(producers *p, const uint8_t *at, uint32_t place, uint64_t end, bool lossy) {
    uint64_t producer = load_u64(at), next = 0, behind = 0;
    uint32_t epoch = 0, last = 0;
    bool any = false, proven = true;
    producer_slot s;
    if (load_u64(at + 56) != check_of(p, producer, at, 56)) return true; /* free, or its birth was torn */
    const uint8_t *slots = at + ENTRY_HEAD_BYTES;
    for (const uint8_t *slot = slots; slot < at + PRODUCER_ENTRY_BYTES; slot += SLOT_BYTES) {
        if (!decode_slot(p, producer, slot, &s)) {
            p->lost |= lossy && !is_zero(slot);
            continue;
        }
        bool there = is_there(&s, end);
        p->lost |= ends_inside(&s, end); /* a part of it is there: nobody may send it again as if none were */
        if (there && s.epoch > epoch) epoch = s.epoch;
        if (s.epoch > last) last = s.epoch;
        any |= there;
        proven &= there;
    }
    for (const uint8_t *slot = slots; slot < at + PRODUCER_ENTRY_BYTES; slot += SLOT_BYTES) {
        if (!decode_slot(p, producer, slot, &s) || s.epoch != last) continue;
        bool there = is_there(&s, end);
        uint64_t *most = there ? &next : &behind;
        if (s.sequence >= *most) *most = s.sequence + 1;
    }
    p->lost |= lossy && behind > next + PRODUCER_SLOTS;
    if (!any || p->lost) return proven;
    producer_entry *e = producers_enter(p, producer);
    if (e == NULL) {
        p->lost = true;
        return false;
    }
    e->place = place;
    for (uint32_t i = 0; i < PRODUCER_SLOTS; i++)
        if (decode_slot(p, producer, slots + (size_t)i * SLOT_BYTES, &s) && s.epoch == epoch && is_there(&s, end))
            producers_take(e, &s);
    return proven;
}

/* Slots of batches with messages that end behind `from` and not behind `to`. */
static uint64_t count_slots(const producers *p, const uint8_t *content, size_t length, uint64_t from, uint64_t to) {
    uint64_t count = 0;
    for (uint64_t at = PRODUCERS_HEAD_BYTES; at + PRODUCER_ENTRY_BYTES <= length; at += PRODUCER_ENTRY_BYTES) {
        const uint8_t *slots = content + at + ENTRY_HEAD_BYTES;
        uint64_t producer = load_u64(content + at);
        producer_slot s;
        if (load_u64(content + at + 56) != check_of(p, producer, content + at, 56)) continue;
        for (uint32_t i = 0; i < PRODUCER_SLOTS; i++)
            count += decode_slot(p, producer, slots + (size_t)i * SLOT_BYTES, &s) && s.count > 0 && is_there(&s, to) &&
                     s.first_offset + s.count > from;
    }
    return count;
}

bool producers_end_inside(const uint8_t *content, size_t length, uint64_t incarnation, uint64_t end) {
    const producers p = {.incarnation = incarnation};
    for (uint64_t at = PRODUCERS_HEAD_BYTES; at + PRODUCER_ENTRY_BYTES <= length; at += PRODUCER_ENTRY_BYTES) {
        const uint8_t *slot = content + at + ENTRY_HEAD_BYTES;
        for (uint32_t i = 0; i < PRODUCER_SLOTS; i++, slot += SLOT_BYTES) {
            producer_slot s = slot_in(slot); /* nearly all are before the end: no checksum is computed for them */
            if (ends_inside(&s, end) && decode_slot(&p, load_u64(content + at), slot, &s)) return true;
        }
    }
    return false;
}

/* Whether all slots of a log that ends there were on the device: a sync is known to have brought them, or none is
 * missing of those that a sync was to bring. One that a later batch has overwritten is missing, too: take_entry() looks
 * for what that hides of those that were there. */
static bool proves(const producers *p, const uint8_t *content, size_t length, uint64_t end) {
    for (const uint8_t *half = content + COVERED_AT; half < content + PRODUCERS_HEAD_BYTES; half += HALF_BYTES) {
        uint64_t proven = load_u64(half + 8);
        uint32_t count = load_u32(half + 20);
        if (load_u64(half + 24) != check_of(p, 0, half, 24)) continue;
        if (proven == end) return true;
        if (load_u64(half) != end || count == UINT32_MAX) continue;
        if (count_slots(p, content, length, proven == UINT64_MAX ? 0 : proven, end) == count) return true;
    }
    return false;
}

/* The file anew, of what is in memory. What it had before may come back with a power loss: `covered` tells then. */
static int make_file(producers *p) {
    char path[FILE_PATH_MAX];
    uint32_t place = 0;
    size_t length = entry_at(p->count);
    uint8_t *content = calloc(1, length);
    if (content == NULL) {
        errno = ENOMEM;
        return -1;
    }
    producers_file_close(p);
    p->covered = p->proven = UINT64_MAX;
    p->covered_number = 0;
    p->counted = p->covering = 0;
    encode_head(p, content);
    for (uint32_t i = 0; i < p->capacity; i++) {
        if (p->table[i] == NULL) continue;
        p->table[i]->place = place;
        for (uint32_t k = 0; k < PRODUCER_SLOTS; k++)
            if (p->table[i]->slots[k].epoch != UINT32_MAX) producers_count(p, p->table[i]->slots[k].count);
        encode_entry(p, p->table[i], content + entry_at(place++));
    }
    p->places = place;
    path_of(p, path, sizeof path);
    int fd = file_make_whole(p->disk, p->files, path, content, length), error = errno;
    free(content);
    errno = error;
    if (fd < 0) return -1;
    cache(p, fd);
    p->exists = p->dirty = p->directory_dirty = true;
    return 0;
}

static int read_all(producers *p, int fd, uint8_t **content, size_t *length) {
    size_t capacity = entry_at(4), have = 0;
    uint8_t *bytes = malloc(capacity);
    for (;;) {
        ssize_t n = -1;
        if (bytes != NULL) n = p->disk->pread(p->disk->context, fd, bytes + have, capacity - have, (off_t)have);
        if (n < 0 && bytes != NULL && errno == EINTR) continue;
        if (n > 0) have += (size_t)n;
        if (n < 0 || have > PRODUCERS_FILE_BYTES_MAX) {
            free(bytes);
            if (n >= 0) errno = EFBIG;
            return -1;
        }
        if (n == 0) break;
        if (have < capacity) continue;
        uint8_t *larger = realloc(bytes, capacity *= 2);
        if (larger == NULL) free(bytes);
        bytes = larger;
    }
    *content = bytes;
    *length = have;
    return 0;
}

/* What is in memory and in the file can be trusted from now on, at the price of what is forgotten. */
static int forget_all(producers *p) {
    producers_clear(p);
    p->lost = false;
    if (p->memory->known_last > p->barrier) p->barrier = p->memory->known_last;
    return make_file(p);
}

static int take_content(producers *p, const uint8_t *content, size_t length, uint64_t end) {
    bool whole = length >= PRODUCERS_HEAD_BYTES && memcmp(content, magic, sizeof magic) == 0 &&
                 load_u64(content + 56) == check_of(p, 0, content, 56);
    if (!whole) return forget_all(p);
    uint32_t version = load_u32(content + 8);
    if (version < VERSION_FIRST || version > VERSION || load_u32(content + 12) != PRODUCER_ENTRY_BYTES) {
        errno = EPROTO;
        return -1;
    }
    p->barrier = load_u64(content + 24);
    bool same_boot = memcmp(content + 32, p->memory->boot, sizeof p->memory->boot) == 0, proven = version == VERSION;
    if (!same_boot && (version != VERSION || !proves(p, content, length, end))) return forget_all(p);
    for (uint64_t at = PRODUCERS_HEAD_BYTES; at + PRODUCER_ENTRY_BYTES <= length; at += PRODUCER_ENTRY_BYTES)
        proven &= take_entry(p, content + at, p->places++, end, !same_boot);
    if (p->lost) return forget_all(p);
    if (!same_boot || !proven || length != entry_at(p->places)) return make_file(p);
    for (const uint8_t *half = content + COVERED_AT; half < content + PRODUCERS_HEAD_BYTES; half += HALF_BYTES)
        if (load_u64(half + 24) == check_of(p, 0, half, 24) && load_u32(half + 16) > p->covered_number)
            p->covered_number = load_u32(half + 16);
    p->counted = PRODUCERS_UNCOUNTED; /* some of its slots are of epochs that have ended */
    return 0;
}

int producers_open(producers *p, uint64_t end) {
    char path[FILE_PATH_MAX];
    uint8_t *content;
    size_t length;
    path_of(p, path, sizeof path);
    p->fd = -1;
    p->barrier = p->memory->barrier;
    p->covered = p->proven = UINT64_MAX;
    int fd = file_open(p->disk, p->files, path, O_RDONLY);
    if (fd < 0) return errno == ENOENT ? 0 : -1;
    int result = read_all(p, fd, &content, &length), error = errno;
    p->disk->close(p->disk->context, fd);
    errno = error;
    if (result != 0) return -1;
    p->exists = p->dirty = true;
    result = take_content(p, content, length, end);
    error = errno;
    free(content);
    errno = error;
    return result;
}

/* ---- writing ---- */

static int put(producers *p, const uint8_t *bytes, size_t length, uint64_t at) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    if (open_file(p) != 0) return -1;
    p->dirty = true;
    return file_write(p->disk, p->fd, &part, 1, at, NULL);
}

int producers_file_put(producers *p, producer_entry *e, const producer_slot *s) {
    uint8_t bytes[PRODUCER_ENTRY_BYTES];
    if (!p->exists && make_file(p) != 0) return -1;
    if (e->place == UINT32_MAX) { /* its place is used only once it is whole */
        encode_entry(p, e, bytes);
        if (put(p, bytes, PRODUCER_ENTRY_BYTES, entry_at(p->places)) != 0) return -1;
        e->place = p->places++;
    }
    encode_slot(p, e->producer, s, bytes);
    uint64_t at = entry_at(e->place) + ENTRY_HEAD_BYTES + s->sequence % PRODUCER_SLOTS * SLOT_BYTES;
    return put(p, bytes, SLOT_BYTES, at);
}

void producers_file_drop(producers *p, producer_entry *e) {
    static const uint8_t none[PRODUCER_ENTRY_BYTES];
    p->counted += PRODUCERS_UNCOUNTED;
    if (e->place != UINT32_MAX) put(p, none, sizeof none, entry_at(e->place));
}

void producers_count(producers *p, uint32_t messages) { p->counted += messages > 0 ? 1 : PRODUCERS_UNCOUNTED; }

void producers_cover(producers *p, uint64_t end) {
    uint8_t bytes[HALF_BYTES];
    if (!p->exists || p->lost || (p->covered == end && p->covering == p->counted)) return;
    p->covered = end;
    p->covering = p->counted;
    p->covered_number++;
    encode_covered(p, bytes);
    if (put(p, bytes, HALF_BYTES, COVERED_AT + p->covered_number % 2 * HALF_BYTES) != 0)
        p->covered = UINT64_MAX; /* less is known later */
}

void producers_covered(producers *p) {
    if (p->covered == UINT64_MAX) return;
    p->proven = p->covered;
    p->counted -= p->covering;
    p->dirty |= p->covering >= PRODUCERS_UNCOUNTED; /* the next one says that this one has succeeded */
    p->covering = p->covering >= PRODUCERS_UNCOUNTED ? PRODUCERS_UNCOUNTED : 0;
}

int producers_duplicate(producers *p) { return open_file(p) == 0 ? file_duplicate(p->disk, p->files, p->fd) : -1; }
