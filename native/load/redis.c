/* Redis Streams (RESP2): a batch is so many XADD in one write; a poll is an XREAD behind an id, or an XREADGROUP with
 * NOACK, which forgets what it has given out as auto-commit does. A message has two fields: t, eight bytes of its
 * origin in microseconds, and d, the payload. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dialect.h"
#include "wire.h"

enum { MESSAGE_ROOM = PREFIX_MAX + 64, FIELDS = 5, KEY_MAX = 32, PENDING_MAX = 1 << 26 };
static const uint64_t BULK_MAX = 512u << 20;

static uint8_t *put_bulk_head(uint8_t *at, uint64_t length) {
    *at++ = '$';
    return put_text(put_decimal(at, length), "\r\n");
}

static uint8_t *put_bulk(uint8_t *at, const char *text) {
    return put_text(put_text(put_bulk_head(at, strlen(text)), text), "\r\n");
}

static void key_of(char *key, const actor_plan *plan) {
    snprintf(key, KEY_MAX, "bench-stream-%u", (uint32_t)plan->stream);
}

static size_t send_room(const actor_plan *plan) {
    return (size_t)plan->batch_max * (MESSAGE_ROOM + (size_t)plan->payload_max);
}

static void prepare(actor *a) {
    char key[KEY_MAX];
    key_of(key, a->plan);
    uint8_t *at = put_text(a->prefix, "*7\r\n");
    at = put_bulk(put_bulk(put_bulk(at, "XADD"), key), "*");
    at = put_text(put_bulk(at, "t"), "$8\r\n");
    a->prefix_length = (uint32_t)(at - a->prefix);
}

static uint8_t *message(const actor *a, uint8_t *at, uint32_t payload_bytes, uint64_t origin_us) {
    memcpy(at, a->prefix, a->prefix_length);
    at = put_u64(at + a->prefix_length, origin_us);
    at = put_bulk_head(put_bulk(put_text(at, "\r\n"), "d"), payload_bytes);
    memcpy(at, a->run->payload, payload_bytes);
    return put_text(at + payload_bytes, "\r\n");
}

static void send_redis(actor *a, asked *asked, uint64_t origin_us) { append_messages(a, asked, origin_us, message); }

static void poll_redis(actor *a, asked *asked) {
    const actor_plan *plan = a->plan;
    char key[KEY_MAX], count[24], name[48];
    key_of(key, plan);
    snprintf(count, sizeof count, "%u", (uint32_t)asked->messages);
    uint8_t *at = a->poll;
    if (plan->group != NO_GROUP) {
        snprintf(name, sizeof name, "cg-%u", (uint32_t)plan->group - 1);
        at = put_bulk(put_bulk(put_bulk(put_text(at, "*10\r\n"), "XREADGROUP"), "GROUP"), name);
        snprintf(name, sizeof name, "member-%u", (uint32_t)plan->number);
        at = put_bulk(put_bulk(put_bulk(put_bulk(at, name), "COUNT"), count), "NOACK");
        at = put_bulk(put_bulk(put_bulk(at, "STREAMS"), key), ">");
    } else {
        snprintf(name, sizeof name, "%llu-%llu", (unsigned long long)a->next.first, (unsigned long long)a->next.second);
        at = put_bulk(put_bulk(put_bulk(put_text(at, "*6\r\n"), "XREAD"), "COUNT"), count);
        at = put_bulk(put_bulk(put_bulk(at, "STREAMS"), key), name);
    }
    a->poll_length = (uint32_t)(at - a->poll);
}

/* ---- answers ---- */

static void reset(reply *r) {
    r->user_bytes = r->header_bytes = r->count = r->received = 0;
    r->text = (text_state){0};
}

static void refuse(text_state *t, const char *what) {
    if (t->wrong == NULL) t->wrong = what;
    t->pending = 0;
    t->ended = true;
}

