/* The dialect of Apache Iggy 0.9 (docs/protocol/iggy-0.9.md): frames with a head of 256 bytes, whose answers repeat
 * parts of the head of their request. What a SEND and the answer of a POLL hold: iggy09_batch.h. */
#ifndef SHARDD_IGGY09_H
#define SHARDD_IGGY09_H
#include "wire/dialect.h"

#define IGGY09_HEAD_SIZE 256u
#define IGGY09_FRAME_MAX (64u << 20) /* head and body */
#define IGGY09_PROTOCOL 11264u       /* 0.11.0: major << 20 | minor << 10 | patch; the only version that is taken */

enum {
    IGGY09_REGISTER = 1,
    IGGY09_NON_REPLICATED = 2,
    IGGY09_LOGOUT = 3,
    IGGY09_DELETE_SEGMENTS = 138,
    IGGY09_SEND = 160,
    IGGY09_STORE = 161,
    IGGY09_DELETE_OFFSET = 162
};

/* Statuses of nobody else: an answer with one of them is an eviction with this reason. */
#define IGGY09_EVICTION(reason) (0x80000000u | (reason))
enum { IGGY09_NO_SESSION = 1, IGGY09_SESSION_TOO_LOW = 7, IGGY09_INCOMPATIBLE = 14 };

typedef struct iggy09_head {
    uint64_t checksum, checksum_high, request, session; /* checksum of the body; 0: it has none */
    uint8_t operation;
} iggy09_head;

iggy09_head iggy09_read(const uint8_t *head);
bool iggy09_begins(const uint8_t *first);

/* What a connection remembers of its session: its number, and the last request that had one, with its answer. */
#define IGGY09_KEPT_MAX 512u /* bytes of its payload; a larger one is not kept */
typedef struct iggy09_memory {
    uint64_t session, request, checksum; /* of the last one */
    uint32_t status;
    uint8_t operation;
    bool answered; /* what follows is its answer */
    uint16_t answer_length;
    uint8_t answer[IGGY09_KEPT_MAX];
} iggy09_memory;

typedef enum iggy09_admission { IGGY09_EXECUTE, IGGY09_REFUSE, IGGY09_REPEAT } iggy09_admission;
/* What becomes of a whole frame of a connection: `status` refuses it, or the answer that is kept is sent again. */
iggy09_admission iggy09_admit(iggy09_memory *m, bool authenticated, const uint8_t *head, const uint8_t *body,
                              size_t length, uint32_t *status);
/* The answer to the request with this head. */
void iggy09_answered(iggy09_memory *m, const uint8_t *head, uint32_t status, const uint8_t *payload, size_t length);
/* 0: none. Forgets what was before. */
void iggy09_begin_session(iggy09_memory *m, uint64_t session);

/* What it remembers outlives its connection: bytes for another one, of this process or of one like it. */
#define IGGY09_MEMORY_MAX sizeof(iggy09_memory)
size_t iggy09_pack_memory(const iggy09_memory *m, uint8_t out[IGGY09_MEMORY_MAX]); /* 0: no number was used */
bool iggy09_unpack_memory(iggy09_memory *m, const uint8_t *bytes, size_t length);  /* false: these are no such bytes */
#endif
