#include "frames.h"

#include <string.h>

#include "wire.h"

uint32_t frame_send_head(uint8_t *at, const frame_target *target, uint32_t count, uint64_t behind_bytes) {
    static const uint32_t lengths[] = {[TO_PARTITION] = 4, [TO_BALANCED] = 0, [TO_KEY] = KEY_BYTES};
    static const uint8_t kinds[] = {[TO_PARTITION] = 2, [TO_BALANCED] = 1, [TO_KEY] = 3};
    uint32_t metadata = 2 * NUMERIC_IDENTIFIER + 2 + lengths[target->partitioning] + 4;
    uint32_t length = REQUEST_HEAD + 4 + metadata;
    at = put_u32(at, (uint32_t)(length - 4 + behind_bytes));
    at = put_u32(at, CODE_SEND);
    at = put_u32(at, metadata);
    at = put_identifier(at, target->stream);
    at = put_identifier(at, target->topic);
    at = put_u8(at, kinds[target->partitioning]);
    at = put_u8(at, (uint8_t)lengths[target->partitioning]);
    memset(at, 0, lengths[target->partitioning]);
    if (target->partitioning == TO_PARTITION) put_u32(at, target->partition);
    put_u32(at + lengths[target->partitioning], count);
    return length;
}

uint8_t *frame_messages(uint8_t *at, uint32_t count, uint32_t payload_bytes) {
    uint32_t size = RECORD_HEAD + payload_bytes;
    memset(at, 0, (size_t)count * INDEX_ENTRY);
    for (uint32_t i = 0; i < count; i++, at += INDEX_ENTRY)
        put_u32(at + 4, (i + 1) * size); /* END of the message; relative offset and timestamp stay 0 */
    for (uint32_t i = 0; i < count; i++, at += size) {
        memset(at, 0, RECORD_HEAD);
        put_u32(at + RECORD_PAYLOAD_LENGTH_AT, payload_bytes);
    }
    return at;
}

uint32_t frame_poll(uint8_t *frame, const frame_target *target, bool next, uint32_t count) {
    uint32_t length = REQUEST_HEAD + 1 + 3 * NUMERIC_IDENTIFIER + 5 + 9 + 4 + 1;
    uint8_t *at = put_u32(frame, length - 4);
    at = put_u32(at, CODE_POLL);
    at = put_u8(at, target->member ? 2 : 1);
    at = put_identifier(at, target->member ? target->group : 1);
    at = put_identifier(at, target->stream);
    at = put_identifier(at, target->topic);
    at = put_u8(at, !target->member || target->names); /* else a member gets one partition after the other */
    at = put_u32(at, target->partition);
    at = put_u8(at, next ? 5 : 1); /* strategy: next, offset */
    at = put_u64(at, 0);
    at = put_u32(at, count);
    put_u8(at, target->member || target->commits); /* auto-commit */
    return length;
}

uint32_t frame_store(uint8_t *frame, const frame_target *target) {
    uint32_t length = REQUEST_HEAD + 1 + 3 * NUMERIC_IDENTIFIER + 5 + 8;
    uint8_t *at = put_u32(frame, length - 4);
    at = put_u32(at, CODE_STORE_OFFSET);
    at = put_u8(at, 1); /* a consumer, not a group */
    at = put_identifier(at, 1);
    at = put_identifier(at, target->stream);
    at = put_identifier(at, target->topic);
    at = put_u8(at, 1); /* the partition is named */
    at = put_u32(at, target->partition);
    put_u64(at, 0);
    return length;
}
