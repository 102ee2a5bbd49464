/* The generations before the classic protocol whose frames are like classic ones (docs/protocol/legacy.md). A
 * connection begins as classic, and speaks one of these when Python has seen who it is (a login tells, or what a
 * request looks like). They differ here in the records of polls, in the head before them, and in what stands behind a
 * refusal; shardd/protocol/legacy/generations.py has them by the same numbers. */
#include "wire/dialect.h"

#include "base/bytes.h"
#include "base/status.h"
#include "wire/classic_request.h"
#include "wire/frame_limits.h"
#include "wire/legacy_request.h"
#include "wire/record_forms.h"

#define POLLED_HEAD_SIZE 16u
#define COUNT_SIZE 4u

static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }

static bool read_head(const uint8_t *head, frame_head *out) {
    if (!dialect_classic.read_head(head, out)) return false;
    if (out->kind != REQUEST_SEND) return true;
    out->kind = REQUEST_OTHER; /* its records grow: Python has them copied */
    out->length_max = FRAME_LEGACY_SEND_MAX;
    return true;
}

static uint32_t parse(const frame_head *head, uint8_t *payload, request *out) {
    bool good = head->kind == REQUEST_POLL    ? legacy_parse_poll(payload, head->length, out)
                : head->kind == REQUEST_STORE ? legacy_parse_store(payload, head->length, out)
                                              : true;
    out->kind = good ? head->kind : REQUEST_OTHER;
    return 0;
}

/* SENDs that Python has to look at are bounded as those of all other generations. */
static uint32_t parse_send(const frame_head *head, uint8_t *payload, uint32_t first_id, request *out) {
    out->kind = head->code == CODE_SEND_MESSAGES ? REQUEST_SEND : REQUEST_OTHER;
    out->by = (producer_batch){0};
    if (out->kind == REQUEST_OTHER) return 0; /* an extension, which they do not have */
    uint32_t status = legacy_parse_send(payload, head->length, first_id, head->again, out);
    bool too_large = out->kind == REQUEST_OTHER && head->length > FRAME_LEGACY_SEND_MAX;
    return status == 0 && too_large ? STATUS_TOO_BIG_MESSAGE_PAYLOAD : status;
}

static uint32_t parse_python_0_5(const frame_head *head, uint8_t *payload, request *out) {
    return head->kind == REQUEST_SEND ? parse_send(head, payload, 1, out) : parse(head, payload, out);
}

static uint32_t parse_python_0_6(const frame_head *head, uint8_t *payload, request *out) {
    return head->kind == REQUEST_SEND ? parse_send(head, payload, 0, out) : dialect_classic.parse(head, payload, out);
}

/* A refusal with a body: the length of a text, and none of it. */
static size_t put_status_with_body(const uint8_t *head, uint8_t *at, uint32_t status) {
    if (status == 0) return dialect_classic.put_status(head, at, status);
    size_t size = dialect_classic.put_payload_head(head, at, status, 4);
    put_u32(at + size, 0);
    return size + 4;
}

static size_t put_status(const uint8_t *head, uint8_t *at, uint32_t status) {
    return dialect_classic.put_status(head, at, status);
}

static size_t put_committed(const uint8_t *head, uint8_t *at, uint64_t offset) {
    (void)offset;
    return put_status(head, at, 0);
}

static size_t put_payload_head(const uint8_t *head, uint8_t *at, uint32_t status, size_t length) {
    return dialect_classic.put_payload_head(head, at, status, length);
}

static void put_poll_head_from_0(uint8_t *at, const poll_summary *whole) { dialect_classic.put_poll_head(at, whole); }

static void put_poll_head_from_1(uint8_t *at, const poll_summary *whole) {
    poll_summary shown = *whole;
    shown.partition++;
    dialect_classic.put_poll_head(at, &shown);
}

static size_t put_empty_poll(const uint8_t *head, uint8_t *at) {
    (void)head;
    put_poll_head_from_0(at, &(poll_summary){0});
    return FRAME_HEADER_SIZE + POLLED_HEAD_SIZE;
}

/* Before 0.0.60: the count alone. */
static void put_poll_count(uint8_t *at, const poll_summary *whole) {
    put_payload_head(NULL, at, 0, COUNT_SIZE + whole->total_bytes);
    put_u32(at + FRAME_HEADER_SIZE, (uint32_t)whole->total_count);
}

