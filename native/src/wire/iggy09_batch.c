/* See iggy09_batch.h. */
#include "wire/iggy09_batch.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/identifier.h"
#include "base/status.h"

#include <string.h>

static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }
static void put_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, 8); }

/* ---- checksum of a batch: 44 bytes of its head, then the checksums of its frames ---- */

static void digest_begin(iggy09_digest *d, const uint8_t *head) {
    memcpy(d->pending, head, 40);
    memcpy(d->pending + 40, head + 48, 4);
    d->length = 44;
    d->flushed = false;
}

static void digest_add(iggy09_digest *d, const uint8_t *checksum) {
    if (d->length + 8 > sizeof d->pending) {
        if (!d->flushed) XXH3_64bits_reset(&d->state);
        d->flushed = true;
        checksum_update(&d->state, d->pending, d->length);
        d->length = 0;
    }
    memcpy(d->pending + d->length, checksum, 8);
    d->length += 8;
}

static uint64_t digest_end(iggy09_digest *d) {
    if (!d->flushed) return checksum_64(d->pending, d->length);
    checksum_update(&d->state, d->pending, d->length);
    return XXH3_64bits_digest(&d->state);
}

/* ---- a SEND ---- */

/* Everything before the batch. The count is where the metadata ends. */
static uint32_t read_metadata(const uint8_t *payload, size_t length, send_request *out) {
    *out = (send_request){0};
    if (length < 4) return STATUS_INVALID_COMMAND;
    size_t metadata_length = load_u32(payload);
    if (metadata_length > length - 4) return STATUS_INVALID_COMMAND;
    const uint8_t *at = payload + 4, *end = at + metadata_length;
    out->address = at;
    out->stream_length = identifier_length(at, (size_t)(end - at));
    if (out->stream_length == 0) return STATUS_INVALID_IDENTIFIER;
    at += out->stream_length;
    out->topic_length = identifier_length(at, (size_t)(end - at));
    if (out->topic_length == 0) return STATUS_INVALID_IDENTIFIER;
    at += out->topic_length;
    if (end - at < 2 || end - at != 2 + at[1] + 4) return STATUS_INVALID_COMMAND;
    uint32_t size = at[1];
    out->partitioning = at[0];
    bool good = (at[0] == PARTITIONING_BALANCED && size == 0) || (at[0] == PARTITIONING_PARTITION_ID && size == 4) ||
                (at[0] == PARTITIONING_MESSAGES_KEY && size > 0);
    if (!good) return STATUS_INVALID_COMMAND;
    if (at[0] == PARTITIONING_PARTITION_ID) out->partition_id = load_u32(at + 2);
    out->key = at + 2;
    out->key_length = size;
    out->count = load_u32(end - 4);
    return out->count == 0 ? STATUS_INVALID_COMMAND : STATUS_OK;
}

static bool is_zero(const uint8_t *at, size_t length) {
    uint8_t any = 0;
    for (size_t i = 0; i < length; i++) any |= at[i];
    return any == 0;
}

uint32_t iggy09_send_read(const uint8_t *payload, size_t length, iggy09_send *out) {
    send_request q;
    uint32_t status = read_metadata(payload, length, &q);
    if (status != STATUS_OK) return status;
    out->metadata_bytes = 4 + load_u32(payload);
    out->count = q.count;
    const uint8_t *batch = payload + out->metadata_bytes;
    size_t left = length - out->metadata_bytes;
    if (left < IGGY09_BATCH_HEAD || load_u64(batch + 32) != left || load_u32(batch + 48) != q.count ||
        !is_zero(batch + 52, IGGY09_BATCH_HEAD - 52))
        return STATUS_INVALID_COMMAND;
    if (q.count > (left - IGGY09_BATCH_HEAD) / IGGY09_FRAME_HEAD) return STATUS_INVALID_COMMAND;
    out->records_bytes = left - IGGY09_BATCH_HEAD + (uint64_t)q.count * (RECORD_HEADER_SIZE - IGGY09_FRAME_HEAD);
    return STATUS_OK;
}

void iggy09_unpack_begin(iggy09_unpacking *u, const uint8_t *payload, size_t length, const iggy09_send *s,
                         uint8_t *to) {
    const uint8_t *batch = payload + s->metadata_bytes;
    u->frame = batch + IGGY09_BATCH_HEAD;
    u->end = payload + length;
    u->to = to + s->metadata_bytes;
    u->origin = load_u64(batch + 24);
    u->checksum = load_u64(batch + 40);
    u->next = 0;
    u->count = s->count;
    u->wrong_checksum = false;
    digest_begin(&u->digest, batch);
    memmove(to, payload, s->metadata_bytes); /* ends before the first frame */
}

