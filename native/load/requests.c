/* Sends and polls of an actor. Sends that are all alike are made once; from one to the next their time changes. */
#include "frames.h"

#include <string.h>

#include "reply.h"
#include "wire.h"

static uint64_t random_next(uint64_t *state) { /* xorshift64* */
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1du;
}

uint64_t random_between(actor *a, uint64_t least, uint64_t most) {
    return least == most ? least : least + random_next(&a->random) % (most - least + 1);
}

frame_target target_of(const actor_plan *plan) {
    return (frame_target){.stream = (uint32_t)plan->stream,
                          .topic = (uint32_t)plan->topic,
                          .partitioning = plan->partitioning == TO_RANDOM ? TO_PARTITION
                                                                          : (partitioning)plan->partitioning,
                          .member = plan->group != NO_GROUP,
                          .group = (uint32_t)plan->group - 1};
}

static bool is_fixed(const actor_plan *p) { return p->batch_min == p->batch_max && p->payload_min == p->payload_max; }

static size_t send_room(const actor_plan *plan) {
    return SEND_HEAD_MAX + (size_t)plan->batch_max * (INDEX_ENTRY + RECORD_HEAD + (size_t)plan->payload_max);
}

static void prepare(actor *a) {
    const actor_plan *plan = a->plan;
    frame_target target = target_of(plan);
    if (plan->polls) a->poll_length = frame_poll(a->poll, &target, target.member, (uint32_t)plan->batch_max);
    if (!plan->sends || !is_fixed(plan)) return;
    uint64_t record = RECORD_HEAD + plan->payload_min, behind = plan->batch_min * (INDEX_ENTRY + record);
    for (uint64_t place = 0; place < plan->depth; place++) {
        uint8_t *frame = a->out + place * a->frame_length;
        a->head_length = frame_send_head(frame, &target, (uint32_t)plan->batch_min, behind);
        a->frame_length = (uint32_t)(a->head_length + behind);
        uint8_t *at = frame + a->head_length;
        frame_messages(at, (uint32_t)plan->batch_min, (uint32_t)plan->payload_min);
        at += plan->batch_min * INDEX_ENTRY + RECORD_HEAD;
        for (uint64_t i = 0; i < plan->batch_min; i++, at += record) memcpy(at, a->run->payload, plan->payload_min);
    }
}

static void append_fixed(actor *a, asked *asked, uint64_t origin) {
    const actor_plan *plan = a->plan;
    uint64_t record = RECORD_HEAD + plan->payload_min;
    uint8_t *at = a->out + a->out_length + a->head_length + plan->batch_min * INDEX_ENTRY + RECORD_ORIGIN_AT;
    for (uint64_t i = 0; i < plan->batch_min; i++, at += record) put_u64(at, origin);
    asked->messages = plan->batch_min;
    asked->user_bytes = plan->batch_min * plan->payload_min;
    a->out_length += a->frame_length;
}

static void append_varied(actor *a, asked *asked, uint64_t origin) {
    const actor_plan *plan = a->plan;
    frame_target target = target_of(plan);
    uint32_t count = (uint32_t)random_between(a, plan->batch_min, plan->batch_max);
    uint8_t *frame = a->out + a->out_length;
    uint32_t head = frame_send_head(frame, &target, count, 0); /* again when the sizes are known */
    uint8_t *index = frame + head, *records = index + (size_t)count * INDEX_ENTRY, *at = records;
    for (uint32_t i = 0; i < count; i++, index += INDEX_ENTRY) {
        uint32_t size = (uint32_t)random_between(a, plan->payload_min, plan->payload_max);
        memset(at, 0, RECORD_HEAD);
        put_u64(at + RECORD_ORIGIN_AT, origin);
        put_u32(at + RECORD_PAYLOAD_LENGTH_AT, size);
        memcpy(at + RECORD_HEAD, a->run->payload, size);
        at += RECORD_HEAD + size;
        memset(index, 0, INDEX_ENTRY);
        put_u32(index + 4, (uint32_t)(at - records));
    }
    frame_send_head(frame, &target, count, (uint64_t)(at - frame) - head);
    asked->messages = count;
    asked->user_bytes = (uint64_t)(at - records) - (uint64_t)count * RECORD_HEAD;
    a->out_length += (size_t)(at - frame);
}

void choose_partition(actor *a, uint8_t *frame) {
    const actor_plan *plan = a->plan;
    uint8_t *end = frame + REQUEST_HEAD + 4 + get_u32(frame + REQUEST_HEAD) - 4;
    if (plan->partitioning == TO_KEY) put_u64(end - KEY_BYTES, random_next(&a->random));
    if (plan->partitioning != TO_RANDOM) return;
    bool hot = plan->partitions == 1 || random_between(a, 1, 100) <= plan->hot_percent;
    put_u32(end - 4, hot ? 0 : (uint32_t)random_between(a, plan->hot_percent > 0, plan->partitions - 1));
}

static void send_classic(actor *a, asked *asked, uint64_t origin_us) {
    size_t before = a->out_length;
    if (a->frame_length != 0) append_fixed(a, asked, origin_us);
    else append_varied(a, asked, origin_us);
    choose_partition(a, a->out + before);
}

static void poll_classic(actor *a, asked *asked) {
    if (a->plan->group == NO_GROUP) put_u64(a->poll + a->poll_length - POLL_OFFSET_FROM_END, a->next.first);
    put_u32(a->poll + a->poll_length - 5, (uint32_t)asked->messages);
}

const dialect speak_classic = {.record_bytes = RECORD_HEAD,
                               .send_room = send_room,
                               .prepare = prepare,
                               .send = send_classic,
                               .poll = poll_classic,
                               .reset = reply_reset,
                               .take = reply_take,
                               .complete = reply_complete,
                               .settle = reply_settle};

/* ---- what dialects of text share ---- */

uint8_t *put_decimal(uint8_t *at, uint64_t value) {
    uint8_t digits[20];
    size_t count = 0;
    do digits[count++] = (uint8_t)('0' + value % 10);
    while ((value /= 10) != 0);
    while (count > 0) *at++ = digits[--count];
    return at;
}

uint8_t *put_text(uint8_t *at, const char *text) {
    size_t length = strlen(text);
    memcpy(at, text, length);
    return at + length;
}

void append_messages(actor *a, asked *asked, uint64_t origin_us,
                     uint8_t *(*message)(const actor *a, uint8_t *at, uint32_t payload_bytes, uint64_t origin_us)) {
    const actor_plan *plan = a->plan;
    uint8_t *at = a->out + a->out_length;
    asked->messages = random_between(a, plan->batch_min, plan->batch_max);
    for (uint64_t i = 0; i < asked->messages; i++) {
        uint32_t size = (uint32_t)random_between(a, plan->payload_min, plan->payload_max);
        at = message(a, at, size, origin_us);
        asked->user_bytes += size;
    }
    a->out_length = (size_t)(at - a->out);
}
