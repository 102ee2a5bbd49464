/* libFuzzer: any bytes as the body of a SEND of 0.9, and as records that were polled. What is taken for right stays
 * inside of its memory (ASan); what was unpacked in place is what was unpacked elsewhere; batches fill their room. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/checksum.h"
#include "wire/iggy09_batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t unpack(const uint8_t *payload, size_t size, const iggy09_send *s, uint8_t *to, size_t step) {
    iggy09_unpacking u;
    uint32_t status;
    iggy09_unpack_begin(&u, payload, size, s, to);
    while (!iggy09_unpack_part(&u, step, &status)) continue;
    return status;
}

/* True: it is taken. */
static bool check_send(const uint8_t *payload, size_t size, uint8_t *copy) {
    iggy09_send s;
    send_request q;
    if (iggy09_send_read(payload, size, &s) != 0) return false;
    size_t bytes = s.metadata_bytes + s.records_bytes;
    uint8_t *unpacked = malloc(bytes);
    uint32_t status = unpack(payload, size, &s, unpacked, 100);
    if (status == 0 && iggy09_send_request(unpacked, bytes, &q) != 0) abort();
    if (status == 0 && q.count != s.count) abort();
    if (bytes <= size) {
        if (unpack(copy, size, &s, copy + size - bytes, SIZE_MAX) != status) abort();
        if (status == 0 && memcmp(copy + size - bytes, unpacked, bytes) != 0) abort();
    }
    if (status == 0 && iggy09_batches_bytes(q.messages, q.messages_length, true) == 0) abort();
    free(unpacked);
    return status == 0;
}

/* What a client would have written: metadata, counts, lengths and checksums are right, so that the rest is reached.
 * The bytes are lengths of payloads and of user headers, and what is in them. */
static void check_built(const uint8_t *data, size_t size) {
    static const uint8_t metadata[] = {18, 0, 0, 0, 1, 4, 1, 0, 0, 0, 1, 4, 2, 0, 0, 0, 1, 0};
    uint8_t *body = calloc(1, sizeof metadata + 4 + IGGY09_BATCH_HEAD + (size / 2 + 1) * (IGGY09_FRAME_HEAD + 600));
    uint8_t *batch = body + sizeof metadata + 4, *at = batch + IGGY09_BATCH_HEAD;
    uint32_t count = 0;
    memcpy(body, metadata, sizeof metadata);
    for (size_t i = 0; i + 2 <= size; i += 2) {
        uint32_t lengths[2] = {data[i] % 32, data[i + 1]};
        memcpy(at + 24, &count, 4);
        memcpy(at + 28, data + i, 2);
        memcpy(at + 32, lengths, 8);
        memset(at + IGGY09_FRAME_HEAD, data[i], lengths[0] + lengths[1]);
        size_t frame = IGGY09_FRAME_HEAD + lengths[0] + lengths[1];
        uint64_t checksum = checksum_64(at + 8, frame - 8);
        memcpy(at, &checksum, 8);
        at += frame;
        count++;
    }
    uint64_t length = (uint64_t)(at - batch);
    memcpy(batch - 4, &count, 4);
    memcpy(batch + 32, &length, 8);
    memcpy(batch + 48, &count, 4);
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, batch, 40);
    XXH3_64bits_update(&state, batch + 48, 4);
    for (const uint8_t *f = batch + IGGY09_BATCH_HEAD; f < at;
         f += IGGY09_FRAME_HEAD + load_u32(f + 32) + load_u32(f + 36))
        XXH3_64bits_update(&state, f, 8);
    uint64_t digest = XXH3_64bits_digest(&state);
    memcpy(batch + 40, &digest, 8);
    size_t whole = (size_t)(at - body);
    uint8_t *copy = malloc(whole);
    memcpy(copy, body, whole);
    if (check_send(body, whole, copy) != (count > 0)) abort();
    free(copy);
    free(body);
}

static void check_records(const uint8_t *records, size_t size, bool alone) {
    size_t announced = iggy09_batches_bytes(records, size, alone), packed = 0;
    if (announced == 0) return;
    uint8_t *out = malloc(IGGY09_PART_BYTES);
    iggy09_packing p = {.at = records, .end = records + size, .alone = alone};
    while (p.at < p.end) {
        iggy09_part part;
        if (!iggy09_pack(&p, out, IGGY09_PART_BYTES, &part) || part.length == 0) abort();
        packed += part.length + part.direct_length;
    }
    if (packed != announced || packed > IGGY09_PACKED_MAX(size)) abort();
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *payload = malloc(size > 0 ? size : 1), *copy = malloc(size > 0 ? size : 1);
    memcpy(payload, data, size);
    memcpy(copy, data, size);
    check_send(payload, size, copy);
    check_built(payload, size);
    check_records(payload, size, false);
    check_records(payload, size, true);
    free(copy);
    free(payload);
    return 0;
}
