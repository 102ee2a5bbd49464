/* SEND_MESSAGES of clients with 56-byte headers, POLL_MESSAGES and STORE_CONSUMER_OFFSET of earlier ones
 * (docs/protocol/legacy.md#messages). As classic_request.h: what is not perfectly formed is left to Python. */
#ifndef SHARDD_LEGACY_REQUEST_H
#define SHARDD_LEGACY_REQUEST_H
#include "core/request.h"

/* Ids start at 1 there; what the core gets are its own. False: Python has to look at it. */
bool legacy_parse_poll(const uint8_t *payload, size_t length, request *out);
bool legacy_parse_store(const uint8_t *payload, size_t length, request *out);

/* `widened`: an earlier call has done it. `first_id`: of streams, topics and partitions. 0, or the status that refuses
 * it; REQUEST_OTHER when Python has to look at it. */
uint32_t legacy_parse_send(uint8_t *payload, size_t length, uint32_t first_id, bool widened, request *out);
#endif
