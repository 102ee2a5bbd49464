/* u32 partition, u64 current offset, u32 count, u64 incarnation, u64 first offset, u64 first offset of the epoch,
 * u32 epoch, u32 flags, records */
#include "wire/positions.h"

#include "wire/frame_limits.h"

#include <string.h>

enum { FLAG_SPARSE = 1 };

static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }

static void put_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, 8); }

static void put_poll_head(uint8_t *at, const poll_summary *whole) {
    put_u32(at, 0);
    put_u32(at + 4, POSITION_HEAD_SIZE + (uint32_t)whole->total_bytes);
    put_u32(at + 8, whole->partition);
    put_u64(at + 12, whole->current_offset);
    put_u32(at + 20, (uint32_t)whole->total_count);
    put_u64(at + 24, whole->incarnation);
    put_u64(at + 32, whole->first_offset);
    memset(at + 40, 0, 12); /* one server: epoch 0, from offset 0 on */
    put_u32(at + 52, whole->is_sparse ? FLAG_SPARSE : 0);
}

static size_t put_empty_poll(const uint8_t *head, uint8_t *at) {
    (void)head;
    put_poll_head(at, &(poll_summary){0});
    return FRAME_HEADER_SIZE + POSITION_HEAD_SIZE;
}

const dialect dialect_positions = {.name = "positions",
                                   .number = DIALECT_POSITIONS,
                                   .poll_number = DIALECT_POSITIONS,
                                   .poll_head_bytes = FRAME_HEADER_SIZE + POSITION_HEAD_SIZE,
                                   .put_empty_poll = put_empty_poll,
                                   .put_poll_head = put_poll_head};
