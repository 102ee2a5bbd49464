#include "floor_answer.h"

#include <stdlib.h>

#include "floor_files.h"
#include "wire.h"

static bool says_offsets;

void floor_answer_open(const floor_options *options) {
    says_offsets = options->offsets;
    floor_files_open(options->directory, options->sync);
}

bool floor_grow(uint8_t **buffer, size_t *room, size_t wanted) {
    if (wanted <= *room) return true;
    uint8_t *larger = realloc(*buffer, wanted);
    if (larger == NULL) return false;
    *buffer = larger;
    *room = wanted;
    return true;
}

/* A reply of zeros, with its head; NULL: no memory. */
static uint8_t *empty(floor_reply *reply, size_t payload) {
    size_t length = reply->length + REPLY_HEAD + payload;
    if (length > FLOOR_REPLY_MAX || !floor_grow(&reply->data, &reply->room, length)) return NULL;
    uint8_t *at = reply->data + reply->length;
    memset(at, 0, REPLY_HEAD + (payload < POLLED_HEAD ? payload : POLLED_HEAD));
    put_u32(at + 4, (uint32_t)payload);
    reply->length = length;
    return at;
}

static bool answer_send(floor_reply *reply, uint32_t *turn, const uint8_t *payload, size_t length) {
    if (length < 4) return false;
    size_t metadata = get_u32(payload);
    if (metadata < 2 * NUMERIC_IDENTIFIER + 6 || 4 + metadata > length) return false;
    uint32_t stream = get_u32(payload + 4 + 2);
    const uint8_t *partitioning = payload + 4 + 2 * NUMERIC_IDENTIFIER;
    uint64_t count = get_u32(payload + 4 + metadata - 4);
    size_t messages_at = 4 + metadata + INDEX_ENTRY * count;
    if (messages_at + RECORD_HEAD > length) return false;
    uint32_t partition = partitioning[0] == 2   ? get_u32(partitioning + 2)
                         : partitioning[0] == 1 ? (*turn)++ % FLOOR_PARTITIONS_BALANCED
                                                : partitioning[2] % FLOOR_PARTITIONS_KEYED;
    floor_file *file = floor_file_get(stream, partition);
    return file != NULL && floor_file_append(file, payload + messages_at, length - messages_at) &&
           empty(reply, 0) != NULL;
}

static bool answer_poll(floor_reply *reply, const uint8_t *payload, size_t length) {
    if (length < 1 + 3 * NUMERIC_IDENTIFIER + 5 + 9 + 4 + 1) return false;
    uint32_t stream = get_u32(payload + 1 + NUMERIC_IDENTIFIER + 2);
    const uint8_t *at = payload + 1 + 3 * NUMERIC_IDENTIFIER;
    uint32_t partition = get_u32(at + 1);
    uint64_t offset = get_u64(at + 6);
    uint64_t count = get_u32(at + 14);
    floor_file *file = floor_file_get(stream, partition);
    if (file == NULL) return false;
    uint64_t records = floor_file_records(file);
    uint64_t left = offset < records ? records - offset : 0;
    if (count > left) count = left;
    uint64_t size = count * floor_file_record_bytes(file);
    uint8_t *head = size > FLOOR_REPLY_MAX ? NULL : empty(reply, POLLED_HEAD + size);
    if (head == NULL) return false;
    uint8_t *polled = put_u32(head + REPLY_HEAD, partition);
    polled = put_u64(polled, records == 0 ? 0 : records - 1);
    polled = put_u32(polled, (uint32_t)count);
    if (!floor_file_read(file, offset, polled, size)) return false;
    if (count > 0 && says_offsets) put_u64(polled + RECORD_OFFSET_AT, offset);
    return true;
}

bool floor_answer(floor_reply *reply, uint32_t *turn, uint32_t code, const uint8_t *payload, size_t length) {
    switch (code) {
    case CODE_SEND: return answer_send(reply, turn, payload, length);
    case CODE_POLL: return answer_poll(reply, payload, length);
    case CODE_LOGIN: return empty(reply, 4) != NULL; /* user id 0 */
    case CODE_PING: return empty(reply, 0) != NULL;
    case CODE_DELETE_STREAM:
        if (length < NUMERIC_IDENTIFIER) return false;
        floor_files_delete(get_u32(payload + 2));
        return empty(reply, 0) != NULL;
    default: return false;
    }
}
