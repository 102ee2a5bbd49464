/* What servers understand: how actors ask, and what the answers mean. run.c and actor.c know no format. */
#ifndef LOAD_DIALECT_H
#define LOAD_DIALECT_H
#include "load.h"

/* Numbers of `actor_plan.dialect` (shardd/benchmark/plan.py). */
enum { DIALECT_CLASSIC, DIALECT_REDIS, DIALECT_NATS, DIALECT_IGGY09, DIALECTS };

typedef struct dialect {
    uint32_t record_bytes; /* that figures count beside the payload of each message */
    bool speaks_unasked;   /* something may come while nothing is in flight */
    /* The room of one send. */
    size_t (*send_room)(const actor_plan *plan);
    /* Once: what never changes in the requests of an actor. */
    void (*prepare)(actor *a);
    /* Appends the next send to `out`, with its messages and bytes in `asked`; a poll goes alone. */
    void (*send)(actor *a, asked *asked, uint64_t origin_us);
    void (*poll)(actor *a, asked *asked);
    void (*reset)(reply *r);
    /* Takes bytes up to the end of the reply; how many that were. `asked` is NULL when nothing is in flight. */
    size_t (*take)(reply *r, const asked *asked, const uint8_t *bytes, size_t length);
    bool (*complete)(const reply *r, const asked *asked);
    /* Of a complete one: NULL, or what is wrong with it. Fills `origin_us` and `next` of a poll that has messages. */
    const char *(*settle)(reply *r, const asked *asked);
    /* Of a send that goes over another connection; NULL: nothing in it changes. */
    void (*renew)(actor *a, uint8_t *request);
} dialect;

extern const dialect speak_classic; /* requests.c, reply.c */
extern const dialect speak_redis;   /* redis.c */
extern const dialect speak_nats;    /* nats.c */
extern const dialect speak_iggy09;  /* iggy09.c */

static inline const dialect *dialect_of(const actor_plan *plan) {
    static const dialect *const all[] = {&speak_classic, &speak_redis, &speak_nats, &speak_iggy09};
    return all[plan->dialect];
}

/* A number of `least` to `most`, both included. */
uint64_t random_between(actor *a, uint64_t least, uint64_t most);
frame_target target_of(const actor_plan *plan);
/* What changes from one classic send to the next, before the count that ends its head. */
void choose_partition(actor *a, uint8_t *frame);
/* Digits without a sign; the end of them. */
uint8_t *put_decimal(uint8_t *at, uint64_t value);
uint8_t *put_text(uint8_t *at, const char *text);
/* Appends a message for each of a batch: `message` writes one of so many payload bytes and returns its end. */
void append_messages(actor *a, asked *asked, uint64_t origin_us,
                     uint8_t *(*message)(const actor *a, uint8_t *at, uint32_t payload_bytes, uint64_t origin_us));
#endif
