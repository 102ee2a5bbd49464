/* Answers of Redis, of NATS and of Apache Iggy 0.9, whole, in pieces and damaged: what they say is found, and damage is
 * a sentence. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "../load/dialect.h"
#include "../load/wire.h"

enum { MUTATIONS = 30000, STEPS_MAX = 100000 };

typedef struct example {
    uint64_t dialect;
    bool poll, ends, assigns;
    uint64_t asked; /* messages */
    const char *bytes;
    size_t length;
    uint64_t count, user_bytes, origin_us;
    position next;
} example;

#define ANSWER(text) .bytes = text, .length = sizeof text - 1
#define REDIS_ENTRY(id) "*2\r\n$4\r\n" id "\r\n*4\r\n$1\r\nt\r\n$8\r\n\x07\0\0\0\0\0\0\0\r\n$1\r\nd\r\n$3\r\na\r\n\r\n"
#define NATS_OWN "T:00000000000000000007\r\n\r\n"

static const example examples[] = {
    {.dialect = DIALECT_REDIS, .asked = 2, ANSWER("$3\r\n7-0\r\n$3\r\n7-1\r\n")},
    {.dialect = DIALECT_REDIS, .poll = true, .asked = 5, ANSWER("*-1\r\n")},
    {.dialect = DIALECT_REDIS,
     .poll = true,
     .asked = 5,
     ANSWER("*1\r\n*2\r\n$1\r\ns\r\n*2\r\n" REDIS_ENTRY("90-3") REDIS_ENTRY("91-4")),
     .count = 2,
     .user_bytes = 6,
     .origin_us = 7,
     .next = {91, 4}},
    {.dialect = DIALECT_NATS,
     .asked = 2,
     ANSWER("MSG _I.0 1 27\r\n{\"stream\":\"bench\", \"seq\":1}\r\nPING\r\n+OK\r\nMSG _I.0 1 "
            "22\r\n{\"stream\":\"b\",\"seq\":2}\r\n")},
    {.dialect = DIALECT_NATS,
     .poll = true,
     .ends = true,
     .asked = 5,
     ANSWER("HMSG _I.0 1 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n")},
    {.dialect = DIALECT_NATS,
     .poll = true,
     .ends = true,
     .asked = 1,
     ANSWER("HMSG _I.0 1 55 58\r\nNATS/1.0\r\nNats-Sequence: 41\r\n" NATS_OWN "abc\r\nHMSG _I.0 1 20 20\r\n"
            "NATS/1.0 204 EOB\r\n\r\n\r\n"),
     .count = 1,
     .user_bytes = 3,
     .origin_us = 7,
     .next = {42, 0}},
    {.dialect = DIALECT_NATS,
     .poll = true,
     .asked = 1,
     ANSWER("HMSG _I.0 1 $JS.ACK.x 36 39\r\nNATS/1.0\r\n" NATS_OWN "abc\r\n"),
     .count = 1,
     .user_bytes = 3,
     .origin_us = 7},
};
enum { EXAMPLES = sizeof examples / sizeof *examples };

/* Feeds it `cut` bytes at a time; false when it is not complete at the end. */
static bool feed(const example *e, const uint8_t *bytes, size_t cut, reply *r, const char **wrong) {
    const actor_plan plan = {.dialect = e->dialect};
    const dialect *d = dialect_of(&plan);
    asked asked = {.poll = e->poll, .ends = e->ends, .assigns = e->assigns, .messages = e->asked};
    *r = (reply){0};
    *wrong = NULL;
    d->reset(r);
    for (size_t at = 0, steps = 0; at < e->length && steps < STEPS_MAX; steps++) {
        size_t part = e->length - at < cut ? e->length - at : cut;
        uint8_t *copy = malloc(part); /* of just this length: a read behind it is seen */
        if (copy == NULL) abort();
        memcpy(copy, bytes + at, part);
        at += d->take(r, &asked, copy, part);
        free(copy);
        if (d->complete(r, &asked)) {
            *wrong = d->settle(r, &asked);
            return at == e->length;
        }
    }
    return false;
}

