/* The framing of Apache Iggy 0.9 (docs/protocol/iggy-0.9.md): heads of 256 bytes with a session, batches with checksums
 * of all bytes, which the client makes as its clients do. Those of answers are left to the tests of the server. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dialect.h"
#include "reply.h"
#include "wire.h"

enum {
    HEAD = 256, /* of a request, an answer, a batch */
    FRAME = 48,
    CHECKSUM = 8,
    SUMMED = 44, /* of the head of a batch */
    SIZE_AT = 48,
    KIND_AT = 60,
    CLIENT_AT = 128,
    REQUEST_AT = 168,
    OPERATION_AT = 176,
    SESSION_AT = 184,
    CODE_AT = 196,
    STATUS_AT = 216,
    REQUEST_KIND = 5,
    REPLY_KIND = 8,
    PLAIN = 2,
    SEND = 160,
    NOT_OWNED = 5009, /* the status of a poll of a partition that another member has */
    ASSIGNMENT = 12,  /* u64 generation, u32 partitions: before their ids */
    FRAME_HEADERS_AT = 32,
    FRAME_PAYLOAD_AT = 36,
    BATCH_FIRST_AT = 8,
    BATCH_ORIGIN_AT = 24,
    BATCH_LENGTH_AT = 32,
    BATCH_CHECKSUM_AT = 40,
    BATCH_COUNT_AT = 48
};

/* Clients ask for their partitions after each heartbeat; here also when there is nothing in those that they know. */
enum { ASSIGNED_MAX = 100000, SYNC_INTERVAL_MS = 5000, SYNC_IDLE_INTERVAL_MS = 100 };

static size_t send_room(const actor_plan *plan) {
    return HEAD + SEND_HEAD_MAX + HEAD + (size_t)plan->batch_max * (FRAME + (size_t)plan->payload_max);
}

static void put_session(uint8_t *at, const session_09 *session) {
    put_u64(at + CLIENT_AT, session->client_low);
    put_u64(at + CLIENT_AT + 8, session->client_high);
    put_u64(at + SESSION_AT, session->session);
}

static void put_head(uint8_t *at, const actor *a, uint8_t operation, uint32_t code) {
    memset(at, 0, HEAD);
    at[KIND_AT] = REQUEST_KIND;
    put_session(at, &a->session);
    at[OPERATION_AT] = operation;
    put_u32(at + CODE_AT, code);
}

static void prepare(actor *a) {
    size_t room = SUMMED + (size_t)a->plan->batch_max * CHECKSUM;
    a->summed = malloc(room); /* for the checksum of a batch */
}

static void renew(actor *a, uint8_t *request) {
    put_session(request, &a->session);
    put_u64(request + REQUEST_AT, ++a->session.requests);
}

static uint8_t *put_frame(uint8_t *at, uint32_t number, const char *payload, uint32_t payload_bytes) {
    memset(at, 0, FRAME);
    put_u32(at + 24, number);
    put_u32(at + FRAME_PAYLOAD_AT, payload_bytes);
    memcpy(at + FRAME, payload, payload_bytes);
    put_u64(at, XXH3_64bits(at + CHECKSUM, FRAME - CHECKSUM + payload_bytes));
    return at + FRAME + payload_bytes;
}

static void send_iggy09(actor *a, asked *asked, uint64_t origin_us) {
    const actor_plan *plan = a->plan;
    frame_target target = target_of(plan);
    uint8_t *begin = a->out + a->out_length, *classic = begin + HEAD - REQUEST_HEAD;
    asked->messages = random_between(a, plan->batch_min, plan->batch_max);
    uint32_t length = frame_send_head(classic, &target, (uint32_t)asked->messages, 0);
    choose_partition(a, classic);
    put_head(begin, a, SEND, 0);
    put_u64(begin + REQUEST_AT, ++a->session.requests);
    uint8_t *batch = classic + length, *at = batch + HEAD;
    memset(batch, 0, HEAD);
    for (uint64_t i = 0; i < asked->messages; i++) {
        uint32_t size = (uint32_t)random_between(a, plan->payload_min, plan->payload_max);
        uint8_t *frame = at;
        at = put_frame(at, (uint32_t)i, a->run->payload, size);
        memcpy(a->summed + SUMMED + i * CHECKSUM, frame, CHECKSUM);
        asked->user_bytes += size;
    }
    put_u64(batch + BATCH_ORIGIN_AT, origin_us);
    put_u64(batch + BATCH_LENGTH_AT, (uint64_t)(at - batch));
    put_u32(batch + BATCH_COUNT_AT, (uint32_t)asked->messages);
    memcpy(a->summed, batch, BATCH_CHECKSUM_AT);
    memcpy(a->summed + BATCH_CHECKSUM_AT, batch + BATCH_COUNT_AT, 4);
    put_u64(batch + BATCH_CHECKSUM_AT, XXH3_64bits(a->summed, SUMMED + asked->messages * CHECKSUM));
    put_u32(begin + SIZE_AT, (uint32_t)(at - begin));
    a->out_length = (size_t)(at - a->out);
}