static size_t put_empty_count(const uint8_t *head, uint8_t *at) {
    (void)head;
    put_poll_count(at, &(poll_summary){0});
    return FRAME_HEADER_SIZE + COUNT_SIZE;
}

#define GENERATION(number_, name_, form_, parse_, read_head_, status_, head_, put_head_, put_empty_, without_body_) \
    {.name = (name_), \
     .number = (number_), \
     .poll_number = (number_), \
     .one_at_a_time = true, \
     .head_bytes = FRAME_HEADER_SIZE, \
     .answer_bytes = FRAME_HEADER_SIZE + POLLED_HEAD_SIZE, \
     .poll_head_bytes = FRAME_HEADER_SIZE + (head_), \
     .record_form = (form_), \
     .send_bytes_max = FRAME_SEND_MAX, \
     .without_body = (without_body_), \
     .read_head = (read_head_), \
     .parse = (parse_), \
     .put_status = (status_), \
     .put_committed = put_committed, \
     .put_empty_poll = (put_empty_), \
     .put_payload_head = put_payload_head, \
     .put_poll_head = (put_head_)}
#define COUNTED(number, name, form) \
    GENERATION(number, name, form, parse, read_head, put_status, COUNT_SIZE, put_poll_count, put_empty_count, 0)
#define HEADED(number, name, status) UNCLEAR(number, name, status, 0)
#define UNCLEAR(number, name, status, without_body) \
    GENERATION(number, name, 45, parse, read_head, status, POLLED_HEAD_SIZE, put_poll_head_from_1, put_empty_poll, \
               without_body)
#define SHORT_HEADERS(number, name, parse, put_head) \
    GENERATION(number, name, 56, parse, read_classic_head, put_status, POLLED_HEAD_SIZE, put_head, put_empty_poll, 0)

static bool read_classic_head(const uint8_t *head, frame_head *out) { return dialect_classic.read_head(head, out); }

#define UNNAMED(number_) \
    {.name = "unnamed", \
     .number = (number_), \
     .poll_number = (number_), \
     .one_at_a_time = true, \
     .asks_who = true, \
     .head_bytes = FRAME_HEADER_SIZE, \
     .answer_bytes = FRAME_HEADER_SIZE + POLLED_HEAD_SIZE, \
     .poll_head_bytes = FRAME_HEADER_SIZE + POLLED_HEAD_SIZE, \
     .send_bytes_max = FRAME_SEND_MAX, \
     .read_head = read_head, \
     .parse = parse, \
     .put_status = put_status, \
     .put_committed = put_committed, \
     .put_empty_poll = put_empty_poll, \
     .put_payload_head = put_payload_head, \
     .put_poll_head = put_poll_head_from_1}

static const dialect generations[] = {
    UNNAMED(DIALECT_UNNAMED), /* Python looks at its first request, and it speaks another one from then on */
    COUNTED(10, "0.0.11", 36),
    COUNTED(11, "0.0.15", 36),
    COUNTED(12, "0.0.30", 40),
    COUNTED(13, "0.0.40", 45),
    COUNTED(14, "0.0.50", 45),
    COUNTED(15, "0.0.53", 45),
    HEADED(16, "0.0.60", put_status),
    HEADED(17, "0.0.70", put_status),
    HEADED(18, "0.0.81", put_status),
    HEADED(19, "0.0.90", put_status),
    UNCLEAR(20, "0.2.0", put_status_with_body, 28),
    UNCLEAR(21, "0.2.18 or earlier", put_status_with_body, 19),
    HEADED(22, "0.5.0", put_status_with_body),
    HEADED(23, "0.6.10", put_status_with_body),
    HEADED(24, "0.6.60", put_status),
    SHORT_HEADERS(25, "0.7.0", parse_python_0_5, put_poll_head_from_1),
    SHORT_HEADERS(26, "0.8.0", parse_python_0_6, put_poll_head_from_0),
    HEADED(27, "0.2.18", put_status_with_body),
    HEADED(28, "0.2.4", put_status),
};

const dialect *dialect_legacy(uint8_t number) {
    size_t at = (size_t)number - generations[0].number;
    return number >= generations[0].number && at < sizeof generations / sizeof generations[0] ? &generations[at] : NULL;
}
