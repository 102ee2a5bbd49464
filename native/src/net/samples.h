/* Requests that are traced: one of so many of those that never reach Python, with the bytes that they begin with. In
 * places that Python empties; while none is free nothing is chosen. Off, it costs a request one comparison. */
#ifndef SHARDD_SAMPLES_H
#define SHARDD_SAMPLES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLES_MAX 64u
#define SAMPLE_BYTES 4096u /* address, index of a SEND, headers of its first message */

typedef enum sample_state { SAMPLE_FREE, SAMPLE_OPEN, SAMPLE_ENDED } sample_state;

typedef struct sample {
    sample_state state;
    uint32_t code, user_id, status, length; /* of the payload */
    uint64_t connection;
    int64_t began_us, took_us; /* of the clock of the loop */
    uint32_t begin_length;
    uint8_t dialect;
    uint8_t begin[SAMPLE_BYTES];
} sample;

typedef struct samples {
    uint32_t every;  /* 0: none */
    uint32_t left;   /* requests until the next one */
    uint64_t missed; /* no place was free */
    sample *places;  /* of SAMPLES_MAX */
} samples;

int samples_open(samples *s, uint32_t every); /* 0 or -ENOMEM */
void samples_free(samples *s);
sample *samples_begin_chosen(samples *s, const sample *what, const uint8_t *payload);

/* Whether the next request is the one. */
static inline bool samples_choose(samples *s) {
    if (__builtin_expect(s->every == 0, 1)) return false;
    if (s->left > 1) {
        s->left--;
        return false;
    }
    s->left = s->every;
    return true;
}

/* `one` may be NULL. */
static inline void sample_status(sample *one, uint32_t status) {
    if (__builtin_expect(one != NULL, 0)) one->status = status;
}

static inline void sample_end(sample **one, int64_t now_us) {
    if (__builtin_expect(*one == NULL, 1)) return;
    (*one)->took_us = now_us - (*one)->began_us;
    (*one)->state = SAMPLE_ENDED;
    *one = NULL;
}

/* Nobody was answered. */
static inline void sample_drop(sample **one) {
    if (*one != NULL) (*one)->state = SAMPLE_FREE;
    *one = NULL;
}
#endif
