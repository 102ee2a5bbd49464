/* The file of the producers of a partition: producers.h has its table. */
#include "log/producers_file.h"

#include "base/bytes.h"
#include "log/files.h"
#include "log/producers_proof.h"
#include "log/producers_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static void put_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, sizeof value); }

static void path_of(const producers *p, char *out, size_t size) { snprintf(out, size, "%s/producers", p->directory); }

static uint64_t entry_at(uint32_t place) { return PRODUCERS_HEAD_BYTES + (uint64_t)place * PRODUCER_ENTRY_BYTES; }

/* ---- places ---- */

static void use_place(producers *p, uint32_t place) {
    if (place < PRODUCERS_OF_PARTITION_MAX) p->used[place / 64] |= UINT64_C(1) << place % 64;
    if (place >= p->places) p->places = place + 1;
}

static void leave_place(producers *p, uint32_t place) { /* one behind the bound is never used again */
    if (place < PRODUCERS_OF_PARTITION_MAX) p->used[place / 64] &= ~(UINT64_C(1) << place % 64);
}

/* The first place without an entry; UINT32_MAX: all places that a reader takes have one. */
static uint32_t free_place(const producers *p) {
    for (uint32_t i = 0; i < PRODUCERS_OF_PARTITION_MAX / 64; i++)
        if (p->used[i] != UINT64_MAX) return i * 64 + (uint32_t)__builtin_ctzll(~p->used[i]);
    return UINT32_MAX;
}

/* ---- bytes ---- */

static void encode_head(const producers *p, uint8_t *out) {
    memset(out, 0, PRODUCERS_HEAD_BYTES);
    put_u64(out, load_u64((const uint8_t *)PRODUCERS_MAGIC));
    put_u32(out + 8, VERSION);
    put_u32(out + 12, PRODUCER_ENTRY_BYTES);
    put_u64(out + 16, p->incarnation);
    put_u64(out + 24, p->barrier);
    memcpy(out + 32, p->memory->boot, sizeof p->memory->boot);
    put_u64(out + 56, producers_check(p->incarnation, 0, out, 56));
}

static void encode_covered(const producers *p, uint8_t out[HALF_BYTES]) {
    put_u64(out, p->covered);
    put_u64(out + 8, p->proven);
    put_u32(out + 16, p->covered_number);
    put_u32(out + 20, producers_half_batches(p->covering, p->durable));
    put_u64(out + 24, producers_check(p->incarnation, 0, out, 24));
}

static void encode_slot(const producers *p, uint64_t producer, const producer_slot *s, uint8_t out[SLOT_BYTES]) {
    memset(out, 0, SLOT_BYTES);
    if (s->epoch == UINT32_MAX) return;
    put_u64(out, s->sequence);
    put_u64(out + 8, s->first_offset);
    put_u32(out + 16, s->count);
    put_u32(out + 20, s->epoch);
    put_u64(out + 24, s->running);
    put_u64(out + 32, s->digest);
    put_u64(out + 56, producers_check(p->incarnation, producer, out, 56));
}

