/* Records in the forms of earlier clients. The bytes of real clients: tests/unit/test_legacy_frames.py. */
#include "wire/record_forms.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"
#include "check.h"
#include "log/batch.h"
#include "wire/crc32.h"
#include "wire/user_headers.h"

#define KEYLESS "\x01\0\0\0k\x0b\x04\0\0\0\x09\0\0\0" /* k = uint32 9 */
#define KEYLESS_SIZE 14u
#define STORED "\x02" KEYLESS
#define RAW_KEY "\x01\x01\0\0\0r\x03\x01\0\0\0\x01"
#define RAW_KEY_SIZE 12u

static uint8_t *put_u32(uint8_t *at, uint32_t value) {
    memcpy(at, &value, 4);
    return at + 4;
}

/* A stored record with offset, timestamp and id that tell which it is. */
static uint8_t *put_stored(uint8_t *at, uint8_t number, const void *payload, uint32_t length, const void *headers,
                           uint32_t headers_length) {
    memset(at, 0, RECORD_HEADER_SIZE);
    memset(at + 8, 0x10 + number, 16);
    at[24] = number;
    at[32] = (uint8_t)(100 + number);
    put_u32(put_u32(at + 48, headers_length), length);
    memcpy(at + RECORD_HEADER_SIZE, payload, length);
    if (headers_length > 0) memcpy(at + RECORD_HEADER_SIZE + length, headers, headers_length);
    return at + RECORD_HEADER_SIZE + length + headers_length;
}

/* Exactly these bytes, so that ASan sees every byte too much. */
static uint8_t *exact(const uint8_t *from, size_t length) {
    uint8_t *copy = malloc(length > 0 ? length : 1);
    memcpy(copy, from, length);
    return copy;
}

static void test_checksum(void) {
    CHECK(crc32_of((const uint8_t *)"", 0) == 0);
    CHECK(crc32_of((const uint8_t *)"hello", 5) == 0x3610a686u);
    CHECK(crc32_of((const uint8_t *)"123456789", 9) == 0xcbf43926u);
    CHECK(crc32_of((const uint8_t *)"The quick brown fox jumps over the lazy dog", 43) == 0x414fa339u);
}

static void test_user_headers(void) {
    uint8_t out[64];
    size_t stored;
    CHECK(user_headers_strip((const uint8_t *)STORED RAW_KEY, KEYLESS_SIZE + 1 + RAW_KEY_SIZE, out) == KEYLESS_SIZE);
    CHECK(memcmp(out, KEYLESS, KEYLESS_SIZE) == 0);
    CHECK(user_headers_strip((const uint8_t *)KEYLESS, KEYLESS_SIZE, out) == 0); /* not as it is stored */
    for (size_t cut = 1; cut < KEYLESS_SIZE + 1; cut++)
        CHECK(user_headers_strip((const uint8_t *)STORED, cut, out) == 0);
    CHECK(user_headers_measure((const uint8_t *)KEYLESS KEYLESS, 2 * KEYLESS_SIZE, &stored));
    CHECK(stored == 2 * KEYLESS_SIZE + 2);
    user_headers_extend((const uint8_t *)KEYLESS, KEYLESS_SIZE, out);
    CHECK(memcmp(out, STORED, KEYLESS_SIZE + 1) == 0);
    for (size_t cut = 1; cut < KEYLESS_SIZE; cut++)
        CHECK(!user_headers_measure((const uint8_t *)KEYLESS, cut, &stored));
    CHECK(!user_headers_measure((const uint8_t *)"\x01\0\0\0k\x10\x01\0\0\0\x09", 11, &stored)); /* no such kind */
}

static void test_answered_with_the_whole_header_but_its_end(void) {
    uint8_t records[512], *end = put_stored(records, 1, "hello", 5, STORED, KEYLESS_SIZE + 1);
    end = put_stored(end, 2, "", 0, "", 0);
    uint8_t *work = exact(records, (size_t)(end - records));
    size_t length = records_to_form(work, (size_t)(end - records), RECORD_FORM_56);
    CHECK(length == 56 + 5 + KEYLESS_SIZE + 56);
    CHECK(memcmp(work, records, 48) == 0 && load_u32(work + 48) == KEYLESS_SIZE && load_u32(work + 52) == 5);
    CHECK(memcmp(work + 56, "hello" KEYLESS, 5 + KEYLESS_SIZE) == 0);
    const uint8_t *second = work + 56 + 5 + KEYLESS_SIZE;
    CHECK(second[24] == 2 && load_u32(second + 48) == 0 && load_u32(second + 52) == 0);
    free(work);
}

