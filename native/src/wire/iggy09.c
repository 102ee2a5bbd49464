/* See iggy09.h.
 *
 * request  0 zeros, 48 u32 size, 60 u8 5, 128 client, 144 checksum of the body, 168 u64 number, 176 u8 operation,
 *          184 u64 session, 196 u32 code of operation 2
 * answer   48 u32 size, 60 u8 8, 128 checksum, 160 client, 200 u64 number, 208 u8 operation, 216 u32 status
 *          (of a metadata operation that is refused: 0, and the body is u32 1, u32 0, u32 status)
 * eviction 48 u32 256, 60 u8 13, 128 client, 144 u32 newest, 148 u32 oldest version, 255 u8 reason */
#include "wire/iggy09.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "wire/classic_request.h"
#include "wire/frame_limits.h"
#include "wire/iggy09_batch.h"

enum { COMMAND_REQUEST = 5, COMMAND_REPLY = 8, COMMAND_EVICTION = 13 };
#define EVICTION_BIT 0x80000000u

static void put_u32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }

/* Operations that have a number of their own; the rest is operation 2 with the code. */
static uint32_t code_of(const uint8_t *head) {
    static const uint16_t metadata[] = {202, 204, 203, 205, 302, 304, 303, 305, 402, 403, 503,
                                        602, 603, 33,  35,  34,  37,  36,  42,  43,  604, 605};
    uint8_t operation = head[176];
    if (operation == IGGY09_NON_REPLICATED) return load_u32(head + 196);
    if (operation == IGGY09_LOGOUT) return 39;
    if (operation == IGGY09_SEND) return CODE_SEND_MESSAGES;
    if (operation == IGGY09_STORE) return CODE_STORE_CONSUMER_OFFSET;
    if (operation == IGGY09_DELETE_OFFSET) return 122;
    if (operation >= 128 && operation < 128 + sizeof metadata / sizeof metadata[0]) return metadata[operation - 128];
    return 0;
}

static request_kind kind_of(const uint8_t *head) {
    uint32_t code = load_u32(head + 196);
    switch (head[176]) {
    case IGGY09_SEND: return REQUEST_SEND;
    case IGGY09_STORE: return REQUEST_STORE;
    case IGGY09_NON_REPLICATED:
        return code == CODE_PING ? REQUEST_PING : code == CODE_POLL_MESSAGES ? REQUEST_POLL : REQUEST_OTHER;
    default: return REQUEST_OTHER;
    }
}

iggy09_head iggy09_read(const uint8_t *head) {
    return (iggy09_head){.checksum = load_u64(head + 144),
                         .checksum_high = load_u64(head + 152),
                         .request = load_u64(head + 168),
                         .session = load_u64(head + 184),
                         .operation = head[176]};
}

/* No classic frame has a length of 0. */
bool iggy09_begins(const uint8_t *first) { return load_u64(first) == 0; }

static bool read_head(const uint8_t *head, frame_head *out) {
    uint32_t size = load_u32(head + 48);
    bool good = head[60] == COMMAND_REQUEST && size >= IGGY09_HEAD_SIZE && size <= IGGY09_FRAME_MAX;
    *out = (frame_head){.code = code_of(head), .kind = REQUEST_PACKED, .inner = kind_of(head)};
    out->sends = out->inner == REQUEST_SEND;
    out->length = good ? size - IGGY09_HEAD_SIZE : 1;    /* nothing is known to follow what is no request: */
    out->length_max = good ? frame_limit(out->code) : 0; /* it is too large, */
    out->drained_max = good ? FRAME_CONTROL_MAX : 0;     /* and the connection ends */
    if (out->sends && good) out->length_max = out->drained_max = IGGY09_FRAME_MAX;
    if (out->inner == REQUEST_PING && good) out->length_max = FRAME_SMALL_MAX;
    out->anonymous_max = FRAME_ANONYMOUS_MAX;
    return true;
}

static uint32_t parse(const frame_head *head, uint8_t *payload, request *out) {
    bool good = true;
    out->kind = head->kind;
    out->by = (producer_batch){0};
    if (head->kind == REQUEST_SEND) return iggy09_send_request(payload, head->length, &out->send);
    if (head->kind == REQUEST_POLL) good = request_parse_poll(payload, head->length, &out->consumer);
    else if (head->kind == REQUEST_STORE) good = request_parse_store(payload, head->length, &out->consumer);
    if (!good) out->kind = REQUEST_OTHER;
    return 0;
}

