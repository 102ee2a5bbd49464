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
static uint64_t topic_bytes(const send_limits *l) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        const partition_stats *s = l->places[i].stats;
        bool open = atomic_load_explicit(&s->incarnation, memory_order_acquire) == l->places[i].incarnation;
        sum += open ? atomic_load_explicit(&s->size_bytes, memory_order_relaxed) : l->bytes_max / l->count;
    }
    return sum;
}

static bool has_large_message(const append_batch *b, uint64_t bytes_max) {
    for (uint64_t at = 0, size; at < b->length; at += size) {
        size = record_size(b->messages + at);
        ASSERT(size != 0); /* it was checked when it came in */
        if (size - RECORD_HEADER_SIZE > bytes_max) return true;
    }
    return false;
}

static void judge(send_limits *l, uint64_t messages, append_batch *batches, size_t count, uint64_t pass) {
    if (l->bytes_max > 0 && l->pass != pass) {
        l->bytes = topic_bytes(l);
        l->pass = pass;
    }
    for (size_t i = 0; i < count; i++) {
        append_batch *b = &batches[i];
        if (l->message_bytes_max > 0 && has_large_message(b, l->message_bytes_max)) {
            b->status = STATUS_TOO_BIG_MESSAGE_PAYLOAD;
        } else if ((l->bytes_max > 0 && l->bytes + l->large + b->length > l->bytes_max) ||
                   (l->messages_max > 0 && messages + b->count > l->messages_max)) {
            b->status = STATUS_TOPIC_FULL;
        } else {
            b->status = 0;
            l->bytes += b->length;
            messages += b->count;
        }
    }
}

void send_limits_judge(send_limits *l, const partition *p, append_batch *batches, size_t count, uint64_t pass) {
    judge(l, partition_messages(p), batches, count, pass);
}

void send_limits_judge_behind(send_limits *l, const partition *p, uint64_t messages, append_batch *b, uint64_t pass) {
    judge(l, partition_messages(p) + messages, b, 1, pass);
}

uint32_t send_limits_large_begins(send_limits *l, const partition *p, append_batch *b) {
    if (l == NULL) return 0;
    l->pass = PASS_NONE; /* looked at anew, now and afterwards: passes with large batches alone have no number */
    send_limits_judge(l, p, b, 1, PASS_NONE - 1);
    l->pass = PASS_NONE;
    if (b->status == 0) l->large += b->length;
    return b->status;
}

void send_limits_large_ends(send_limits *l, const append_batch *b) {
    if (l == NULL) return;
    ASSERT(l->large >= b->length);
    l->large -= b->length;
}
