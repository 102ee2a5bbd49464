/* See record_forms.h. */
#include "wire/record_forms.h"

#include "base/bytes.h"
#include "base/status.h"
#include "log/record.h"
#include "wire/crc32.h"
#include "wire/user_headers.h"

#include <stdbool.h>

#define HEADER_56 56u /* bytes of the stored header that it has */
#define STATE_AVAILABLE 1u
#define CHECKSUM_BYTES_MAX (8u << 20) /* of a payload; no client compares it, and larger ones take too long */
#define LAST_EMPTY_BYTES 1u /* behind an empty last record of form 45: its clients drop one of exactly 45 bytes */

static void store_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, sizeof value); }

/* ---- stored -> answered ---- */

/* The fields before the user headers; their length follows. Where it stands. */
static uint8_t *put_fields(uint8_t *at, const uint8_t *header, uint32_t checksum, record_form form) {
    uint8_t *out = at;
    memcpy(out, header + 24, 8); /* offset */
    out += 8;
    if (form == RECORD_FORM_45) *out++ = STATE_AVAILABLE;
    memcpy(out, header + 32, 8); /* timestamp */
    memcpy(out + 8, header + 8, 16);
    out += 24;
    if (form == RECORD_FORM_45) {
        store_u32(out, checksum);
        out += 4;
    }
    return out;
}

/* `headers` (without kinds) and the payload, which lies at `payload` and moves. Where the record ends. */
static uint8_t *put_record(uint8_t *at, const uint8_t *payload, uint32_t payload_length, const uint8_t *headers,
                           uint32_t headers_length, record_form form) {
    uint8_t fields[RECORD_HEADER_SIZE];
    memcpy(fields, payload - RECORD_HEADER_SIZE, RECORD_HEADER_SIZE);
    if (form == RECORD_FORM_56) {
        store_u32(fields + 48, headers_length);
        memcpy(at, fields, HEADER_56);
        at += HEADER_56;
        memmove(at, payload, payload_length);
        if (headers_length > 0) memcpy(at + payload_length, headers, headers_length);
        return at + payload_length + headers_length;
    }
    bool checked = form == RECORD_FORM_45 && payload_length <= CHECKSUM_BYTES_MAX;
    uint32_t checksum = checked ? crc32_of(payload, payload_length) : 0;
    uint8_t *behind = at + form - 4 + (form == RECORD_FORM_36 ? 0 : headers_length);
    memmove(behind + 4, payload, payload_length);
    store_u32(behind, payload_length);
    uint8_t *out = put_fields(at, fields, checksum, form);
    if (form != RECORD_FORM_36) {
        store_u32(out, headers_length);
        if (headers_length > 0) memcpy(out + 4, headers, headers_length);
    }
    return behind + 4 + payload_length;
}

size_t records_to_form(uint8_t *records, size_t length, record_form form) {
    uint8_t headers[USER_HEADERS_SIZE_MAX];
    uint8_t *at = records, *end = records + length, *out = records;
    bool last_is_empty = false;
    while (at < end) {
        uint32_t stored = load_u32(at + 48), payload_length = load_u32(at + 52);
        uint8_t *payload = at + RECORD_HEADER_SIZE, *next = payload + payload_length + stored;
        uint32_t kept = 0;
        if (form != RECORD_FORM_36 && stored > 0)
            kept = (uint32_t)user_headers_strip(payload + payload_length, stored, headers);
        out = put_record(out, payload, payload_length, headers, kept, form);
        last_is_empty = form == RECORD_FORM_45 && payload_length == 0 && kept == 0;
        at = next;
    }
    if (last_is_empty) {
        memset(out, 0, LAST_EMPTY_BYTES);
        out += LAST_EMPTY_BYTES;
    }
    return (size_t)(out - records);
}

/* ---- sent -> stored ---- */

typedef struct sent { /* one record, as it was sent */
    const uint8_t *header, *payload, *headers;
    uint32_t payload_length, headers_length;
    size_t stored_headers_length, size;
} sent;

static uint32_t check_sizes(const sent *s) {
    if (s->payload_length > PAYLOAD_SIZE_MAX) return STATUS_TOO_BIG_MESSAGE_PAYLOAD;
    return s->stored_headers_length > USER_HEADERS_SIZE_MAX ? STATUS_TOO_BIG_USER_HEADERS : STATUS_OK;
}

static uint32_t read_56(const uint8_t *at, size_t left, sent *out) {
    if (left < HEADER_56) return STATUS_INVALID_MESSAGES_SIZE;
    *out = (sent){.header = at,
                  .payload = at + HEADER_56,
                  .headers_length = load_u32(at + 48),
                  .payload_length = load_u32(at + 52)};
    out->size = (size_t)HEADER_56 + out->payload_length + out->headers_length;
    if (out->size > left) return STATUS_INVALID_MESSAGES_SIZE;
    out->headers = out->payload + out->payload_length;
    return STATUS_OK;
}

