/* A dialect: how the requests of one protocol generation look in a stream of bytes, and how answers are rendered. The
 * only thing that connections know of a wire (classic.c is one implementation). A dialect keeps no state. */
#ifndef SHARDD_DIALECT_H
#define SHARDD_DIALECT_H
#include "core/caller.h"
#include "core/request.h"

#define DIALECT_HEAD_SMALL 32u   /* bytes of the head of a request that every connection has room for */
#define DIALECT_ANSWER_SMALL 64u /* the same of an answer without a payload, or of its head */
#define DIALECT_HEAD_MAX 256u    /* room for more comes when a connection speaks such a dialect */
#define DIALECT_ANSWER_MAX 320u
#define DIALECT_FIRST_BYTES 8u /* of a connection: they tell what it speaks */

/* What the head of a request says. */
typedef struct frame_head {
    uint32_t code;            /* what Python calls the command */
    request_kind kind, inner; /* inner: of REQUEST_PACKED, what it is when it was looked at */
    bool sends;               /* records */
    bool positions;           /* a poll whose answer has the head of `dialect.positions` */
    bool admitted;            /* false from read_head */
    uint32_t length;          /* bytes behind the head */
    uint32_t length_max;      /* a longer one is refused: drained up to `drained_max`, above it the connection ends */
    uint32_t drained_max;
    uint32_t anonymous_max; /* what is kept of it before a login */
    bool again;             /* the payload was parsed before, and is as that left it */
} frame_head;

/* Numbers: a connection that moves keeps its own, and Python has a dispatcher for each that clients speak. */
enum { DIALECT_CLASSIC = 1, DIALECT_VALUES = 2, DIALECT_IGGY09 = 3, DIALECT_POSITIONS = 4, DIALECT_UNNAMED = 9 };

typedef struct dialect dialect;
struct dialect {
    const char *name;
    uint8_t number;          /* what it is called between workers, and by Python */
    bool one_at_a_time;      /* its answers repeat heads: a connection has one request in work, whatever comes behind */
    uint16_t head_bytes;     /* of a request */
    bool asks_who;           /* a SEND without a login: Python says first who it is (conn_ask_who) */
    bool python_reads_head;  /* what Python gets of a request begins with its head */
    uint16_t answer_bytes;   /* most that its put_... write */
    uint8_t poll_number;     /* of the dialect that writes before the records of a poll, wherever they are read, ... */
    uint8_t poll_head_bytes; /* ... and how much */
    uint8_t record_form;     /* of what polls answer (record_forms.h); 0: as it is stored */
    uint32_t send_bytes_max; /* of the largest SEND */
    /* What a client is who goes on after the head of a refusal without waiting for the body that it tells of; 0: all
     * that speak this one read bodies. A body is held back until it is clear (net/conn/output.c). */
    uint8_t without_body;
    /* False: it is no request; nothing is known to follow it. */
    bool (*read_head)(const uint8_t *head, frame_head *out);
    /* A complete SEND, POLL or STORE. 0, or the status that refuses it. `kind` becomes REQUEST_OTHER when Python has to
     * look at it. */
    uint32_t (*parse)(const frame_head *head, uint8_t *payload, request *out);
    /* Each writes an answer and says how long it is. `head`: of the request, `head_bytes` of it; NULL: nobody asked, or
     * the dialect does without. */
    size_t (*put_status)(const uint8_t *head, uint8_t *at, uint32_t status);
    size_t (*put_committed)(const uint8_t *head, uint8_t *at, uint64_t offset);
    size_t (*put_empty_poll)(const uint8_t *head, uint8_t *at);
    size_t (*put_payload_head)(const uint8_t *head, uint8_t *at, uint32_t status,
                               size_t length);                 /* a payload follows */
    size_t (*put_produced)(uint8_t *at, const produced *made); /* NULL: it has no such requests */
    void (*put_poll_head)(uint8_t *at, const poll_summary *whole);
    const dialect *positions; /* writes the heads of polls that ask for positions; NULL: there are no such polls */
    /* Of one that stands for several: which of them begins with these DIALECT_FIRST_BYTES. Its `read_head` always says
     * false, so that nobody else pays for the question. */
    const dialect *(*choose)(const uint8_t *first);
};

extern const dialect dialect_classic;
extern const dialect dialect_iggy09;
extern const dialect dialect_values; /* values.c: the head of a poll's answer, and nothing else */

/* What a connection speaks before its first bytes have told (undecided.c). `unnamed`: what is not 0.9 is
 * DIALECT_UNNAMED then, as clients without a login may act as a user here. */
extern const dialect dialect_undecided, dialect_undecided_or_unnamed;

const dialect *dialect_legacy(uint8_t number); /* legacy.c; NULL: none of them */

/* By its number; NULL: there is none. */
const dialect *dialect_of(uint8_t number);
/* What those speak who connect to a listener with this setting `tcp.dialect`; NULL: there is none of that name. */
const dialect *dialect_named(const char *name);
#endif
