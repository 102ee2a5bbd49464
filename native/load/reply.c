/* Answers, as their bytes come. Each record of a poll is walked over, so that what a server claims is also there. */
#include "reply.h"

#include <stdio.h>
#include <string.h>

#include "wire.h"

void reply_reset(reply *r) {
    r->status = 0;
    r->received = r->user_bytes = r->header_bytes = r->count = 0;
    r->lengths_at = REPLY_HEAD + POLLED_HEAD + RECORD_HEADERS_LENGTH_AT;
    r->lengths_have = 0;
}

static uint64_t whole_of(const reply *r) {
    return r->received < REPLY_HEAD ? REPLY_HEAD : REPLY_HEAD + (uint64_t)get_u32(r->head + 4);
}

static void walk(reply *r, const uint8_t *bytes, size_t length) {
    uint64_t end = r->received + length;
    for (uint64_t at; (at = r->lengths_at + r->lengths_have) < end;) {
        size_t part = sizeof r->lengths - r->lengths_have;
        if (part > end - at) part = (size_t)(end - at);
        memcpy(r->lengths + r->lengths_have, bytes + (at - r->received), part);
        r->lengths_have += (uint32_t)part;
        if (r->lengths_have < sizeof r->lengths) return;
        uint64_t headers = get_u32(r->lengths), payload = get_u32(r->lengths + 4);
        r->count++;
        r->header_bytes += headers;
        r->user_bytes += payload;
        r->lengths_at += RECORD_HEAD + headers + payload;
        r->lengths_have = 0;
    }
}

size_t reply_take(reply *r, const asked *asked, const uint8_t *bytes, size_t length) {
    uint64_t left = whole_of(r) - r->received;
    size_t part = length < left ? length : (size_t)left;
    if (r->received < sizeof r->head) {
        size_t room = sizeof r->head - (size_t)r->received;
        memcpy(r->head + r->received, bytes, part < room ? part : room);
    }
    if (asked->poll) walk(r, bytes, part);
    r->received += part;
    return part;
}

bool reply_complete(const reply *r, const asked *asked) {
    (void)asked;
    return r->received >= REPLY_HEAD && r->received == whole_of(r);
}

static const char *wrong_poll(const reply *r) {
    if (r->received < REPLY_HEAD + POLLED_HEAD) return "the answer of a poll is cut";
    uint64_t end = r->lengths_at - RECORD_HEADERS_LENGTH_AT;
    if (r->count != get_u32(r->head + REPLY_HEAD + 12) || end != r->received || r->lengths_have != 0)
        return "the messages of a poll are not those that its head says";
    return NULL;
}

const char *reply_settle(reply *r, const asked *asked) {
    r->status = get_u32(r->head);
    if (r->status != 0) {
        snprintf(r->text.kept, sizeof r->text.kept, "the server refused a request (status %u)", r->status);
        return r->text.kept;
    }
    if (!asked->poll) return r->received == REPLY_HEAD ? NULL : "an acknowledgement has a payload";
    if (r->received == REPLY_HEAD) return NULL; /* no messages, without a head */
    const char *wrong = wrong_poll(r);
    if (wrong != NULL || r->count == 0) return wrong;
    const uint8_t *record = r->head + REPLY_HEAD + POLLED_HEAD;
    r->origin_us = get_u64(record + RECORD_ORIGIN_AT);
    r->next = (position){.first = get_u64(record + RECORD_OFFSET_AT) + r->count};
    return NULL;
}