/* 0, or the status of a frame that cannot be one. */
static uint32_t unpack_frame(iggy09_unpacking *u) {
    uint8_t head[IGGY09_FRAME_HEAD];
    if ((size_t)(u->end - u->frame) < sizeof head) return STATUS_INVALID_COMMAND;
    memcpy(head, u->frame, sizeof head);
    uint32_t user_headers = load_u32(head + 32), payload = load_u32(head + 36);
    uint64_t rest = (uint64_t)user_headers + payload, size = sizeof head + rest;
    if (size > (uint64_t)(u->end - u->frame) || load_u32(head + 24) != u->next || load_u64(head + 40) != 0)
        return STATUS_INVALID_COMMAND;
    if (payload > PAYLOAD_SIZE_MAX) return STATUS_TOO_BIG_MESSAGE_PAYLOAD;
    if (user_headers > USER_HEADERS_SIZE_MAX) return STATUS_TOO_BIG_USER_HEADERS;
    if (checksum_64(u->frame + 8, size - 8) != load_u64(head)) u->wrong_checksum = true;
    digest_add(&u->digest, head);
    uint8_t *to = u->to;
    if (to + RECORD_HEADER_SIZE != u->frame + sizeof head)
        memmove(to + RECORD_HEADER_SIZE, u->frame + sizeof head, rest);
    memset(to, 0, RECORD_HEADER_SIZE);
    memcpy(to + 8, head + 8, 16);
    put_u64(to + 40, u->origin + load_u32(head + 28));
    memcpy(to + 48, head + 32, 8);
    u->frame += size;
    u->to += RECORD_HEADER_SIZE + rest;
    u->next++;
    return STATUS_OK;
}

bool iggy09_unpack_part(iggy09_unpacking *u, size_t bytes, uint32_t *status) {
    for (const uint8_t *from = u->frame; u->next < u->count;) {
        if ((size_t)(u->frame - from) >= bytes) return false;
        *status = unpack_frame(u);
        if (*status != STATUS_OK) return true;
    }
    if (u->frame != u->end) *status = STATUS_INVALID_COMMAND;
    else if (u->wrong_checksum) *status = STATUS_INVALID_MESSAGE_CHECKSUM;
    else *status = digest_end(&u->digest) == u->checksum ? STATUS_OK : STATUS_INVALID_BATCH_CHECKSUM;
    return true;
}

uint32_t iggy09_send_request(uint8_t *unpacked, size_t length, send_request *out) {
    uint32_t status = read_metadata(unpacked, length, out);
    if (status != STATUS_OK) return status;
    size_t metadata_bytes = 4 + (size_t)load_u32(unpacked);
    out->messages = unpacked + metadata_bytes;
    out->messages_length = length - metadata_bytes;
    return STATUS_OK;
}

/* ---- what was polled ---- */

typedef struct run { /* records that become one batch */
    const uint8_t *end;
    uint64_t first_offset, timestamp, origin;
    size_t bytes; /* of the frames */
    uint32_t count;
} run;

/* Length of the record that begins there; 0: it is not whole. */
static size_t record_bytes(const uint8_t *at, const uint8_t *end) {
    if ((size_t)(end - at) < RECORD_HEADER_SIZE) return 0;
    uint64_t size = (uint64_t)RECORD_HEADER_SIZE + load_u32(at + 48) + load_u32(at + 52);
    return size <= (uint64_t)(end - at) ? (size_t)size : 0;
}

/* As many as have one timestamp, offsets without a gap, origin timestamps that fit, and one part to go in. */
static bool take_run(const uint8_t *at, const uint8_t *end, bool alone, run *out) {
    size_t size = record_bytes(at, end);
    if (size == 0) return false;
    *out = (run){.first_offset = load_u64(at + 24), .timestamp = load_u64(at + 32), .origin = load_u64(at + 40)};
    uint64_t latest = out->origin;
    do {
        uint64_t origin = load_u64(at + 40), low = origin < out->origin ? origin : out->origin;
        uint64_t high = origin > latest ? origin : latest;
        bool fits = high - low <= UINT32_MAX && load_u64(at + 32) == out->timestamp &&
                    load_u64(at + 24) == out->first_offset + out->count;
        size_t frame = size - (RECORD_HEADER_SIZE - IGGY09_FRAME_HEAD);
        fits = fits && IGGY09_BATCH_HEAD + out->bytes + frame <= IGGY09_PART_BYTES;
        if (out->count > 0 && (alone || !fits)) break;
        out->origin = low;
        latest = high;
        out->count++;
        out->bytes += frame;
        at += size;
    } while ((size = record_bytes(at, end)) > 0);
    out->end = at;
    return true;
}