static void encode_entry(const producers *p, const producer_entry *e, uint8_t out[PRODUCER_ENTRY_BYTES]) {
    memset(out, 0, PRODUCER_ENTRY_BYTES);
    put_u64(out, e->producer);
    put_u64(out + 56, producers_check(p->incarnation, e->producer, out, 56));
    for (uint32_t i = 0; i < PRODUCER_SLOTS; i++)
        encode_slot(p, e->producer, &e->slots[i], out + ENTRY_HEAD_BYTES + (size_t)i * SLOT_BYTES);
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

/* The slots of one entry that the log proves. 1; 0: one of them has no records there, or is torn; -1: no memory. After
 * a power loss (`lossy`) slots behind the end may have overwritten the newest before it: then all is lost. */
static int take_entry(producers *p, const producers_layout *l, const uint8_t *at, uint32_t place, uint64_t end,
                      bool lossy) {
    uint64_t producer = load_u64(at), next = 0, behind = 0;
    uint32_t epoch = 0, last = 0;
    bool any = false, proven = true;
    producer_slot s;
    if (load_u64(at + 56) != producers_check(p->incarnation, producer, at, 56))
        return 1; /* free, or its birth was torn */
    const uint8_t *slots = at + ENTRY_HEAD_BYTES;
    for (const uint8_t *slot = slots; slot < at + l->entry_bytes; slot += l->slot_bytes) {
        if (!producers_slot(l, p->incarnation, producer, slot, &s)) {
            p->lost |= lossy && !producers_is_zero(slot, l->slot_bytes);
            continue;
        }
        bool there = producers_there(&s, end);
        p->lost |= producers_ends_inside(&s, end); /* a part of it is there: nobody may send it again as if none were */
        if (there && s.epoch > epoch) epoch = s.epoch;
        if (s.epoch > last) last = s.epoch;
        any |= there;
        proven &= there;
    }
    for (const uint8_t *slot = slots; slot < at + l->entry_bytes; slot += l->slot_bytes) {
        if (!producers_slot(l, p->incarnation, producer, slot, &s) || s.epoch != last) continue;
        bool there = producers_there(&s, end);
        uint64_t *most = there ? &next : &behind;
        if (s.running >= *most) *most = s.running + 1;
    }
    p->lost |= lossy && behind > next + PRODUCER_SLOTS;
    p->lost |= any && p->count >= PRODUCERS_OF_PARTITION_MAX;
    if (!any || p->lost) return proven;
    producer_entry *e = producers_add(p, producer);
    if (e == NULL) {
        errno = ENOMEM;
        return -1;
    }
    e->place = place;
    use_place(p, place);
    for (uint32_t i = 0; i < PRODUCER_SLOTS; i++)
        if (producers_slot(l, p->incarnation, producer, slots + (size_t)i * l->slot_bytes, &s) && s.epoch == epoch &&
            producers_there(&s, end))
            producers_take(e, &s);
    return proven;
}

/* Those of a file that has just been made, in the order of the table. */
static void number_places(producers *p) {
    p->places = 0;
    memset(p->used, 0, sizeof p->used);
    p->counted = p->covering = 0;
    for (uint32_t i = 0; i < p->capacity; i++) {
        producer_entry *e = p->table[i];
        if (e == NULL) continue;
        e->place = p->places;
        use_place(p, e->place);
        for (uint32_t k = 0; k < PRODUCER_SLOTS; k++)
            if (e->slots[k].epoch != UINT32_MAX) producers_count(p, e->slots[k].count);
    }
}

/* The file anew, of what is in memory. What it had before may come back with a power loss: `covered` tells then. */
static int make_file(producers *p) {
    char path[FILE_PATH_MAX];
    uint32_t place = 0;
    size_t length = entry_at(p->count);
    if (length > PRODUCERS_FILE_BYTES_MAX) {
        errno = EFBIG;
        return -1;
    }
    uint8_t *content = calloc(1, length);
    if (content == NULL) {
        errno = ENOMEM;
        return -1;
    }
    encode_head(p, content);
    for (uint32_t i = 0; i < p->capacity; i++)
        if (p->table[i] != NULL) encode_entry(p, p->table[i], content + entry_at(place++));
    path_of(p, path, sizeof path);
    int fd = file_make_whole(p->disk, p->files, path, content, length), error = errno;
    free(content);
    errno = error;
    if (fd < 0) return -1;
    cache(p, fd);
    number_places(p);
    p->covered = p->proven = UINT64_MAX;
    p->covered_number = 0;
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
        if (n < 0 || have > PRODUCERS_FILE_READ_MAX) {
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

static int put(producers *p, const uint8_t *bytes, size_t length, uint64_t at);

/* It was written at level durable, and this one is another: what comes now may be acknowledged without a sync. */
static void unflag(producers *p, const uint8_t *content) {
    for (uint32_t at = COVERED_AT; at < PRODUCERS_HEAD_BYTES; at += HALF_BYTES) {
        uint8_t half[HALF_BYTES];
        memcpy(half, content + at, HALF_BYTES);
        if (load_u64(half + 24) != producers_check(p->incarnation, 0, half, 24)) continue;
        if (!producers_half_unflag(half)) continue;
        put_u64(half + 24, producers_check(p->incarnation, 0, half, 24));
        put(p, half, HALF_BYTES, at);
    }
}

static int take_content(producers *p, const uint8_t *content, size_t length, uint64_t end) {
    producers_layout l;
    bool whole = length >= PRODUCERS_HEAD_BYTES && memcmp(content, PRODUCERS_MAGIC, 8) == 0 &&
                 load_u64(content + 56) == producers_check(p->incarnation, 0, content, 56);
    if (!whole) return forget_all(p);
    if (!producers_layout_of(content, length, &l)) {
        errno = EPROTO;
        return -1;
    }
    p->barrier = load_u64(content + 24);
    bool same_boot = memcmp(content + 32, p->memory->boot, sizeof p->memory->boot) == 0, proven = l.version == VERSION;
    bool has_halves = l.version >= VERSION_WITHOUT_DIGESTS;
    if (!same_boot && (!has_halves || !producers_prove(content, length, p->incarnation, end))) return forget_all(p);
    uint32_t places = (uint32_t)((length - PRODUCERS_HEAD_BYTES) / l.entry_bytes);
    for (uint32_t place = 0; place < places; place++) {
        const uint8_t *entry = content + PRODUCERS_HEAD_BYTES + (size_t)place * l.entry_bytes;
        int taken = take_entry(p, &l, entry, place, end, !same_boot);
        if (taken < 0) return -1;
        proven &= taken > 0;
    }
    p->places = places;
    if (p->lost) return forget_all(p);
    if (!same_boot || !proven || places > PRODUCERS_OF_PARTITION_MAX || length != entry_at(places)) return make_file(p);
    for (const uint8_t *half = content + COVERED_AT; half < content + PRODUCERS_HEAD_BYTES; half += HALF_BYTES)
        if (load_u64(half + 24) == producers_check(p->incarnation, 0, half, 24) &&
            load_u32(half + 16) > p->covered_number)
            p->covered_number = load_u32(half + 16);
    if (!p->durable) unflag(p, content);
    p->counted = PRODUCERS_UNCOUNTED; /* some of its slots are of epochs that have ended */
    return 0;
}

/* Whether there was a file that could not be read, and the log has gone on without it. */
static bool is_set_aside(const producers *p) {
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof path, "%s/" PRODUCERS_UNREADABLE, p->directory);
    int fd = file_open(p->disk, p->files, path, O_RDONLY);
    if (fd >= 0) p->disk->close(p->disk->context, fd);
    return fd >= 0 || errno != ENOENT;
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
    if (fd < 0 && errno != ENOENT) return -1;
    if (fd < 0) {
        p->renewed = is_set_aside(p);
        return p->renewed ? forget_all(p) : 0;
    }
    int result = read_all(p, fd, &content, &length), error = errno;
    p->disk->close(p->disk->context, fd);
    errno = error;
    if (result != 0) return error == EFBIG ? forget_all(p) : -1;
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
        uint32_t place = free_place(p);
        if (place == UINT32_MAX) { /* never: there are fewer producers than places */
            errno = EFBIG;
            return -1;
        }
        encode_entry(p, e, bytes);
        if (put(p, bytes, PRODUCER_ENTRY_BYTES, entry_at(place)) != 0) return -1;
        e->place = place;
        use_place(p, place);
    }
    encode_slot(p, e->producer, s, bytes);
    uint64_t at = entry_at(e->place) + ENTRY_HEAD_BYTES + s->running % PRODUCER_SLOTS * SLOT_BYTES;
    return put(p, bytes, SLOT_BYTES, at);
}

void producers_file_drop(producers *p, producer_entry *e) {
    static const uint8_t none[PRODUCER_ENTRY_BYTES];
    p->counted += PRODUCERS_UNCOUNTED;
    if (e->place == UINT32_MAX) return;
    put(p, none, sizeof none, entry_at(e->place));
    leave_place(p, e->place);
}

void producers_count(producers *p, uint32_t messages) { p->counted += messages > 0 ? 1 : PRODUCERS_UNCOUNTED; }

static int put_covered(producers *p) {
    uint8_t bytes[HALF_BYTES];
    encode_covered(p, bytes);
    return put(p, bytes, HALF_BYTES, COVERED_AT + p->covered_number % 2 * HALF_BYTES);
}

bool producers_cover(producers *p, uint64_t end, bool durable) {
    if (!p->exists) return true;
    if (p->lost) p->counted |= PRODUCERS_UNCOUNTED; /* the end is said all the same: it may be acknowledged */
    if (p->covered == end && p->covering == p->counted && p->durable == durable) return true;
    p->covered = end;
    p->covering = p->counted;
    p->durable = durable;
    p->covered_number++;
    if (put_covered(p) == 0) return true;
    p->covered = UINT64_MAX; /* less is known later */
    p->covered_number--;     /* the one before is not overwritten by what comes next */
    return false;
}

void producers_not_durable(producers *p) {
    if (!p->durable || p->covered == UINT64_MAX) return;
    p->durable = false;
    put_covered(p);
}

void producers_covered(producers *p) {
    if (p->covered == UINT64_MAX) return;
    p->proven = p->covered;
    p->counted -= p->covering;
    bool uncounted = p->covering >= PRODUCERS_UNCOUNTED;
    p->dirty |= uncounted && !p->lost; /* the next one says that this one has succeeded */
    p->covering = uncounted ? PRODUCERS_UNCOUNTED : 0;
}

int producers_duplicate(producers *p) { return open_file(p) == 0 ? file_duplicate(p->disk, p->files, p->fd) : -1; }