static void test_answers_say_the_same_in_any_pieces(void) {
    for (size_t i = 0; i < EXAMPLES; i++) {
        const example *e = &examples[i];
        for (size_t cut = 1; cut <= e->length; cut++) {
            reply r;
            const char *wrong;
            REQUIRE(feed(e, (const uint8_t *)e->bytes, cut, &r, &wrong));
            CHECK(wrong == NULL);
            CHECK_EQUAL(r.count, e->count);
            CHECK_EQUAL(r.user_bytes, e->user_bytes);
            CHECK_EQUAL(r.origin_us, e->origin_us);
            CHECK_EQUAL(r.next.first, e->next.first);
            CHECK_EQUAL(r.next.second, e->next.second);
        }
    }
}

/* An answer of 0.9: two batches, of one and of two messages with 3 bytes each; the second has a user header, too. */
static size_t answer_09(uint8_t *at) {
    const uint32_t counts[] = {1, 2};
    uint8_t *begin = at;
    memset(at, 0, 2048);
    at[60] = 8;
    put_u32(at + 256 + 12, 3);
    at += 256 + 16;
    for (uint32_t i = 0; i < 2; i++) {
        put_u64(at + 8, 40 + i);
        put_u64(at + 24, 7 + i);
        put_u32(at + 48, counts[i]);
        at += 256;
        for (uint32_t message = 0; message < counts[i]; message++) {
            put_u32(at + 32, i * message * 5);
            put_u32(at + 36, 3);
            at += 48 + 3 + i * message * 5;
        }
    }
    put_u32(begin + 48, (uint32_t)(at - begin));
    return (size_t)(at - begin);
}

static void test_batches_of_09_say_the_same_in_any_pieces(void) {
    static uint8_t bytes[2048];
    example e = {.dialect = DIALECT_IGGY09, .poll = true, .asked = 5, .bytes = (char *)bytes};
    reply r;
    const char *wrong;
    e.length = answer_09(bytes);
    for (size_t cut = 1; cut <= e.length; cut++) {
        REQUIRE(feed(&e, bytes, cut, &r, &wrong));
        CHECK(wrong == NULL);
        CHECK(r.count == 3 && r.user_bytes == 9 && r.header_bytes == 5 && r.origin_us == 7 && r.next.first == 43);
    }
    for (size_t shorter = 1; shorter < 100; shorter++) {
        answer_09(bytes);
        put_u32(bytes + 48, (uint32_t)(e.length - shorter));
        example cut = e;
        cut.length = e.length - shorter;
        CHECK(!feed(&cut, bytes, cut.length, &r, &wrong) || wrong != NULL);
    }
    answer_09(bytes);
    put_u32(bytes + 216, 6);
    feed(&e, bytes, e.length, &r, &wrong);
    CHECK(wrong != NULL && strstr(wrong, "status 6") != NULL);
    uint64_t seed = 1;
    for (uint32_t i = 0; i < MUTATIONS; i++) {
        e.length = answer_09(bytes);
        for (uint32_t many = 0; many <= i % 3; many++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[(seed >> 33) % e.length] = (uint8_t)(seed >> 17);
        }
        feed(&e, bytes, 1 + (seed >> 40) % e.length, &r, &wrong);
    }
}

/* What a member of a group is told: generation 9, and its partitions 4, 5 and so on. */
static size_t assignment_09(uint8_t *at, uint32_t count) {
    size_t length = 256 + 12 + (size_t)count * 4;
    memset(at, 0, length);
    at[60] = 8;
    put_u32(at + 48, (uint32_t)length);
    put_u64(at + 256, 9);
    put_u32(at + 264, count);
    for (uint32_t i = 0; i < count; i++) put_u32(at + 268 + (size_t)i * 4, 4 + i);
    return length;
}

