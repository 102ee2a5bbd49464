/* NATS JetStream: a batch is so many HPUB with an inbox, in one write, and an acknowledgement for each; a poll by
 * position is a direct get of several messages, one for a group asks a pull consumer, which acknowledges nothing. Each
 * message has its origin in microseconds in a header T. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dialect.h"
#include "wire.h"

enum { MESSAGE_ROOM = PREFIX_MAX + 96, HEADER_BYTES = 36 };
static const uint64_t MESSAGE_MAX = 512u << 20;
static const char NO_ANSWER[] = "what the server says is no answer of JetStream";

static size_t send_room(const actor_plan *plan) {
    return (size_t)plan->batch_max * (MESSAGE_ROOM + (size_t)plan->payload_max);
}

static void prepare(actor *a) {
    int length = snprintf((char *)a->prefix, sizeof a->prefix, "HPUB bench.%u _I.%u %d ", (uint32_t)a->plan->stream,
                          (uint32_t)a->plan->number, HEADER_BYTES);
    a->prefix_length = (uint32_t)length;
}

static uint8_t *message(const actor *a, uint8_t *at, uint32_t payload_bytes, uint64_t origin_us) {
    memcpy(at, a->prefix, a->prefix_length);
    at = put_decimal(at + a->prefix_length, HEADER_BYTES + (uint64_t)payload_bytes);
    at = put_text(at, "\r\nNATS/1.0\r\nT:");
    for (uint32_t i = 20; i-- > 0; origin_us /= 10) at[i] = (uint8_t)('0' + origin_us % 10);
    at = put_text(at + 20, "\r\n\r\n");
    memcpy(at, a->run->payload, payload_bytes);
    return put_text(at + payload_bytes, "\r\n");
}

static void send_nats(actor *a, asked *asked, uint64_t origin_us) { append_messages(a, asked, origin_us, message); }

static void poll_nats(actor *a, asked *asked) {
    const actor_plan *plan = a->plan;
    char body[80], subject[96];
    uint32_t stream = (uint32_t)plan->stream, count = (uint32_t)asked->messages;
    int length;
    if (plan->group != NO_GROUP) {
        snprintf(subject, sizeof subject, "$JS.API.CONSUMER.MSG.NEXT.bench-stream-%u.cg-%u", stream,
                 (uint32_t)plan->group - 1);
        length = snprintf(body, sizeof body, "{\"batch\":%u,\"no_wait\":true}", count);
    } else {
        uint64_t from = a->next.first == 0 ? 1 : a->next.first;
        asked->ends = true;
        snprintf(subject, sizeof subject, "$JS.API.DIRECT.GET.bench-stream-%u", stream);
        length = snprintf(body, sizeof body, "{\"seq\":%llu,\"batch\":%u}", (unsigned long long)from, count);
    }
    a->poll_length = (uint32_t)snprintf((char *)a->poll, sizeof a->poll, "PUB %s _I.%u %d\r\n%s\r\n", subject,
                                        (uint32_t)plan->number, length, body);
}

/* ---- answers ---- */

/* A position is kept: a poll that finds nothing changes none. */
static void reset(reply *r) {
    r->user_bytes = r->header_bytes = r->count = r->received = 0;
    r->text.ended = false;
    r->text.items = 0;
}

static void refuse(text_state *t, const char *what) {
    if (t->wrong == NULL) t->wrong = what;
    t->ended = true;
}

/* In the head of a message, or NULL. */
static const char *header(const text_state *t, const char *name) {
    const char *found = strstr(t->kept, name);
    return found == NULL ? NULL : found + strlen(name);
}

static void polled(reply *r, uint64_t length) {
    text_state *t = &r->text;
    const char *origin = header(t, "\r\nT:"), *sequence = header(t, "\r\nNats-Sequence: ");
    if (t->head_length == 0 || origin == NULL) {
        refuse(t, "a message of the server has no time of its origin");
        return;
    }
    if (r->count == 0) r->origin_us = strtoull(origin, NULL, 10);
    if (sequence != NULL) r->next.first = strtoull(sequence, NULL, 10) + 1;
    r->count++;
    r->user_bytes += length - t->head_length;
    r->header_bytes += t->head_length;
}