/* ---- answers ---- */

#define REFUSAL_BYTES 12u /* one result: of the first and only part */

static bool is_metadata(uint8_t operation) {
    return operation >= 128 && operation <= 149 && operation != IGGY09_DELETE_SEGMENTS;
}

/* Whether success begins with four zero bytes. */
static bool has_result(uint8_t operation) {
    return is_metadata(operation) || operation == IGGY09_STORE || operation == IGGY09_DELETE_OFFSET;
}

static size_t put_eviction(const uint8_t *head, uint8_t *at, uint8_t reason) {
    memset(at, 0, IGGY09_HEAD_SIZE);
    put_u32(at + 48, IGGY09_HEAD_SIZE);
    at[60] = COMMAND_EVICTION;
    memcpy(at + 128, head + 128, 16);
    if (reason == IGGY09_INCOMPATIBLE) {
        put_u32(at + 144, IGGY09_PROTOCOL);
        put_u32(at + 148, IGGY09_PROTOCOL);
    }
    at[255] = reason;
    return IGGY09_HEAD_SIZE;
}

static void put_reply(const uint8_t *head, uint8_t *at, uint32_t status, size_t length) {
    memset(at, 0, IGGY09_HEAD_SIZE);
    put_u32(at + 48, (uint32_t)(IGGY09_HEAD_SIZE + length));
    at[60] = COMMAND_REPLY;
    at[208] = IGGY09_NON_REPLICATED;
    if (head != NULL) {
        memcpy(at + 128, head + 144, 16);
        memcpy(at + 160, head + 128, 16);
        memcpy(at + 200, head + 168, 8);
        at[208] = head[176];
    }
    put_u32(at + 216, status);
}

/* Of a member that does not have the partition: it asks what it has now. */
static uint32_t told(uint32_t status) {
    return status == STATUS_NOT_RESOLVED_CONSUMER ? STATUS_CONSUMER_GROUP_PARTITION_NOT_OWNED : status;
}

static size_t put_status(const uint8_t *head, uint8_t *at, uint32_t status) {
    bool read = head == NULL || head[176] == IGGY09_NON_REPLICATED;
    if (status == STATUS_UNAUTHENTICATED && !read) status = IGGY09_EVICTION(IGGY09_NO_SESSION);
    if (status & EVICTION_BIT) return put_eviction(head, at, (uint8_t)status);
    bool refused = status != 0 && head != NULL && is_metadata(head[176]);
    size_t success = status == 0 && head != NULL && has_result(head[176]) ? 4 : 0;
    size_t length = refused ? REFUSAL_BYTES : success;
    put_reply(head, at, refused ? 0 : told(status), length);
    memset(at + IGGY09_HEAD_SIZE, 0, length);
    if (refused) {
        at[IGGY09_HEAD_SIZE] = 1;
        put_u32(at + IGGY09_HEAD_SIZE + 8, status);
    }
    return IGGY09_HEAD_SIZE + length;
}

static size_t put_payload_head(const uint8_t *head, uint8_t *at, uint32_t status, size_t length) {
    bool result = head != NULL && (has_result(head[176]) || head[176] == IGGY09_REGISTER);
    put_reply(head, at, status, length + (result ? 4 : 0));
    memset(at + IGGY09_HEAD_SIZE, 0, 4);
    return IGGY09_HEAD_SIZE + (result ? 4 : 0);
}

static size_t put_committed(const uint8_t *head, uint8_t *at, uint64_t offset) {
    (void)offset;
    return put_status(head, at, 0);
}

static size_t put_empty_poll(const uint8_t *head, uint8_t *at) {
    return put_status(head, at, STATUS_CONSUMER_GROUP_PARTITION_NOT_OWNED);
}

/* What the owner of a partition reads comes as it is stored, with its summary; batches are made where the connection
 * is (net/conn/packed.c). */
static void put_poll_head(uint8_t *at, const poll_summary *whole) { dialect_values.put_poll_head(at, whole); }

