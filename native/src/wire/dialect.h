/* A dialect: how the requests of one protocol generation look in a stream of bytes, and how answers are rendered. The
 * only thing that connections know of a wire (classic.c is one implementation). A dialect keeps no state. */
#ifndef SHARDD_DIALECT_H
#define SHARDD_DIALECT_H
#include "core/caller.h"
#include "core/request.h"

#define DIALECT_HEAD_MAX 32u   /* bytes of the head of a request */
#define DIALECT_ANSWER_MAX 64u /* of an answer without a payload, or of its head */

/* What the head of a request says. */
typedef struct frame_head {
    uint32_t code; /* what Python calls the command */
    request_kind kind;
    uint32_t length;     /* bytes behind the head */
    uint32_t length_max; /* a longer one is refused: drained up to `drained_max`, above it the connection ends */
    uint32_t drained_max;
    uint32_t anonymous_max; /* what is kept of it before a login */
} frame_head;

typedef struct dialect {
    const char *name;
    uint8_t number;          /* what it is called between workers */
    uint8_t head_bytes;      /* of a request */
    uint8_t poll_head_bytes; /* before the records of a poll's answer */
    uint32_t send_bytes_max; /* of the largest SEND */
    /* False: it is no request; nothing is known to follow it. */
    bool (*read_head)(const uint8_t *head, frame_head *out);
    /* A complete SEND, POLL or STORE. 0, or the status that refuses it. `kind` becomes REQUEST_OTHER when Python has to
     * look at it. */
    uint32_t (*parse)(const frame_head *head, uint8_t *payload, request *out);
    /* Each writes an answer, at most DIALECT_ANSWER_MAX bytes, and says how long it is. */
    size_t (*put_status)(uint8_t *at, uint32_t status);
    size_t (*put_committed)(uint8_t *at, uint64_t offset);
    size_t (*put_empty_poll)(uint8_t *at);
    size_t (*put_payload_head)(uint8_t *at, uint32_t status, size_t length); /* a payload follows */
    void (*put_poll_head)(uint8_t *at, const poll_summary *whole);
} dialect;

extern const dialect dialect_classic;
extern const dialect dialect_values; /* values.c: the head of a poll's answer, and nothing else */

/* By its number; NULL: there is none. */
const dialect *dialect_of(uint8_t number);
#endif