static void put_poll(actor *a, const frame_target *target, uint32_t count) {
    uint8_t *classic = a->poll + HEAD - REQUEST_HEAD; /* its head lies at the end of the longer one */
    a->poll_length = HEAD - REQUEST_HEAD + frame_poll(classic, target, target->member, count);
    put_head(a->poll, a, PLAIN, CODE_POLL);
}

/* A member asks which partitions it has. */
static void put_sync(actor *a, const frame_target *target) {
    put_head(a->poll, a, PLAIN, CODE_SYNC_GROUP);
    uint8_t *at = put_identifier(put_identifier(a->poll + HEAD, target->stream), target->topic);
    a->poll_length = (uint32_t)(put_identifier(at, target->group) - a->poll);
}

/* A member polls its partitions in turn; one that has none asks for them again and again. */
static void poll_iggy09(actor *a, asked *asked) {
    frame_target target = target_of(a->plan);
    assignment *own = &a->reply.own;
    uint64_t interval_ms = a->empty_since_ns == 0 ? SYNC_INTERVAL_MS : SYNC_IDLE_INTERVAL_MS;
    if (own->since_ns == 0) own->since_ns = asked->started_ns; /* so each answer is used once at least */
    bool old = !own->known || own->count == 0 || asked->started_ns - own->since_ns > interval_ms * 1000000ull;
    if (target.member && old) {
        asked->assigns = true;
        put_sync(a, &target);
    } else {
        target.names = target.member;
        if (target.member) target.partition = own->partitions[own->next++ % own->count];
        put_poll(a, &target, (uint32_t)asked->messages);
        if (!target.member) put_u64(a->poll + a->poll_length - POLL_OFFSET_FROM_END, a->next.first);
    }
    put_u32(a->poll + SIZE_AT, a->poll_length);
}

/* ---- answers: what is next in `text`: `pending` names it; `left` bytes of a payload ---- */

enum { ANSWER_HEAD, POLLED, BATCH, MESSAGE, ASSIGNED, PARTITION };

static void reset(reply *r) {
    r->status = 0;
    r->assigned = false;
    r->received = r->user_bytes = r->header_bytes = r->count = 0;
    r->text = (text_state){0};
}

static void refuse(reply *r, const char *what) {
    if (r->text.wrong == NULL) r->text.wrong = what;
    r->text.ended = true;
}

static void answer_head(reply *r, const asked *asked) {
    text_state *t = &r->text;
    const uint8_t *head = (const uint8_t *)t->kept;
    bool answered = head[KIND_AT] == REPLY_KIND;
    t->whole_length = get_u32(head + SIZE_AT);
    r->status = answered ? get_u32(head + STATUS_AT) : 0;
    if (r->status == NOT_OWNED && asked->poll) {
        r->own.known = false; /* the next poll asks again */
        t->ended = t->whole_length == HEAD;
        if (!t->ended) refuse(r, "a refusal has a payload");
        return;
    }
    if (!answered || r->status != 0) {
        snprintf(t->kept, sizeof t->kept, "the server refused a request (0.9, status %u)", r->status);
        refuse(r, t->kept);
    } else if (t->whole_length < HEAD) refuse(r, "the head of an answer says that it is shorter than itself");
    t->pending = asked->assigns ? ASSIGNED : POLLED;
}

static void assigned_head(reply *r) {
    text_state *t = &r->text;
    uint32_t count = get_u32((const uint8_t *)t->kept + 8);
    r->own.count = 0;
    t->items = count;
    t->pending = PARTITION;
    if (count > ASSIGNED_MAX || t->whole_length != HEAD + ASSIGNMENT + 4 * (uint64_t)count) {
        refuse(r, "the partitions of a member are not as many as the server says");
    } else if (count > r->own.room) {
        uint32_t *more = realloc(r->own.partitions, count * sizeof *more);
        if (more == NULL) {
            refuse(r, "the client has no memory left");
            return;
        }
        r->own.partitions = more;
        r->own.room = count;
    }
}