const dialect dialect_iggy09 = {.name = "iggy-0.9",
                                .number = DIALECT_IGGY09,
                                .one_at_a_time = true,
                                .python_reads_head = true,
                                .head_bytes = IGGY09_HEAD_SIZE,
                                .answer_bytes = IGGY09_HEAD_SIZE + REFUSAL_BYTES,
                                .poll_number = DIALECT_VALUES,
                                .poll_head_bytes = sizeof(poll_summary),
                                .send_bytes_max = IGGY09_FRAME_MAX,
                                .read_head = read_head,
                                .parse = parse,
                                .put_status = put_status,
                                .put_committed = put_committed,
                                .put_empty_poll = put_empty_poll,
                                .put_payload_head = put_payload_head,
                                .put_poll_head = put_poll_head};

/* ---- sessions ---- */

static bool is_numbered(uint8_t operation) {
    return operation != IGGY09_NON_REPLICATED && operation != IGGY09_REGISTER && operation != 0;
}

/* The number was used: by the same request, whose answer is kept or known to be success, or nobody knows. */
static iggy09_admission again(const iggy09_memory *m, const iggy09_head *h, uint32_t *status) {
    *status = STATUS_REQUEST_ALREADY_APPLIED;
    if (h->request < m->request || !m->answered) return IGGY09_REFUSE;
    bool differs = h->checksum != 0 && m->checksum != 0 && h->checksum != m->checksum;
    if (!differs && h->operation == m->operation) return IGGY09_REPEAT;
    *status = STATUS_INVALID_FORMAT;
    return IGGY09_REFUSE;
}

iggy09_admission iggy09_admit(iggy09_memory *m, bool authenticated, const uint8_t *head, const uint8_t *body,
                              size_t length, uint32_t *status) {
    iggy09_head h = iggy09_read(head);
    bool nobody = (load_u64(head + 128) | load_u64(head + 136)) == 0;
    *status = STATUS_INVALID_COMMAND;
    if (nobody || h.operation == 0) return IGGY09_REFUSE;
    if (h.operation == IGGY09_REGISTER && (h.session != 0 || h.request != 0)) return IGGY09_REFUSE;
    *status = STATUS_INVALID_FORMAT;
    if ((h.checksum | h.checksum_high) != 0 && (h.checksum_high != 0 || checksum_64(body, length) != h.checksum))
        return IGGY09_REFUSE;
    if (!authenticated || !is_numbered(h.operation)) return IGGY09_EXECUTE;
    *status = STATUS_INVALID_COMMAND;
    if (h.session == 0 || h.request == 0) return IGGY09_REFUSE;
    *status = h.session < m->session ? IGGY09_EVICTION(IGGY09_SESSION_TOO_LOW) : STATUS_INVALID_SESSION;
    if (h.session != m->session) return IGGY09_REFUSE;
    if (h.request <= m->request) return again(m, &h, status);
    m->request = h.request;
    m->operation = h.operation;
    m->checksum = h.checksum;
    m->answered = false;
    return IGGY09_EXECUTE;
}

void iggy09_answered(iggy09_memory *m, const uint8_t *head, uint32_t status, const uint8_t *payload, size_t length) {
    iggy09_head h = iggy09_read(head);
    if (!is_numbered(h.operation) || h.request != m->request || length > sizeof m->answer) return;
    m->answered = true;
    m->status = status;
    m->answer_length = (uint16_t)length;
    if (length > 0) memcpy(m->answer, payload, length);
}

void iggy09_begin_session(iggy09_memory *m, uint64_t session) { *m = (iggy09_memory){.session = session}; }

size_t iggy09_pack_memory(const iggy09_memory *m, uint8_t out[IGGY09_MEMORY_MAX]) {
    size_t length = offsetof(iggy09_memory, answer) + (m->answered ? m->answer_length : 0u);
    if (m->request == 0) return 0;
    memcpy(out, m, length);
    return length;
}

bool iggy09_unpack_memory(iggy09_memory *m, const uint8_t *bytes, size_t length) {
    uint8_t answered;
    uint16_t answer_length;
    if (length < offsetof(iggy09_memory, answer) || length > IGGY09_MEMORY_MAX) return false;
    memcpy(&answered, bytes + offsetof(iggy09_memory, answered), 1);
    memcpy(&answer_length, bytes + offsetof(iggy09_memory, answer_length), 2);
    if (answered > 1 || length != offsetof(iggy09_memory, answer) + (answered ? answer_length : 0u)) return false;
    *m = (iggy09_memory){0};
    memcpy(m, bytes, length);
    return true;
}