size_t iggy09_batches_bytes(const uint8_t *records, size_t length, bool alone) {
    const uint8_t *end = records + length;
    size_t bytes = 0;
    for (run r; records < end; records = r.end) {
        if (!take_run(records, end, alone, &r)) return 0;
        bytes += IGGY09_BATCH_HEAD + r.bytes;
    }
    return bytes;
}

static void put_batch_head(const run *r, uint32_t partition, uint8_t *head) {
    memset(head, 0, IGGY09_BATCH_HEAD);
    put_u64(head, partition);
    put_u64(head + 8, r->first_offset);
    put_u64(head + 16, r->timestamp);
    put_u64(head + 24, r->origin);
    put_u64(head + 32, IGGY09_BATCH_HEAD + r->bytes);
    put_u32(head + 48, r->count);
}

/* All but its checksum. */
static void put_frame_head(const run *r, const uint8_t *record, uint32_t number, uint8_t *to) {
    memcpy(to + 8, record + 8, 16);
    put_u32(to + 24, number);
    put_u32(to + 28, (uint32_t)(load_u64(record + 40) - r->origin));
    memcpy(to + 32, record + 48, 8);
    put_u64(to + 40, 0);
}

/* There is room for it. False: the records are not those that the run was made of. */
static bool put_run(const run *r, uint32_t partition, const uint8_t *at, uint8_t *to) {
    uint8_t *head = to, *end = to + IGGY09_BATCH_HEAD + r->bytes;
    iggy09_digest digest;
    put_batch_head(r, partition, head);
    digest_begin(&digest, head);
    to += IGGY09_BATCH_HEAD;
    for (uint32_t i = 0; i < r->count; i++) {
        size_t size = record_bytes(at, r->end), frame = size - (RECORD_HEADER_SIZE - IGGY09_FRAME_HEAD);
        if (size == 0 || frame > (size_t)(end - to)) return false;
        put_frame_head(r, at, i, to);
        memcpy(to + IGGY09_FRAME_HEAD, at + RECORD_HEADER_SIZE, size - RECORD_HEADER_SIZE);
        put_u64(to, checksum_64(to + 8, frame - 8));
        digest_add(&digest, to);
        at += size;
        to += frame;
    }
    put_u64(head + 40, digest_end(&digest));
    return to == end;
}

/* The heads of a batch of one record: the rest of it is sent from where it lies. */
static void put_heads(const run *r, uint32_t partition, const uint8_t *record, size_t rest, uint8_t *to) {
    uint8_t *frame = to + IGGY09_BATCH_HEAD;
    put_batch_head(r, partition, to);
    put_frame_head(r, record, 0, frame);
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    checksum_update(&state, frame + 8, IGGY09_FRAME_HEAD - 8);
    checksum_update(&state, record + RECORD_HEADER_SIZE, rest);
    put_u64(frame, XXH3_64bits_digest(&state));
    iggy09_digest digest;
    digest_begin(&digest, to);
    digest_add(&digest, frame);
    put_u64(to + 40, digest_end(&digest));
}

bool iggy09_pack(iggy09_packing *p, uint8_t *to, size_t room, iggy09_part *out) {
    *out = (iggy09_part){0};
    for (run r; p->at < p->end; p->at = r.end) {
        if (!take_run(p->at, p->end, p->alone, &r)) return false;
        size_t bytes = IGGY09_BATCH_HEAD + r.bytes, left = room - out->length;
        if (r.count == 1 && r.bytes >= IGGY09_DIRECT_BYTES) {
            if (left < IGGY09_BATCH_HEAD + IGGY09_FRAME_HEAD) return true;
            out->direct_length = r.bytes - IGGY09_FRAME_HEAD;
            out->direct = p->at + RECORD_HEADER_SIZE;
            put_heads(&r, p->partition, p->at, out->direct_length, to + out->length);
            out->length += IGGY09_BATCH_HEAD + IGGY09_FRAME_HEAD;
            p->at = r.end;
            return true;
        }
        if (bytes > left) return true;
        if (!put_run(&r, p->partition, p->at, to + out->length)) return false;
        out->length += bytes;
    }
    return true;
}

uint64_t iggy09_batches_alone(const poll_summary *whole) {
    return whole->total_bytes + whole->total_count * (IGGY09_BATCH_HEAD + IGGY09_FRAME_HEAD - RECORD_HEADER_SIZE);
}

void iggy09_put_polled(uint8_t *at, const poll_summary *whole) {
    put_u32(at, whole->partition);
    put_u64(at + 4, whole->current_offset);
    put_u32(at + 12, (uint32_t)whole->total_count);
}
