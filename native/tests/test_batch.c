/* SEND_MESSAGES: statuses and their order, assignment, ids. The recorded answers of the reference server are replayed
 * in tests/unit/test_log_native.py; here: exact buffers under ASan, and rules that the recording does not hold. */
#include "log/batch.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

typedef struct request {
    uint8_t bytes[4096];
    size_t length;
} request;

static void put(request *r, const void *data, size_t length) {
    memcpy(r->bytes + r->length, data, length);
    r->length += length;
}

static void put_u32(request *r, uint32_t value) { put(r, &value, 4); }

/* A right request: stream "st", topic 7, this partitioning, messages with 5 + 10 i bytes of payload, i of headers. */
static request make(const void *partitioning, uint8_t partitioning_length, uint32_t count) {
    request r = {.length = 0};
    put_u32(&r, 4 + 6 + partitioning_length + 4);
    put(&r, "\x02\x02st\x01\x04\x07\0\0\0", 10);
    put(&r, partitioning, partitioning_length);
    put_u32(&r, count);
    uint32_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        end += RECORD_HEADER_SIZE + 5 + 11 * i;
        put_u32(&r, 0);
        put_u32(&r, end);
        put(&r, (uint8_t[8]){0}, 8);
    }
    for (uint32_t i = 0; i < count; i++) {
        put(&r, (uint8_t[40]){0}, 40);
        put(&r, (uint64_t[]){1700000000}, 8);
        put_u32(&r, i);
        put_u32(&r, 5 + 10 * i);
        put(&r, (uint8_t[8]){0}, 8);
        for (uint32_t k = 0; k < 5 + 11 * i; k++) put(&r, "x", 1);
    }
    return r;
}

static const uint8_t BALANCED[] = {1, 0};

/* Parses a copy of exactly these bytes, so that ASan sees every byte read too much. */
static uint32_t parse(const request *r, size_t length) {
    uint8_t *exact = malloc(length > 0 ? length : 1);
    memcpy(exact, r->bytes, length);
    send_request out;
    uint32_t status = send_request_parse(exact, length, &out);
    free(exact);
    return status;
}

static void test_fields(void) {
    request r = make("\x03\x04key!", 6, 2);
    send_request out;
    CHECK_EQUAL(send_request_parse(r.bytes, r.length, &out), 0);
    CHECK(out.address == r.bytes + 4 && out.stream_length == 4 && out.topic_length == 6);
    CHECK(out.partitioning == PARTITIONING_MESSAGES_KEY && out.key_length == 4 && memcmp(out.key, "key!", 4) == 0);
    CHECK_EQUAL(out.count, 2);
    CHECK_EQUAL(out.messages_length, 69 + 80);
    CHECK(out.messages == r.bytes + r.length - 149);
    r = make("\x02\x04\x09\0\0\0", 6, 1);
    CHECK_EQUAL(send_request_parse(r.bytes, r.length, &out), 0);
    CHECK(out.partitioning == PARTITIONING_PARTITION_ID && out.partition_id == 9);
}

static void test_every_cut(void) {
    request r = make(BALANCED, 2, 3);
    size_t index_end = 4 + 16 + 3 * 16;
    CHECK_EQUAL(parse(&r, r.length), 0);
    for (size_t length = 0; length < r.length; length++) {
        uint32_t status = parse(&r, length);
        if (length < index_end) CHECK_EQUAL(status, 3);
        else if (length == index_end) CHECK_EQUAL(status, 4009); /* index, but no body */
        else CHECK(status == 4033);
    }
}

static void test_every_flip_is_safe(void) {
    request r = make("\x03\x02k1", 4, 3);
    for (size_t i = 0; i < r.length; i++)
        for (int bit = 0; bit < 8; bit++) {
            request flipped = r;
            flipped.bytes[i] ^= (uint8_t)(1 << bit);
            uint32_t status = parse(&flipped, r.length);
            static const uint32_t known[] = {0, 3, 6, 4009, 4031, 4032, 4033, 4036, 4100, 4101, 10011};
            bool expected = false;
            for (size_t k = 0; k < sizeof known / sizeof *known; k++) expected |= status == known[k];
            CHECK(expected);
        }
}

static uint32_t identifier_status(const char *identifier, uint8_t length) {
    request r = {.length = 0};
    put_u32(&r, length + 6u + 2 + 4);
    put(&r, identifier, length);
    put(&r, "\x01\x04\0\0\0\0\x01\0", 8);
    put_u32(&r, 0);
    return parse(&r, r.length);
}

