/* The few pieces of the classic wire (little-endian, as the host) that load clients and the floor server of bench/
 * share. */
#ifndef LOAD_WIRE_H
#define LOAD_WIRE_H
#include <stdint.h>
#include <string.h>
#include <time.h>

enum {
    CODE_PING = 1,
    CODE_LOGIN = 38,
    CODE_POLL = 100,
    CODE_SEND = 101,
    CODE_STORE_OFFSET = 121,
    CODE_DELETE_STREAM = 203,
    CODE_JOIN_GROUP = 604,
    CODE_SYNC_GROUP = 606
};
enum {
    REQUEST_HEAD = 8, /* u32 length (code and payload), u32 code */
    REPLY_HEAD = 8,   /* u32 status, u32 length (payload) */
    POLLED_HEAD = 16, /* u32 partition, u64 current offset, u32 count */
    RECORD_HEAD = 64,
    RECORD_OFFSET_AT = 24,
    RECORD_ORIGIN_AT = 40,
    RECORD_HEADERS_LENGTH_AT = 48,
    RECORD_PAYLOAD_LENGTH_AT = 52,
    INDEX_ENTRY = 16,
    NUMERIC_IDENTIFIER = 6, /* kind 1, length 4, u32 */
};

static inline uint32_t get_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t get_u64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint8_t *put_u8(uint8_t *at, uint8_t value) {
    *at = value;
    return at + 1;
}

static inline uint8_t *put_u32(uint8_t *at, uint32_t value) {
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline uint8_t *put_u64(uint8_t *at, uint64_t value) {
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline uint8_t *put_identifier(uint8_t *at, uint32_t id) {
    at = put_u8(at, 1);
    at = put_u8(at, 4);
    return put_u32(at, id);
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
#endif
