/* libFuzzer: any bytes as the payload of POLL_MESSAGES and STORE_CONSUMER_OFFSET. What is taken for a right request
 * points into the payload; and the payload is not read behind its end (ASan). */
#include <stdlib.h>
#include <string.h>

#include "wire/classic_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t *payload, size_t size, const consumer_request *q) {
    size_t addresses = (size_t)q->stream_length + q->topic_length;
    if (q->kind != CONSUMER_PLAIN && q->kind != CONSUMER_GROUP) abort();
    if (q->stream_length < 3 || q->topic_length < 3 || addresses > 514) abort();
    if (q->address < payload || q->address + addresses > payload + size) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *payload = malloc(size > 0 ? size : 1);
    memcpy(payload, data, size);
    consumer_request q;
    if (request_parse_poll(payload, size, &q)) check(payload, size, &q);
    if (request_parse_store(payload, size, &q)) check(payload, size, &q);
    free(payload);
    return 0;
}