/* id, [length of user headers, these,] length, payload */
static uint32_t read_legacy(const uint8_t *at, size_t left, send_form form, sent *out) {
    if (left < form) return STATUS_INVALID_COMMAND;
    *out = (sent){.header = at, .headers = at + 20, .headers_length = form == SEND_FORM_24 ? load_u32(at + 16) : 0};
    if (out->headers_length > left - form) return STATUS_INVALID_COMMAND;
    const uint8_t *length = at + form - 4 + out->headers_length;
    out->payload = length + 4;
    out->payload_length = load_u32(length);
    out->size = (size_t)form + out->headers_length + out->payload_length;
    return out->size <= left ? STATUS_OK : STATUS_INVALID_COMMAND;
}

static uint32_t read_sent(const uint8_t *at, size_t left, send_form form, sent *out) {
    uint32_t status = form == SEND_FORM_56 ? read_56(at, left, out) : read_legacy(at, left, form, out);
    if (status != STATUS_OK) return status;
    if (!user_headers_measure(out->headers, out->headers_length, &out->stored_headers_length))
        return STATUS_INVALID_FORMAT;
    return check_sizes(out);
}

/* What stands in an index entry of a request (docs/protocol/messages.md#batch-checks). `end`: of its record. */
static uint32_t check_entry(const uint8_t *entry, uint64_t end) {
    if (load_u32(entry) != 0) return STATUS_NON_ZERO_OFFSET;
    if (load_u64(entry + 8) != 0) return STATUS_NON_ZERO_TIMESTAMP;
    return load_u32(entry + 4) == end ? STATUS_OK : STATUS_MISSING_INDEX;
}

/* The index entries of SEND_FORM_56 in front of the records; other forms have none. */
static size_t index_bytes(send_form form, uint32_t count) {
    return form == SEND_FORM_56 ? (size_t)count * INDEX_ENTRY_SIZE : 0;
}

uint32_t sent_records_measure(const uint8_t *data, size_t length, send_form form, uint32_t count, sent_records *out) {
    size_t index = index_bytes(form, count);
    *out = (sent_records){0};
    if (index > length) return STATUS_INVALID_COMMAND;
    const uint8_t *first = data + index, *end = data + length;
    for (const uint8_t *at = first; at < end;) {
        sent s;
        uint32_t status = read_sent(at, (size_t)(end - at), form, &s);
        if (status != STATUS_OK) return status;
        at += s.size;
        if (form == SEND_FORM_56) {
            if (out->count == count) return STATUS_INVALID_MESSAGES_SIZE;
            status = check_entry(data + (size_t)out->count * INDEX_ENTRY_SIZE, (uint64_t)(at - first));
            if (status != STATUS_OK) return status;
        }
        out->count++;
        out->batch_length += INDEX_ENTRY_SIZE + RECORD_HEADER_SIZE + s.payload_length + s.stored_headers_length;
    }
    return out->count == 0 || (form == SEND_FORM_56 && out->count != count) ? STATUS_INVALID_MESSAGES_COUNT : STATUS_OK;
}

static uint8_t *write_record(uint8_t *out, const sent *s, send_form form) {
    memset(out, 0, RECORD_HEADER_SIZE);
    if (form == SEND_FORM_56) memcpy(out, s->header, HEADER_56);
    else memcpy(out + 8, s->header, 16);
    store_u32(out + 48, (uint32_t)s->stored_headers_length);
    store_u32(out + 52, s->payload_length);
    memcpy(out + RECORD_HEADER_SIZE, s->payload, s->payload_length);
    out += RECORD_HEADER_SIZE + s->payload_length;
    user_headers_extend(s->headers, s->headers_length, out);
    return out + s->stored_headers_length;
}

void sent_records_write(const uint8_t *data, size_t length, send_form form, const sent_records *what, uint8_t *out) {
    uint8_t *entry = out, *first = out + (size_t)what->count * INDEX_ENTRY_SIZE, *at = first;
    const uint8_t *end = data + length;
    for (data += index_bytes(form, what->count); data < end; entry += INDEX_ENTRY_SIZE) {
        sent s = {0};
        if (read_sent(data, (size_t)(end - data), form, &s) != STATUS_OK) return; /* it was measured */
        at = write_record(at, &s, form);
        memset(entry, 0, INDEX_ENTRY_SIZE);
        store_u32(entry + 4, (uint32_t)(at - first));
        data += s.size;
    }
}

/* Record i moves down by 8 bytes for each record from it on: the room of the index, of which half is enough. */
uint8_t *sent_records_widen(uint8_t *data, size_t length, uint32_t count, uint32_t *status) {
    sent_records found;
    *status = sent_records_measure(data, length, SEND_FORM_56, count, &found);
    if (*status != STATUS_OK) return NULL;
    size_t grows = (size_t)count * (RECORD_HEADER_SIZE - HEADER_56), index = index_bytes(SEND_FORM_56, count);
    if (found.batch_length - index != length - index + grows) return NULL; /* with user headers */
    uint8_t *at = data + index, *end = data + length, *out = at - grows, *first = out;
    while (at < end) {
        uint32_t payload_length = load_u32(at + 52);
        memmove(out, at, HEADER_56);
        memset(out + HEADER_56, 0, RECORD_HEADER_SIZE - HEADER_56);
        if (out + RECORD_HEADER_SIZE != at + HEADER_56)
            memmove(out + RECORD_HEADER_SIZE, at + HEADER_56, payload_length);
        out += RECORD_HEADER_SIZE + payload_length;
        at += HEADER_56 + payload_length;
    }
    return first;
}