static void test_answered_with_state_and_checksum(void) {
    uint8_t records[512], *end = put_stored(records, 1, "hello", 5, STORED RAW_KEY, KEYLESS_SIZE + 1 + RAW_KEY_SIZE);
    end = put_stored(end, 2, "hi", 2, "junk", 4);
    uint8_t *work = exact(records, (size_t)(end - records));
    size_t length = records_to_form(work, (size_t)(end - records), RECORD_FORM_45);
    CHECK(length == 45 + 5 + KEYLESS_SIZE + 45 + 2);
    CHECK(load_u64(work) == 1 && work[8] == 1 && load_u64(work + 9) == 101 && work[17] == 0x11 && work[32] == 0x11);
    CHECK(load_u32(work + 33) == 0x3610a686u && load_u32(work + 37) == KEYLESS_SIZE);
    CHECK(memcmp(work + 41, KEYLESS "\x05\0\0\0hello", KEYLESS_SIZE + 9) == 0);
    const uint8_t *second = work + 45 + 5 + KEYLESS_SIZE;
    CHECK(load_u64(second) == 2 && load_u32(second + 37) == 0 && memcmp(second + 41, "\x02\0\0\0hi", 6) == 0);
    free(work);
}

static void test_long_headers_move_a_payload_up(void) {
    uint8_t block[400], records[700], *at = block;
    for (int i = 0; i < 20; i++, at += KEYLESS_SIZE + 1) memcpy(at, STORED, KEYLESS_SIZE + 1);
    uint8_t *end = put_stored(records, 1, "hello", 5, block, (uint32_t)(at - block));
    uint8_t *work = exact(records, (size_t)(end - records));
    size_t length = records_to_form(work, (size_t)(end - records), RECORD_FORM_45);
    CHECK(length == 45 + 5 + 20 * KEYLESS_SIZE);
    CHECK(memcmp(work + 41 + 20 * KEYLESS_SIZE, "\x05\0\0\0hello", 9) == 0);
    free(work);
}

static void test_an_empty_last_record_has_a_byte_behind_it(void) {
    uint8_t records[512], *end = put_stored(records, 1, "", 0, "", 0);
    size_t one = (size_t)(end - records);
    end = put_stored(end, 2, "", 0, "", 0);
    uint8_t *work = exact(records, (size_t)(end - records));
    CHECK(records_to_form(work, (size_t)(end - records), RECORD_FORM_45) == 45 + 45 + 1 && work[90] == 0);
    memcpy(work, records, one);
    CHECK(records_to_form(work, one, RECORD_FORM_36) == 36);
    memcpy(work, records, one);
    CHECK(records_to_form(work, one, RECORD_FORM_40) == 40);
    free(work);
}

static void test_answered_without_headers(void) {
    uint8_t records[512], *end = put_stored(records, 3, "hello", 5, STORED, KEYLESS_SIZE + 1);
    uint8_t *work = exact(records, (size_t)(end - records));
    CHECK(records_to_form(work, (size_t)(end - records), RECORD_FORM_36) == 41);
    CHECK(load_u64(work) == 3 && load_u64(work + 8) == 103 && work[16] == 0x13 && load_u32(work + 32) == 5);
    CHECK(memcmp(work + 36, "hello", 5) == 0);
    memcpy(work, records, (size_t)(end - records));
    CHECK(records_to_form(work, (size_t)(end - records), RECORD_FORM_40) == 40 + 5 + KEYLESS_SIZE);
    free(work);
}

/* id, [headers,] payload */
static uint8_t *put_legacy(uint8_t *at, uint8_t id, bool headers, const char *payload) {
    memset(at, id, 16);
    at += 16;
    if (headers) {
        at = put_u32(at, KEYLESS_SIZE);
        memcpy(at, KEYLESS, KEYLESS_SIZE);
        at += KEYLESS_SIZE;
    }
    at = put_u32(at, (uint32_t)strlen(payload));
    memcpy(at, payload, strlen(payload));
    return at + strlen(payload);
}

static void test_sent_becomes_a_batch(void) {
    uint8_t sent[512], *end = put_legacy(put_legacy(sent, 7, true, "hello"), 0, true, "");
    uint8_t *work = exact(sent, (size_t)(end - sent));
    sent_records found;
    CHECK(sent_records_measure(work, (size_t)(end - sent), SEND_FORM_24, 0, &found) == 0);
    CHECK(found.count == 2 && found.batch_length == 2 * 16 + 2 * (64 + KEYLESS_SIZE + 1) + 5);
    uint8_t *batch = malloc(found.batch_length);
    sent_records_write(work, (size_t)(end - sent), SEND_FORM_24, &found, batch);
    CHECK(batch_check(batch, found.batch_length, found.count) == 0);
    CHECK(batch[32 + 8] == 7 && memcmp(batch + 32 + 64, "hello" STORED, 5 + KEYLESS_SIZE + 1) == 0);
    free(batch);
    for (size_t cut = 1; cut < (size_t)(end - sent); cut++) {
        uint8_t *part = exact(sent, cut);
        uint32_t status = sent_records_measure(part, cut, SEND_FORM_24, 0, &found);
        CHECK(status == STATUS_INVALID_COMMAND || (status == 0 && found.count == 1));
        free(part);
    }
    free(work);
    CHECK(sent_records_measure(sent, 0, SEND_FORM_24, 0, &found) == STATUS_INVALID_MESSAGES_COUNT);
    end = put_legacy(sent, 7, false, "abc");
    CHECK(sent_records_measure(sent, (size_t)(end - sent), SEND_FORM_20, 0, &found) == 0 && found.count == 1);
}

