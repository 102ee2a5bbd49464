/* WebSocket (RFC 6455): the request that opens a connection, and its frames, in pieces of any size. */
#include "base/sha1.h"
#include "net/websocket_frames.h"
#include "net/websocket_upgrade.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define GOOD \
    "Host: localhost\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n" \
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

/* ---- the request ---- */

static upgrade_result feed(upgrade *u, const char *origins, const char *text, size_t length, size_t step, size_t *all) {
    upgrade_result result = UPGRADE_MORE;
    *all = 0;
    *u = (upgrade){0};
    while (result == UPGRADE_MORE && *all < length) {
        size_t part = length - *all < step ? length - *all : step, used = SIZE_MAX;
        result = upgrade_feed(u, origins, (const uint8_t *)text + *all, part, &used);
        CHECK(used <= part && (result != UPGRADE_MORE || used == part));
        *all += used;
    }
    return result;
}

/* The status of HTTP; 0: it needs more. What is behind the request is left alone. */
static uint32_t status_of(const char *origins, const char *text) {
    upgrade u;
    size_t length = strlen(text), all, first;
    char answer[UPGRADE_ANSWER_MAX];
    upgrade_result whole = feed(&u, origins, text, length, length, &first);
    uint32_t status = whole == UPGRADE_MORE ? 0 : whole == UPGRADE_DONE ? 101 : u.status;
    for (size_t step = 1; step < 9; step++) {
        CHECK_EQUAL(feed(&u, origins, text, length, step, &all), whole);
        CHECK_EQUAL(all, first);
        CHECK_EQUAL(whole == UPGRADE_REFUSED ? u.status : status, status);
    }
    if (whole == UPGRADE_MORE) return 0;
    CHECK(upgrade_answer(&u, answer) < sizeof answer);
    CHECK_EQUAL(strtoul(answer + 9, NULL, 10), status);
    return status;
}

static void test_the_answer_is_that_of_the_standard(void) {
    static const char text[] = "GET /chat?x=1 HTTP/1.1\r\n" GOOD "\r\n";
    upgrade u;
    size_t all;
    char answer[UPGRADE_ANSWER_MAX];
    CHECK_EQUAL(feed(&u, "", text, sizeof text - 1, 7, &all), UPGRADE_DONE);
    upgrade_answer(&u, answer);
    CHECK(strstr(answer, "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n") != NULL);
}

static void test_sha1_of_known_texts(void) {
    static const uint8_t abc[] = {0xa9, 0x99, 0x3e, 0x36, 0x47, 0x06, 0x81, 0x6a, 0xba, 0x3e,
                                  0x25, 0x71, 0x78, 0x50, 0xc2, 0x6c, 0x9c, 0xd0, 0xd8, 0x9d};
    static const uint8_t two_blocks[] = {0x84, 0x98, 0x3e, 0x44, 0x1c, 0x3b, 0xd2, 0x6e, 0xba, 0xae,
                                         0x4a, 0xa1, 0xf9, 0x51, 0x29, 0xe5, 0xe5, 0x46, 0x70, 0xf1};
    static const char text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    uint8_t out[SHA1_BYTES];
    sha1((const uint8_t *)"abc", 3, out);
    CHECK(memcmp(out, abc, sizeof abc) == 0);
    sha1((const uint8_t *)text, sizeof text - 1, out);
    CHECK(memcmp(out, two_blocks, sizeof two_blocks) == 0);
}