/* A whole message, of which the first bytes are kept. */
static void delivered(reply *r, const asked *asked, uint64_t length) {
    text_state *t = &r->text;
    t->kept[t->have] = 0;
    int status = t->head_length > 0 && strncmp(t->kept, "NATS/1.0 ", 9) == 0 ? atoi(t->kept + 9) : 0;
    t->items++;
    if (asked == NULL) refuse(t, "the server sent more than the answers");
    else if (status == 503) refuse(t, "nothing at the server answers: it has no such stream");
    else if (asked->poll && (status == 204 || status == 404 || status == 408)) t->ended = true;
    else if (status != 0) refuse(t, NO_ANSWER);
    else if (asked->poll) polled(r, length);
    else if (strncmp(t->kept, "{\"stream\":", 10) != 0) refuse(t, "the server refused a message");
}

/* The lengths of `MSG subject sid [reply] bytes` and `HMSG subject sid [reply] head bytes`. */
static bool lengths_of(text_state *t, bool headers) {
    char *words[6], *rest = NULL;
    int count = 0;
    for (char *word = strtok_r(t->kept, " ", &rest); word != NULL && count < 6; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    if (count < (headers ? 5 : 4)) return false;
    uint64_t whole = strtoull(words[count - 1], NULL, 10), head = headers ? strtoull(words[count - 2], NULL, 10) : 0;
    if (whole > MESSAGE_MAX || head > whole) return false;
    t->head_length = head;
    t->whole_length = whole;
    t->left = whole + 2;
    return true;
}

/* A whole line, in `kept` without its end. */
static void line(text_state *t) {
    t->kept[t->have] = 0;
    t->have = 0;
    bool headers = strncmp(t->kept, "HMSG ", 5) == 0;
    if (headers || strncmp(t->kept, "MSG ", 4) == 0) {
        if (lengths_of(t, headers)) t->counted = true;
        else refuse(t, NO_ANSWER);
    } else if (strncmp(t->kept, "-ERR", 4) == 0) {
        t->kept[120] = 0;
        refuse(t, t->kept);
    } else if (strncmp(t->kept, "PING", 4) != 0 && strncmp(t->kept, "PONG", 4) != 0 &&
               strncmp(t->kept, "+OK", 3) != 0 && strncmp(t->kept, "INFO ", 5) != 0) {
        refuse(t, NO_ANSWER);
    } /* a PING need not be answered within the time that servers of this tool give (targets) */
}

static size_t take_counted(reply *r, const asked *asked, const uint8_t *bytes, size_t length) {
    text_state *t = &r->text;
    size_t part = length < t->left ? length : (size_t)t->left;
    size_t room = sizeof t->kept - 1 - t->have;
    size_t keep = part < room ? part : room;
    memcpy(t->kept + t->have, bytes, keep);
    t->have += (uint32_t)keep;
    t->left -= part;
    if (t->left == 0) {
        t->counted = false;
        delivered(r, asked, t->whole_length);
        if (t->wrong == NULL) t->have = 0;
    }
    return part;
}

static bool complete(const reply *r, const asked *asked) {
    const text_state *t = &r->text;
    if (t->ended || t->counted) return t->ended;
    if (!asked->poll) return t->items == asked->messages;
    return r->count == asked->messages && !asked->ends; /* else there is a word that says so */
}

static size_t take(reply *r, const asked *asked, const uint8_t *bytes, size_t length) {
    text_state *t = &r->text;
    for (size_t at = 0; at < length;) {
        if (t->wrong != NULL) return length;
        if (t->counted) {
            at += take_counted(r, asked, bytes + at, length - at);
            if (asked != NULL && complete(r, asked)) return at;
            continue;
        }
        uint8_t byte = bytes[at++];
        if (byte == '\n' && t->have > 0 && t->kept[t->have - 1] == '\r') {
            t->have--;
            line(t);
        } else if (t->have < sizeof t->kept - 1) t->kept[t->have++] = (char)byte;
        else refuse(t, "the server sends a line without an end");
    }
    return length;
}

static const char *settle(reply *r, const asked *asked) {
    (void)asked;
    return r->text.wrong;
}

const dialect speak_nats = {.speaks_unasked = true,
                            .send_room = send_room,
                            .prepare = prepare,
                            .send = send_nats,
                            .poll = poll_nats,
                            .reset = reset,
                            .take = take,
                            .complete = complete,
                            .settle = settle};