static void test_identifiers(void) {
    CHECK_EQUAL(identifier_status("\x02\x01z", 3), 4009); /* well formed: the count of 0 comes next */
    CHECK_EQUAL(identifier_status("\x02\x02\xc3\xbc", 4), 4009);
    CHECK_EQUAL(identifier_status("\x02\x04\xf0\x9f\x98\x80", 6), 4009);
    static const struct {
        const char *text;
        uint8_t length;
    } refused[] = {
        {"\x02\x01\xff", 3},
        {"\x02\x02\xc3z", 4},
        {"\x02\x01\xc3", 3},
        {"\x02\x02\xc0\x80", 4},
        {"\x02\x03\xed\xa0\x80", 5},
        {"\x02\x03\xe0\x80\x80", 5},
        {"\x02\x04\xf4\x90\x80\x80", 6},
        {"\x02\x04\xf0\x80\x80\x80", 6},
        {"\x02\x00", 2},
        {"\x01\x03zzz", 5},
        {"\x03\x01z", 3},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        CHECK_EQUAL(identifier_status(refused[i].text, refused[i].length), 6);
}

static void test_sizes(void) {
    /* One message of the given sizes and nothing else: really that long, so the limits answer. */
    static const struct {
        uint32_t payload, headers, status;
    } rows[] = {
        {0, 0, 0},
        {PAYLOAD_SIZE_MAX, 0, 0},
        {PAYLOAD_SIZE_MAX + 1, 0, 4022},
        {1, USER_HEADERS_SIZE_MAX, 0},
        {1, USER_HEADERS_SIZE_MAX + 1, 4017},
        {PAYLOAD_SIZE_MAX + 1, USER_HEADERS_SIZE_MAX + 1, 4022},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t length = RECORD_HEADER_SIZE + rows[i].payload + rows[i].headers;
        uint8_t *messages = calloc(1, length);
        memcpy(messages + 48, &rows[i].headers, 4);
        memcpy(messages + 52, &rows[i].payload, 4);
        uint32_t index[4] = {0, (uint32_t)length, 0, 0};
        CHECK_EQUAL(batch_validate((const uint8_t *)index, 1, messages, length), rows[i].status);
        free(messages);
    }
}

static void test_count_beyond_body(void) {
    request r = make(BALANCED, 2, 1);
    uint32_t count = UINT32_MAX;
    memcpy(r.bytes + 4 + 12, &count, 4);
    CHECK_EQUAL(parse(&r, r.length), 3);
}

static void test_assign(void) {
    request r = make(BALANCED, 2, 3);
    send_request out;
    REQUIRE(send_request_parse(r.bytes, r.length, &out) == 0);
    uint64_t own_id = 42;
    memcpy(out.messages + 69 + 8, &own_id, 8); /* the second message brings its id */
    id_source ids;
    id_source_seed_fixed(&ids, 7);
    index_entry entries[3];
    batch_assign(out.messages, out.messages_length, 3, 500, 123456, 20, 1000, &ids, entries);
    static const uint32_t ends[] = {69, 149, 240};
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQUAL(entries[i].relative_offset, 20 + i);
        CHECK_EQUAL(entries[i].end_position, 1000 + ends[i]);
        CHECK_EQUAL(entries[i].timestamp, 123456);
    }
    record_scan scan;
    CHECK_EQUAL(record_scan_buffer(out.messages, out.messages_length, 500, 123456, 500, 0, NULL, 0, &scan), RECORD_OK);
    CHECK_EQUAL(scan.count, 3);
    CHECK(memcmp(out.messages + 69 + 8, &own_id, 8) == 0);
    const uint8_t *first = out.messages + 8, *third = out.messages + 149 + 8;
    CHECK_EQUAL(first[6] >> 4, 4);
    CHECK_EQUAL(first[8] >> 6, 2);
    CHECK(memcmp(first, third, 16) != 0);
}

static void test_id_sources(void) {
    id_source a, b;
    id_source_seed_fixed(&a, 0);
    CHECK_EQUAL(a.state[0], 0xe220a8397b1dcdaf); /* the published first outputs of splitmix64 from seed 0 */
    CHECK_EQUAL(a.state[1], 0x6e789e6aa1b965f4);
    CHECK(id_source_seed(&a) == 0 && id_source_seed(&b) == 0);
    CHECK(memcmp(&a, &b, sizeof a) != 0);
}

int main(void) {
    RUN(test_fields);
    RUN(test_every_cut);
    RUN(test_every_flip_is_safe);
    RUN(test_identifiers);
    RUN(test_sizes);
    RUN(test_count_beyond_body);
    RUN(test_assign);
    RUN(test_id_sources);
    return check_report();
}