static void batch_head(reply *r) {
    text_state *t = &r->text;
    const uint8_t *head = (const uint8_t *)t->kept;
    uint64_t first = get_u64(head + BATCH_FIRST_AT), count = get_u32(head + BATCH_COUNT_AT);
    if (count == 0) refuse(r, "a batch of the server has no messages");
    if (r->count == 0) r->origin_us = get_u64(head + BATCH_ORIGIN_AT);
    r->next = (position){.first = first + count};
    t->head_length = count; /* frames that are to come */
    t->pending = MESSAGE;
}

static void message_head(reply *r) {
    text_state *t = &r->text;
    const uint8_t *head = (const uint8_t *)t->kept;
    uint64_t headers = get_u32(head + FRAME_HEADERS_AT), payload = get_u32(head + FRAME_PAYLOAD_AT);
    r->count++;
    r->header_bytes += headers;
    r->user_bytes += payload;
    t->left = headers + payload;
    if (--t->head_length == 0) t->pending = BATCH;
}

/* So many bytes are to be kept before something is known. */
static uint32_t wanted(const text_state *t) {
    static const uint32_t lengths[] = {[ANSWER_HEAD] = HEAD, [POLLED] = POLLED_HEAD,  [BATCH] = HEAD,
                                       [MESSAGE] = FRAME,    [ASSIGNED] = ASSIGNMENT, [PARTITION] = 4};
    return lengths[t->pending];
}

static void known(reply *r, const asked *asked) {
    text_state *t = &r->text;
    const uint8_t *kept = (const uint8_t *)t->kept;
    t->have = 0;
    if (t->pending == ANSWER_HEAD) answer_head(r, asked);
    else if (t->pending == BATCH) batch_head(r);
    else if (t->pending == MESSAGE) message_head(r);
    else if (t->pending == ASSIGNED) assigned_head(r);
    else if (t->pending == PARTITION) r->own.partitions[r->own.count++] = get_u32(kept);
    else {
        if (get_u32(kept) == UINT32_MAX) r->own.known = false; /* another way to say NOT_OWNED */
        t->items = get_u32(kept + 12);
        t->pending = BATCH;
    }
}

static size_t take(reply *r, const asked *asked, const uint8_t *bytes, size_t length) {
    text_state *t = &r->text;
    size_t at = 0;
    while (at < length && !t->ended && (r->received < HEAD || r->received < t->whole_length)) {
        uint64_t left = r->received < HEAD ? HEAD - r->received : t->whole_length - r->received;
        size_t part = length - at < left ? length - at : (size_t)left;
        if (r->received >= HEAD && !asked->poll) {
            /* what follows an acknowledgement is nothing that anybody here asks for */
        } else if (t->left > 0) {
            part = part < t->left ? part : (size_t)t->left;
            t->left -= part;
        } else {
            uint32_t room = wanted(t) - t->have;
            part = part < room ? part : room;
            memcpy(t->kept + t->have, bytes + at, part);
            t->have += (uint32_t)part;
            if (t->have == wanted(t)) known(r, asked);
        }
        r->received += part;
        at += part;
    }
    return t->ended ? length : at;
}

static bool complete(const reply *r, const asked *asked) {
    (void)asked;
    return r->text.ended || (r->received >= HEAD && r->received == r->text.whole_length);
}

static const char *settle_assignment(reply *r) {
    if (r->received == HEAD) return "the server says that a member of a group is none";
    if (r->text.pending != PARTITION || r->own.count != r->text.items) return "the partitions of a member are cut";
    r->own.known = true;
    r->own.since_ns = 0;
    r->assigned = r->own.count > 0;
    return NULL;
}

static const char *settle(reply *r, const asked *asked) {
    const text_state *t = &r->text;
    if (t->wrong == NULL && asked->assigns && r->status == 0) return settle_assignment(r);
    if (t->wrong != NULL || !asked->poll || r->received == HEAD) return t->wrong;
    bool whole = t->pending == BATCH && t->have == 0 && t->left == 0 && r->count == t->items;
    return whole ? NULL : "the messages of a poll are not those that its head says";
}

const dialect speak_iggy09 = {.record_bytes = RECORD_HEAD,
                              .send_room = send_room,
                              .prepare = prepare,
                              .send = send_iggy09,
                              .poll = poll_iggy09,
                              .reset = reset,
                              .take = take,
                              .complete = complete,
                              .settle = settle,
                              .renew = renew};
