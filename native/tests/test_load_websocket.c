/* Frames of a WebSocket, as the load engine takes them apart and puts them together. */
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../load/channel.h"

enum { MUTATIONS = 100000, ROOM = 70000 };

/* Text in two frames, a ping between them, an empty frame, a long one of 126 bytes. */
static size_t example(uint8_t *at) {
    uint8_t *begin = at;
    memcpy(at,
           "\x02\x03"
           "abc"
           "\x89\x02"
           "hi"
           "\x80\x02"
           "de"
           "\x82\x00",
           13);
    at += 13;
    memcpy(at, "\x82\x7e\x00\x7e", 4);
    memset(at + 4, 'z', 126);
    return (size_t)(at + 130 - begin);
}

/* In pieces of `cut`; how many pings there were. */
static uint32_t take(uint8_t *bytes, size_t length, size_t cut, uint8_t *out, size_t *kept, frame_reader *r) {
    uint32_t pings = 0;
    *r = (frame_reader){0};
    *kept = 0;
    for (size_t at = 0; at < length && !r->wrong && !r->closed;) {
        size_t part = length - at < cut ? length - at : cut, taken;
        uint8_t *copy = malloc(part);
        if (copy == NULL) abort();
        memcpy(copy, bytes + at, part);
        size_t got = frames_take(r, copy, part, &taken);
        memcpy(out + *kept, copy, got);
        free(copy);
        *kept += got;
        at += taken;
        pings += r->ping;
        r->ping = false;
    }
    return pings;
}

static void test_frames_come_in_any_pieces(void) {
    static uint8_t bytes[ROOM], out[ROOM];
    size_t length = example(bytes), kept;
    frame_reader r;
    for (size_t cut = 1; cut <= length; cut++) {
        CHECK_EQUAL(take(bytes, length, cut, out, &kept, &r), 1);
        CHECK(!r.wrong && !r.closed);
        CHECK_EQUAL(kept, 131);
        CHECK(memcmp(out, "abcdezz", 7) == 0);
        CHECK(r.control_have == 2 && memcmp(r.control, "hi", 2) == 0);
    }
}

static void test_what_is_put_is_masked_and_whole(void) {
    static uint8_t payload[ROOM], frame[ROOM + 14];
    const size_t lengths[] = {0, 1, 125, 126, 65535, 65536};
    for (size_t i = 0; i < ROOM; i++) payload[i] = (uint8_t)(i * 31);
    for (size_t i = 0; i < 6; i++) {
        size_t length = lengths[i], extra = length < 126 ? 0 : length < 65536 ? 2 : 8;
        CHECK_EQUAL(frame_put(frame, 2, payload, length, 0x01020304u), 6 + extra + length);
        CHECK_EQUAL(frame[0], 0x82);
        CHECK_EQUAL(frame[1] & 0x80, 0x80);
        const uint8_t *mask = frame + 2 + extra;
        for (size_t at = 0; at < length; at++) CHECK((mask[4 + at] ^ mask[at % 4]) == payload[at]);
    }
}

static void test_what_a_server_must_not_send_is_wrong(void) {
    const char *const wrong[] = {"\x82\x81", "\xc2\x01", "\x89\x7e\x01\x00"};
    const size_t lengths[] = {2, 2, 4};
    for (size_t i = 0; i < 3; i++) {
        uint8_t bytes[8], out[8];
        size_t kept;
        frame_reader r;
        memcpy(bytes, wrong[i], lengths[i]);
        take(bytes, lengths[i], 1, out, &kept, &r);
        CHECK(r.wrong);
    }
}

static void test_damage_is_survived(void) {
    static uint8_t bytes[ROOM], out[ROOM];
    uint64_t seed = 1;
    for (uint32_t i = 0; i < MUTATIONS; i++) {
        size_t length = example(bytes), kept;
        frame_reader r;
        for (uint32_t many = 0; many <= i % 3; many++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[(seed >> 33) % length] = (uint8_t)(seed >> 17);
        }
        take(bytes, length, 1 + (seed >> 40) % length, out, &kept, &r);
        CHECK(kept <= length);
    }
}

static void test_a_channel_answers_pings_and_sees_the_end(void) {
    static const char upgraded[] = "HTTP/1.1 101 X\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    int pair[2];
    uint8_t bytes[512], into[512];
    char fault[CHANNEL_FAULT_MAX];
    channel_options o = {.websocket = true, .name = "", .ca_file = "", .certificate = "", .key = ""};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    REQUIRE(write(pair[1], upgraded, sizeof upgraded - 1) == (ssize_t)sizeof upgraded - 1);
    size_t length = example(bytes);
    REQUIRE(write(pair[1], bytes, length) == (ssize_t)length);
    channel *c = channel_open(pair[0], &o, fault);
    REQUIRE(c != NULL);
    REQUIRE(read(pair[1], into, sizeof into) > 0); /* the upgrade */
    size_t got = 0;
    while (got < 131) {
        ssize_t n = channel_receive(c, into + got, 64);
        REQUIRE(n > 0);
        got += (size_t)n;
    }
    CHECK(memcmp(into, "abcdezz", 7) == 0);
    uint8_t pong[8];
    CHECK_EQUAL(read(pair[1], pong, sizeof pong), 8);
    CHECK(pong[0] == 0x8a && pong[1] == 0x82 && (pong[6] ^ pong[2]) == 'h' && (pong[7] ^ pong[3]) == 'i');
    REQUIRE(write(pair[1], "\x88\x00", 2) == 2);
    CHECK_EQUAL(channel_receive(c, into, sizeof into), 0);
    channel_close(c);
    close(pair[0]);
    close(pair[1]);
}

int main(void) {
    RUN(test_frames_come_in_any_pieces);
    RUN(test_what_is_put_is_masked_and_whole);
    RUN(test_what_a_server_must_not_send_is_wrong);
    RUN(test_damage_is_survived);
    RUN(test_a_channel_answers_pings_and_sees_the_end);
    return check_report();
}
