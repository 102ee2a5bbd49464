/* What can be asked of the core, typed. A dialect (wire/) makes these from frames, Python from values; pointers lead
 * into the bytes of whoever asks and are valid until the call returns. */
#ifndef SHARDD_CORE_REQUEST_H
#define SHARDD_CORE_REQUEST_H
#include "log/batch.h"
#include "log/offsets_table.h"
#include "log/producers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum request_kind {
    REQUEST_OTHER, /* Python's: it knows every command, every status and who is a member of what */
    REQUEST_PING,
    REQUEST_SEND,
    REQUEST_POLL,
    REQUEST_STORE,
    REQUEST_PACKED /* only of a frame: a dialect that remembers sessions or packs records looks at it first */
} request_kind;

#define POLL_WAIT_MAX_MS 300000u

enum { CONSUMER_PLAIN = 1, CONSUMER_GROUP = 2 };

typedef struct consumer_request {
    uint8_t kind;              /* CONSUMER_PLAIN, CONSUMER_GROUP */
    const uint8_t *member_key; /* identifiers of consumer, stream and topic: the key of a seat */
    uint32_t member_key_length;
    const uint8_t *address; /* stream identifier, then topic identifier: the key of a route */
    uint32_t stream_length, topic_length;
    uint32_t consumer_id;  /* number, or xxh32 of the name; says nothing about a group */
    uint32_t partition_id; /* 0 when absent */
    bool partition_given;
    uint8_t strategy; /* POLL only */
    uint64_t value;   /* strategy value, or the offset to store */
    uint32_t count;
    bool auto_commit;
    bool positioned;      /* STORE: `history` and `epoch` are those of the offset, else it is refused */
    uint64_t history;     /* incarnation of the partition */
    uint32_t epoch;       /* 0 on one server */
    uint32_t bytes_max;   /* POLL: of an answer, but one message; 0: no bound */
    uint32_t wait_ms;     /* POLL: for messages, when there are none */
    uint32_t kept_length; /* of a poll that waits: what is kept of its payload meanwhile */
    uint64_t name;        /* hash_name() of the consumer's name; 0: it is a number */
    bool own_name;        /* refused when what is stored under its id belongs to another name */
    uint64_t assignment;  /* never parsed: generation of the member's assignment, 0 for a plain consumer */
} consumer_request;

#define REQUEST_WRITTEN_MAX 1024u /* three identifiers */

typedef struct request {
    request_kind kind;
    union {
        struct {
            send_request send;
            producer_batch by; /* SEND: producer 0, or who wants it stored once */
        };
        consumer_request consumer; /* POLL, STORE */
    };
    uint8_t written[REQUEST_WRITTEN_MAX]; /* what a dialect cannot leave as it was sent; pointers above lead here */
} request;

/* What one partition is asked, wherever its owner is. */
typedef struct partition_request {
    request_kind kind; /* SEND, POLL, STORE */
    uint64_t ns, incarnation;
    uint32_t count;
    /* SEND */
    uint8_t *records;
    uint64_t records_length;
    /* POLL, STORE */
    uint8_t strategy, consumer_kind;
    bool auto_commit;
    bool own_name;      /* refused when what is stored for the consumer belongs to another name than that of by_user */
    uint32_t bytes_max; /* POLL: of the records, but one; 0: no bound */
    uint32_t consumer_id;
    uint64_t value;
    uint64_t assignment; /* fence.h; 0: not as a member */
    offset_user by_user; /* who reads, or of the offset that is stored */
    producer_batch by;   /* SEND */
} partition_request;
#endif
