/* The two hot requests besides SEND_MESSAGES: POLL_MESSAGES and STORE_CONSUMER_OFFSET (docs/protocol/messages.md).
 * Only the perfectly formed request is recognised; anything else is left to Python, which knows every status. Pure
 * functions over memory. */
#ifndef SHARDD_CLASSIC_REQUEST_H
#define SHARDD_CLASSIC_REQUEST_H
#include "core/request.h"

enum {
    CODE_PING = 1,
    CODE_CREATE_USER = 33,
    CODE_UPDATE_PERMISSIONS = 36,
    CODE_LOGIN_USER = 38,
    CODE_POLL_MESSAGES = 100,
    CODE_SEND_MESSAGES = 101,
    CODE_STORE_CONSUMER_OFFSET = 121,
    CODE_GET_PARTITION_BOUNDS = 0x53440010,
    CODE_POLL_AND_WAIT = 0x53440018,
    CODE_POLL_POSITION = 0x53440019,
    CODE_STORE_POSITION = 0x5344001a,
    CODE_SEND_ONCE_DIGEST = 0x53440015,
    CODE_SET_TOPIC_SETTINGS = 0x53440020,
    CODE_SEND_ONCE = 0x53440031
};

bool request_parse_poll(const uint8_t *payload, size_t length, consumer_request *out);
/* The same with the time to wait behind it. */
bool request_parse_waiting_poll(const uint8_t *payload, size_t length, consumer_request *out);
/* The same with the most bytes of its answer behind that: u32. */
bool request_parse_poll_position(const uint8_t *payload, size_t length, consumer_request *out);
/* u64 producer, u64 sequence, u32 epoch, then a whole SEND_MESSAGES by partition id. 0 or a status. */
uint32_t request_parse_send_once(uint8_t *payload, size_t length, request *out);
/* The same with a u64 digest of the content behind the epoch. */
uint32_t request_parse_send_once_digest(uint8_t *payload, size_t length, request *out);
bool request_parse_store(const uint8_t *payload, size_t length, consumer_request *out);
/* u64 incarnation, u32 epoch, then a whole STORE_CONSUMER_OFFSET. */
bool request_parse_store_position(const uint8_t *payload, size_t length, consumer_request *out);
#endif