static void test_partitions_of_a_member_are_those_that_it_was_told(void) {
    uint8_t bytes[512];
    reply r;
    const char *wrong;
    for (uint32_t count = 0; count < 4; count++) {
        example e = {.dialect = DIALECT_IGGY09, .poll = true, .assigns = true, .length = assignment_09(bytes, count)};
        for (size_t cut = 1; cut <= e.length; cut++) {
            REQUIRE(feed(&e, bytes, cut, &r, &wrong));
            CHECK(wrong == NULL && r.own.known && r.own.count == count && r.assigned == (count > 0) && r.count == 0);
            for (uint32_t i = 0; i < count; i++) CHECK_EQUAL(r.own.partitions[i], 4 + i);
            free(r.own.partitions);
        }
    }
    const uint32_t counts[] = {0, 2, 4, 200000, UINT32_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) { /* of three partitions that are there */
        example e = {.dialect = DIALECT_IGGY09, .poll = true, .assigns = true, .length = assignment_09(bytes, 3)};
        put_u32(bytes + 264, counts[i]);
        feed(&e, bytes, e.length, &r, &wrong);
        CHECK(wrong != NULL && strstr(wrong, "as many") != NULL);
        free(r.own.partitions);
    }
    for (uint32_t length = 256; length < 268; length++) {
        example e = {.dialect = DIALECT_IGGY09, .poll = true, .assigns = true, .length = length};
        assignment_09(bytes, 0);
        put_u32(bytes + 48, length);
        REQUIRE(feed(&e, bytes, length, &r, &wrong));
        CHECK(wrong != NULL && !r.own.known);
    }
}

static void test_a_poll_of_another_members_partition_finds_nothing(void) {
    uint8_t bytes[512];
    reply r;
    const char *wrong;
    example e = {.dialect = DIALECT_IGGY09, .poll = true, .asked = 5, .length = 256};
    assignment_09(bytes, 0);
    put_u32(bytes + 48, 256);
    put_u32(bytes + 216, 5009);
    REQUIRE(feed(&e, bytes, 7, &r, &wrong));
    CHECK(wrong == NULL && r.count == 0 && !r.own.known);
    e.poll = false;
    feed(&e, bytes, 256, &r, &wrong);
    CHECK(wrong != NULL);
}

static void test_refusals_are_sentences(void) {
    static const example refused[] = {
        {.dialect = DIALECT_REDIS, .asked = 1, ANSWER("-OOM command not allowed\r\n")},
        {.dialect = DIALECT_REDIS, .asked = 1, ANSWER(":5\r\n")},
        {.dialect = DIALECT_REDIS, .poll = true, .asked = 1, ANSWER("*1\r\n*2\r\n$1\r\ns\r\n*0\r\n")},
        {.dialect = DIALECT_REDIS, .poll = true, .asked = 1, ANSWER("*99999999\r\n")},
        {.dialect = DIALECT_REDIS, .asked = 1, ANSWER("$-1\r\n")},
        {.dialect = DIALECT_NATS, .asked = 1, ANSWER("-ERR 'Slow Consumer'\r\n")},
        {.dialect = DIALECT_NATS, .asked = 1, ANSWER("MSG _I.0 1 11\r\n{\"error\":{}}\r\n")},
        {.dialect = DIALECT_NATS, .asked = 1, ANSWER("HMSG _I.0 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")},
        {.dialect = DIALECT_NATS, .poll = true, .asked = 1, ANSWER("MSG _I.0 1 3\r\nabc\r\n")},
        {.dialect = DIALECT_NATS, .asked = 1, ANSWER("MSG _I.0 1\r\n")},
        {.dialect = DIALECT_NATS, .asked = 1, ANSWER("HMSG _I.0 1 9 3\r\n")},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        reply r;
        const char *wrong;
        feed(&refused[i], (const uint8_t *)refused[i].bytes, refused[i].length, &r, &wrong);
        CHECK(wrong != NULL && strlen(wrong) > 4);
    }
}

static void test_damage_is_survived(void) {
    uint64_t seed = 1;
    uint8_t bytes[512];
    for (uint32_t i = 0; i < MUTATIONS; i++) {
        const example *e = &examples[i % EXAMPLES];
        reply r;
        const char *wrong;
        memcpy(bytes, e->bytes, e->length);
        for (uint32_t many = 0; many <= i % 3; many++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[(seed >> 33) % e->length] = (uint8_t)(seed >> 17);
        }
        feed(e, bytes, 1 + (seed >> 40) % e->length, &r, &wrong);
    }
    CHECK(true);
}

int main(void) {
    RUN(test_answers_say_the_same_in_any_pieces);
    RUN(test_batches_of_09_say_the_same_in_any_pieces);
    RUN(test_partitions_of_a_member_are_those_that_it_was_told);
    RUN(test_a_poll_of_another_members_partition_finds_nothing);
    RUN(test_refusals_are_sentences);
    RUN(test_damage_is_survived);
    return check_report();
}
