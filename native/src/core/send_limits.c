/* See send_limits.h. */
#include "core/send_limits.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/status.h"
#include "log/record.h"

#include <stdlib.h>

#define PASS_NONE UINT64_MAX

send_limits *send_limits_new(const send_limits *values, uint32_t count) {
    send_limits *l = calloc(1, sizeof *l + count * sizeof *l->places);
    if (l == NULL) return NULL;
    l->message_bytes_max = values->message_bytes_max;
    l->messages_max = values->messages_max;
    l->bytes_max = values->bytes_max;
    l->partition_bytes_max = values->partition_bytes_max;
    l->references = 1;
    l->pass = PASS_NONE;
    l->count = count;
    return l;
}

void send_limits_release(send_limits *l) {
    if (l == NULL) return;
    ASSERT(l->references > 0);
    if (--l->references == 0) free(l);
}

/* A partition that is not open yet counts as its part of the limit: else a topic would outgrow it at a start. */
static void look_at(send_limits *l, send_place *place) {
    const partition_stats *s = place->stats;
    bool open = atomic_load_explicit(&s->incarnation, memory_order_acquire) == place->incarnation;
    uint64_t bytes = open ? atomic_load_explicit(&s->size_bytes, memory_order_relaxed) : l->bytes_max / l->count;
    l->bytes += bytes - place->bytes;
    place->bytes = bytes;
}

static void look_around(send_limits *l) {
    uint32_t looks = l->summed && l->count > SEND_PLACES_LOOKED_AT ? SEND_PLACES_LOOKED_AT : l->count;
    l->summed = true;
    for (; looks > 0; looks--) {
        look_at(l, &l->places[l->next]);
        l->next = (l->next + 1) % l->count;
    }
}

static bool has_large_message(const append_batch *b, uint64_t bytes_max) {
    for (uint64_t at = 0, size; at < b->length; at += size) {
        size = record_size(b->messages + at);
        ASSERT(size != 0); /* it was checked when it came in */
        if (size - RECORD_HEADER_SIZE > bytes_max) return true;
    }
    return false;
}

/* Whether the topic, or a partition of it that has so much, has no room for it. */
static bool is_full(const send_limits *l, uint64_t messages, uint64_t bytes, const append_batch *b) {
    return (l->bytes_max > 0 && l->bytes + l->large + b->length > l->bytes_max) ||
           (l->messages_max > 0 && messages + b->count > l->messages_max) ||
           (l->partition_bytes_max > 0 && bytes + b->length > l->partition_bytes_max);
}

static void judge(send_limits *l, uint64_t messages, uint64_t bytes, uint32_t place, append_batch *batches,
                  size_t count, uint64_t pass) {
    ASSERT(place < l->count);
    if (l->bytes_max > 0 && l->pass != pass) {
        look_around(l);
        l->pass = pass;
    }
    for (size_t i = 0; i < count; i++) {
        append_batch *b = &batches[i];
        if (l->message_bytes_max > 0 && has_large_message(b, l->message_bytes_max)) {
            b->status = STATUS_TOO_BIG_MESSAGE_PAYLOAD;
        } else if (is_full(l, messages, bytes, b)) {
            b->status = STATUS_TOPIC_FULL;
        } else {
            b->status = 0;
            l->bytes += b->length;
            l->places[place].bytes += b->length;
            messages += b->count;
            bytes += b->length;
        }
    }
}

void send_limits_judge(send_limits *l, const partition *p, uint32_t place, append_batch *batches, size_t count,
                       uint64_t pass) {
    judge(l, partition_messages(p), partition_size_bytes(p), place, batches, count, pass);
}

void send_limits_judge_behind(send_limits *l, const partition *p, uint64_t messages, uint64_t bytes, uint32_t place,
                              append_batch *b, uint64_t pass) {
    judge(l, partition_messages(p) + messages, partition_size_bytes(p) + bytes, place, b, 1, pass);
}

uint32_t send_limits_large_begins(send_limits *l, const partition *p, uint32_t place, append_batch *b) {
    if (l == NULL) return 0;
    l->pass = PASS_NONE; /* looked at anew, now and afterwards: passes with large batches alone have no number */
    send_limits_judge(l, p, place, b, 1, PASS_NONE - 1);
    l->pass = PASS_NONE;
    if (b->status != 0) return b->status;
    l->large += b->length; /* instead of its part of the sum, which the next look would take away */
    l->bytes -= b->length;
    l->places[place].bytes -= b->length;
    return 0;
}

void send_limits_large_ends(send_limits *l, uint32_t place, const append_batch *b) {
    if (l == NULL) return;
    ASSERT(l->large >= b->length);
    l->large -= b->length;
    if (l->bytes_max > 0 && l->summed) look_at(l, &l->places[place]);
}