/* Index and records with headers of 56 bytes. */
static size_t put_56(uint8_t *at, uint32_t count, bool headers) {
    uint8_t *record = at + (size_t)count * 16, *first = record;
    for (uint32_t i = 0; i < count; i++) {
        memset(record, 0, 56);
        record[8] = (uint8_t)(i + 1);
        record[40] = 99;
        put_u32(put_u32(record + 48, headers ? KEYLESS_SIZE : 0), i);
        memset(record + 56, 'a' + (int)i, i);
        record += 56 + i;
        if (headers) memcpy(record, KEYLESS, KEYLESS_SIZE);
        record += headers ? KEYLESS_SIZE : 0;
        memset(at + (size_t)i * 16, 0, 16);
        put_u32(at + (size_t)i * 16 + 4, (uint32_t)(record - first));
    }
    return (size_t)(record - at);
}

static void test_short_headers_widen_in_place(void) {
    uint8_t sent[2048];
    for (uint32_t count = 1; count < 12; count++) {
        size_t length = put_56(sent, count, false);
        uint8_t *work = exact(sent, length);
        sent_records found;
        CHECK(sent_records_measure(work, length, SEND_FORM_56, count, &found) == 0 && found.count == count);
        uint8_t *batch = malloc(found.batch_length);
        sent_records_write(work, length, SEND_FORM_56, &found, batch);
        CHECK(batch_check(batch, found.batch_length, count) == 0);
        uint32_t status = 1;
        uint8_t *first = sent_records_widen(work, length, count, &status);
        size_t records = found.batch_length - (size_t)count * 16;
        CHECK(status == 0 && first != NULL && (size_t)(work + length - first) == records);
        CHECK(memcmp(first, batch + (size_t)count * 16, records) == 0);
        free(batch);
        free(work);
    }
}

static void test_short_headers_with_user_headers_are_written_elsewhere(void) {
    uint8_t sent[2048], untouched[2048];
    size_t length = put_56(sent, 3, true);
    memcpy(untouched, sent, length);
    uint32_t status = 1;
    CHECK(sent_records_widen(sent, length, 3, &status) == NULL && status == 0);
    CHECK(memcmp(sent, untouched, length) == 0);
    sent_records found;
    CHECK(sent_records_measure(sent, length, SEND_FORM_56, 3, &found) == 0);
    uint8_t *batch = malloc(found.batch_length);
    sent_records_write(sent, length, SEND_FORM_56, &found, batch);
    CHECK(batch_check(batch, found.batch_length, 3) == 0);
    free(batch);
}

static void test_short_headers_are_refused_with_the_statuses_of_long_ones(void) {
    uint8_t sent[2048];
    uint32_t status;
    size_t length = put_56(sent, 2, false);
#define REFUSED(what, size, count, wanted) \
    do { \
        put_56(sent, 2, false); \
        what; \
        CHECK(sent_records_widen(sent, size, count, &status) == NULL && status == (wanted)); \
    } while (0)
    REFUSED(sent[0] = 1, length, 2, STATUS_NON_ZERO_OFFSET);
    REFUSED(sent[8] = 1, length, 2, STATUS_NON_ZERO_TIMESTAMP);
    REFUSED(sent[4] = 1, length, 2, STATUS_MISSING_INDEX);
    REFUSED((void)0, length - 1, 2, STATUS_INVALID_MESSAGES_SIZE);
    REFUSED((void)0, 31, 2, STATUS_INVALID_COMMAND);
    REFUSED((void)0, 32, 2, STATUS_INVALID_MESSAGES_COUNT);
    REFUSED(put_u32(sent + 32 + 52, 64000001), length, 2, STATUS_INVALID_MESSAGES_SIZE);
}

int main(void) {
    RUN(test_checksum);
    RUN(test_user_headers);
    RUN(test_answered_with_the_whole_header_but_its_end);
    RUN(test_answered_with_state_and_checksum);
    RUN(test_long_headers_move_a_payload_up);
    RUN(test_an_empty_last_record_has_a_byte_behind_it);
    RUN(test_answered_without_headers);
    RUN(test_sent_becomes_a_batch);
    RUN(test_short_headers_widen_in_place);
    RUN(test_short_headers_with_user_headers_are_written_elsewhere);
    RUN(test_short_headers_are_refused_with_the_statuses_of_long_ones);
    return check_report();
}