/* A whole value of counted bytes, of which the first are kept. */
static void value(reply *r, const asked *asked, uint64_t length) {
    text_state *t = &r->text;
    uint32_t at = t->items++;
    t->pending--;
    if (!asked->poll || at == 0) return; /* an id; the key */
    uint32_t field = (at - 1) % FIELDS;
    if (field == 0) {
        char *second;
        t->kept[t->have < 64 ? t->have : 64] = 0;
        r->next.first = strtoull(t->kept, &second, 10);
        r->next.second = *second == '-' ? strtoull(second + 1, NULL, 10) : 0;
    } else if (field == 2) {
        if (length != 8) refuse(t, "a message of the server has no time of its origin");
        else if (r->count == 0) r->origin_us = get_u64((uint8_t *)t->kept);
    } else if (field == 4) {
        r->count++;
        r->user_bytes += length;
    }
}

/* A whole line, in `kept` without its end. */
static void line(reply *r, const asked *asked) {
    text_state *t = &r->text;
    t->kept[t->have] = 0;
    char *end, kind = t->kept[0];
    long long number = strtoll(t->kept + 1, &end, 10);
    bool is_number = end != t->kept + 1 && *end == 0;
    t->have = 0;
    if (kind == '-') {
        memmove(t->kept + 22, t->kept + 1, sizeof t->kept - 22);
        memcpy(t->kept, "refused by the server:", 22);
        t->kept[120] = 0;
        refuse(t, t->kept);
    } else if (kind == '*' && is_number && number >= -1 && number <= PENDING_MAX && asked->poll) {
        t->pending += number < 0 ? -1 : number - 1;
        if (t->pending > PENDING_MAX) refuse(t, "an answer has more parts than anybody asked for");
    } else if (kind == '$' && is_number && number >= 0 && (uint64_t)number <= BULK_MAX) {
        t->counted = true;
        t->head_length = (uint64_t)number;
        t->left = (uint64_t)number + 2;
    } else {
        refuse(t, "what the server says is no answer of Redis");
    }
}

static size_t take_counted(reply *r, const asked *asked, const uint8_t *bytes, size_t length) {
    text_state *t = &r->text;
    size_t part = length < t->left ? length : (size_t)t->left;
    uint64_t kept = t->head_length < 64 ? t->head_length : 64;
    if (t->have < kept) {
        size_t keep = part < kept - t->have ? part : (size_t)(kept - t->have);
        memcpy(t->kept + t->have, bytes, keep);
        t->have += (uint32_t)keep;
    }
    t->left -= part;
    if (t->left == 0) {
        t->counted = false;
        value(r, asked, t->head_length);
        if (!t->ended) t->have = 0;
    }
    return part;
}

static size_t take(reply *r, const asked *asked, const uint8_t *bytes, size_t length) {
    text_state *t = &r->text;
    size_t at = 0;
    if (r->received == 0) t->pending = asked->poll ? 1 : (int64_t)asked->messages;
    while (at < length && t->pending > 0) {
        if (t->counted) {
            at += take_counted(r, asked, bytes + at, length - at);
            continue;
        }
        uint8_t byte = bytes[at++];
        if (byte == '\n' && t->have > 0 && t->kept[t->have - 1] == '\r') {
            t->have--;
            line(r, asked);
        } else if (t->have < sizeof t->kept - 24) t->kept[t->have++] = (char)byte;
        else refuse(t, "the server sends a line without an end");
    }
    r->received += at;
    return t->ended ? length : at;
}

static bool complete(const reply *r, const asked *asked) {
    (void)asked;
    return r->received > 0 && r->text.pending <= 0;
}

static const char *settle(reply *r, const asked *asked) {
    const text_state *t = &r->text;
    if (t->wrong != NULL) return t->wrong;
    bool whole = asked->poll ? t->items == 0 || (r->count > 0 && t->items == 1 + FIELDS * r->count)
                             : t->items == asked->messages;
    return whole ? NULL : "the messages of an answer are not those that its head says";
}

const dialect speak_redis = {.send_room = send_room,
                             .prepare = prepare,
                             .send = send_redis,
                             .poll = poll_redis,
                             .reset = reset,
                             .take = take,
                             .complete = complete,
                             .settle = settle};