static void test_requests_are_taken_as_strictly_as_they_are_written(void) {
    static const struct {
        const char *text;
        uint32_t status;
    } cases[] = {
        {"GET / HTTP/1.1\r\n" GOOD "\r\n", 101},
        {"GET / HTTP/1.1\r\n" GOOD "\r\nmore", 101},
        {"GET http://localhost/ HTTP/1.1\r\n" GOOD "\r\n", 101},
        {"GET / HTTP/1.1\r\n" GOOD "X:\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n", 101},
        {"GET / HTTP/1.1\r\n" GOOD "Sec-WebSocket-Protocol: a, b\r\n\r\n", 101},
        {"GET / HTTP/1.1\r\n" GOOD, 0},
        {"GET / HTTP/1.1\r\n" GOOD "\r", 0},
        {"POST / HTTP/1.1\r\n" GOOD "\r\n", 405},
        {"get / HTTP/1.1\r\n" GOOD "\r\n", 405},
        {"GET  / HTTP/1.1\r\n" GOOD "\r\n", 400},
        {"GET / HTTP/1.0\r\n" GOOD "\r\n", 400},
        {"GET x HTTP/1.1\r\n" GOOD "\r\n", 400},
        {"GET /#x HTTP/1.1\r\n" GOOD "\r\n", 400},
        {"GET /\x80 HTTP/1.1\r\n" GOOD "\r\n", 400},
        {"GET / HTTP/1.1\n" GOOD "\r\n", 400},
        {"GET / HTTP/1.1\rx", 400},
        {"\r\nGET / HTTP/1.1\r\n" GOOD "\r\n", 405},
        {"GET / HTTP/1.1\r\n" GOOD "Host: twice\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" GOOD "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" GOOD "Content-Length: 5\r\n\r\nhello", 400},
        {"GET / HTTP/1.1\r\n" GOOD "Content-Length: 0\r\n\r\n", 101},
        {"GET / HTTP/1.1\r\n" GOOD "Transfer-Encoding: chunked\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" GOOD " folded\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" GOOD "Name : x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" GOOD "no colon\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" GOOD "X: \x01\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 426},
        {"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n\r\n",
         426},
        {"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
         400},
        {"GET / HTTP/1.1\r\nHost: h\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZR==\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
         400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t status = status_of("", cases[i].text);
        if (status != cases[i].status) fprintf(stderr, "  case %zu\n", i);
        CHECK_EQUAL(status, cases[i].status);
    }
}

static void test_browsers_come_from_listed_origins_only(void) {
    static const char from_a[] = "GET / HTTP/1.1\r\n" GOOD "Origin: https://a.example\r\n\r\n";
    static const char from_null[] = "GET / HTTP/1.1\r\n" GOOD "Origin: null\r\n\r\n";
    CHECK_EQUAL(status_of("", from_a), 403);
    CHECK_EQUAL(status_of("https://b.example\nhttps://a.example\n", from_a), 101);
    CHECK_EQUAL(status_of("https://a.example:1\nhttps://a.exampl\n", from_a), 403);
    CHECK_EQUAL(status_of("*\n", from_a), 101);
    CHECK_EQUAL(status_of("https://a.example\n", from_null), 403);
}

static void test_a_request_has_bounds_and_long_cookies(void) {
    char *text = malloc(2 * UPGRADE_BYTES_MAX);
    static const char head[] = "GET / HTTP/1.1\r\n" GOOD;
    for (uint32_t size = 100; size < 3 * UPGRADE_LINE_BYTES; size += 97) { /* a cookie that is not kept whole */
        int length = sprintf(text, "%sCookie: %0*u\r\n\r\n", head, (int)size, 0u);
        text[length] = '\0';
        CHECK_EQUAL(status_of("", text), 101);
    }
    sprintf(text, "%sOrigin: %0*u\r\n\r\n", head, (int)UPGRADE_LINE_BYTES, 0u);
    CHECK_EQUAL(status_of("*\n", text), 431);
    sprintf(text, "GET /%0*u HTTP/1.1\r\n" GOOD "\r\n", (int)UPGRADE_LINE_BYTES, 0u);
    CHECK_EQUAL(status_of("", text), 414);
    sprintf(text, "%sCookie: %0*u\r\n\r\n", head, (int)UPGRADE_BYTES_MAX, 0u);
    CHECK_EQUAL(status_of("", text), 431);
    char *at = text + sprintf(text, "%s", head);
    for (uint32_t i = 0; i < UPGRADE_HEADERS_MAX; i++) at += sprintf(at, "X: y\r\n");
    sprintf(at, "\r\n");
    CHECK_EQUAL(status_of("", text), 431);
    free(text);
}

/* ---- frames ---- */

static const frame_limits wide = {.frame_bytes_max = 1u << 30, .message_bytes_max = 1u << 30};

static size_t put(uint8_t *at, uint8_t first, const uint8_t *bytes, size_t length, uint32_t mask) {
    uint8_t head[WEBSOCKET_HEAD_OUT_MAX];
    size_t size = frame_put_head(head, length);
    head[0] = first;
    head[1] |= 0x80;
    memcpy(at, head, size);
    memcpy(at + size, &mask, 4);
    for (size_t i = 0; i < length; i++) at[size + 4 + i] = bytes[i] ^ (uint8_t)(mask >> (8 * (i % 4)));
    return size + 4 + length;
}

/* Fragments with PINGs between them, cut anywhere and read into rooms of any size, are the bytes that were sent. */
static void test_fragments_are_one_stream_however_they_come(void) {
    enum { SIZE = 70000 };
    uint8_t *plain = malloc(SIZE), *sent = malloc(2 * SIZE), *got = malloc(SIZE);
    static const size_t parts[] = {0, 1, 125, 126, 127, 1000, 65535, 3, 0, 211};
    size_t length = 0, taken = 0;
    for (size_t i = 0; i < SIZE; i++) plain[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool last = i == sizeof parts / sizeof parts[0] - 1;
        length += put(sent + length, (uint8_t)((last ? 0x80 : 0) | (i == 0 ? FRAME_BINARY : FRAME_CONTINUATION)),
                      plain + taken, parts[i], 0x9abcdef1u * (uint32_t)(i + 1));
        taken += parts[i];
        length += put(sent + length, 0x80 | FRAME_PING, (const uint8_t *)"ping", 4, 77);
    }
    for (size_t step = 1; step < 80000; step = step * 3 + 1) {
        for (size_t room = 1; room < 80000; room = room * 5 + 2) {
            frame_input f = {0};
            size_t at = 0, have = 0;
            for (bool moved = true; moved;) {
                size_t part = length - at < step ? length - at : step, used = SIZE_MAX;
                size_t space = SIZE - have < room ? SIZE - have : room;
                size_t written = frames_decode(&f, &wide, sent + at, part, &used, got + have, space);
                CHECK(used <= part && written <= space);
                moved = used > 0 || written > 0;
                at += used;
                have += written;
            }
            CHECK(!f.closed && at == length && have == taken && memcmp(got, plain, taken) == 0);
            CHECK(f.pong_due && f.pong_length == 4 && memcmp(f.pong, "ping", 4) == 0);
        }
    }
    free(plain);
    free(sent);
    free(got);
}

static void test_what_is_no_frame_ends_the_connection_with_its_code(void) {
    static const struct {
        const char *bytes;
        size_t length;
        uint16_t code;
    } cases[] = {
        {"\xc2\x80", 2, CLOSE_PROTOCOL_ERROR},                                      /* a reserved bit */
        {"\x82\x00", 2, CLOSE_PROTOCOL_ERROR},                                      /* no mask */
        {"\x83\x80", 2, CLOSE_PROTOCOL_ERROR},                                      /* no such opcode */
        {"\x8b\x80", 2, CLOSE_PROTOCOL_ERROR},                                      /* neither */
        {"\x09\x80", 2, CLOSE_PROTOCOL_ERROR},                                      /* a PING in fragments */
        {"\x89\xfe", 2, CLOSE_PROTOCOL_ERROR},                                      /* a long PING */
        {"\x80\x80", 2, CLOSE_PROTOCOL_ERROR},                                      /* continues nothing */
        {"\x02\x80mask\x82\x80", 8, CLOSE_PROTOCOL_ERROR},                          /* two messages at a time */
        {"\x82\xfe\x00\x7dmask", 8, CLOSE_PROTOCOL_ERROR},                          /* 125 in two bytes */
        {"\x82\xff\x00\x00\x00\x00\x00\x00\xff\xffmask", 14, CLOSE_PROTOCOL_ERROR}, /* 65535 in eight */
        {"\x82\xff\x80\x00\x00\x00\x00\x00\x00\x00mask", 14, CLOSE_PROTOCOL_ERROR}, /* the highest bit */
        {"\x82\xff\x00\x00\x00\x00\x7f\xff\xff\xffmask", 14, CLOSE_TOO_BIG},
        {"\x88\x81\0\0\0\0\x03", 7, CLOSE_PROTOCOL_ERROR},     /* half a code */
        {"\x88\x82\0\0\0\0\x03\xec", 8, CLOSE_PROTOCOL_ERROR}, /* 1004 */
        {"\x88\x83\0\0\0\0\x03\xe8\xff", 9, CLOSE_INVALID_TEXT},
        {"\x88\x84\0\0\0\0\x03\xe8\xc3\xa4", 10, CLOSE_NORMAL},
        {"\x88\x80\0\0\0\0", 6, CLOSE_NOTHING_SAID},
        {"\x81\x81\0\0\0\0\xff", 7, CLOSE_INVALID_TEXT},
        {"\x81\x82\0\0\0\0\xe2\x82", 8, CLOSE_INVALID_TEXT},     /* half a character */
        {"\x81\x83\0\0\0\0\xed\xa0\x80", 9, CLOSE_INVALID_TEXT}, /* a surrogate */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t step = 1; step < 15; step++) {
            frame_input f = {0};
            uint8_t out[16];
            for (size_t at = 0, used = 1; at < cases[i].length && used > 0 && !f.closed; at += used) {
                size_t part = cases[i].length - at < step ? cases[i].length - at : step;
                CHECK_EQUAL(
                    frames_decode(&f, &wide, (const uint8_t *)cases[i].bytes + at, part, &used, out, sizeof out), 0);
            }
            if (!f.closed || f.close_code != cases[i].code) fprintf(stderr, "  case %zu\n", i);
            CHECK(f.closed);
            CHECK_EQUAL(f.close_code, cases[i].code);
            CHECK_EQUAL(f.broken, cases[i].code != CLOSE_NORMAL && cases[i].code != CLOSE_NOTHING_SAID);
        }
    }
}

static void test_limits_count_frames_and_messages(void) {
    frame_limits limits = {.frame_bytes_max = 10, .message_bytes_max = 15};
    uint8_t bytes[64], out[64];
    for (size_t second = 5; second <= 6; second++) {
        frame_input f = {0};
        size_t used, length = put(bytes, FRAME_BINARY, out, 10, 1);
        length += put(bytes + length, FRAME_CONTINUATION, out, second, 1);
        frames_decode(&f, &limits, bytes, length, &used, out, sizeof out);
        CHECK_EQUAL(f.closed, second > 5);
    }
    frame_input f = {0};
    size_t used, length = put(bytes, 0x80 | FRAME_BINARY, out, 11, 1);
    frames_decode(&f, &limits, bytes, length, &used, out, sizeof out);
    CHECK_EQUAL(f.close_code, CLOSE_TOO_BIG);
}

static void test_heads_of_ours_are_as_short_as_they_can_be(void) {
    static const struct {
        uint64_t length;
        size_t head;
    } cases[] = {{0, 2}, {125, 2}, {126, 4}, {65535, 4}, {65536, 10}, {1ull << 40, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t head[WEBSOCKET_HEAD_OUT_MAX];
        CHECK_EQUAL(frame_put_head(head, cases[i].length), cases[i].head);
        frame_input f = {0};
        frame_limits all = {.frame_bytes_max = UINT64_MAX, .message_bytes_max = UINT64_MAX, .accept_unmasked = true};
        size_t used;
        frames_decode(&f, &all, head, cases[i].head, &used, NULL, 0);
        CHECK(!f.closed && used == cases[i].head && f.left == cases[i].length);
    }
}

int main(void) {
    RUN(test_the_answer_is_that_of_the_standard);
    RUN(test_sha1_of_known_texts);
    RUN(test_requests_are_taken_as_strictly_as_they_are_written);
    RUN(test_browsers_come_from_listed_origins_only);
    RUN(test_a_request_has_bounds_and_long_cookies);
    RUN(test_fragments_are_one_stream_however_they_come);
    RUN(test_what_is_no_frame_ends_the_connection_with_its_code);
    RUN(test_limits_count_frames_and_messages);
    RUN(test_heads_of_ours_are_as_short_as_they_can_be);
    return check_report();
}
