/* The two hot requests besides SEND_MESSAGES: POLL_MESSAGES and STORE_CONSUMER_OFFSET (docs/protocol/messages.md).
 * Only the perfectly formed request is recognised; anything else is left to Python, which knows every status. Pure
 * functions over memory. */
#ifndef SHARDD_REQUEST_H
#define SHARDD_REQUEST_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CODE_PING = 1,
    CODE_CREATE_USER = 33,
    CODE_UPDATE_PERMISSIONS = 36,
    CODE_LOGIN_USER = 38,
    CODE_POLL_MESSAGES = 100,
    CODE_SEND_MESSAGES = 101,
    CODE_STORE_CONSUMER_OFFSET = 121,
    CODE_GET_PARTITION_BOUNDS = 0x53440010,
    CODE_SET_TOPIC_SETTINGS = 0x53440020
};

enum { CONSUMER_PLAIN = 1, CONSUMER_GROUP = 2 };

typedef struct consumer_request {
    uint8_t kind;           /* CONSUMER_PLAIN, CONSUMER_GROUP */
    const uint8_t *address; /* stream identifier, then topic identifier */
    uint32_t stream_length, topic_length;
    uint32_t consumer_id;  /* number, or xxh32 of the name; says nothing about a group */
    uint32_t partition_id; /* 0 when absent */
    bool partition_given;
    uint8_t strategy; /* POLL only */
    uint64_t value;   /* strategy value, or the offset to store */
    uint32_t count;
    bool auto_commit;
    uint64_t assignment; /* never parsed: generation of the member's assignment, 0 for a plain consumer */
} consumer_request;

/* Bytes from the identifier of the consumer, `from`, to the end of that of the topic. */
uint32_t request_key_length(const consumer_request *q, const uint8_t *from);
bool request_parse_poll(const uint8_t *payload, size_t length, consumer_request *out);
bool request_parse_store(const uint8_t *payload, size_t length, consumer_request *out);
#endif
