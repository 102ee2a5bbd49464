/* Several requests of one connection in work at a time: the places of its window, in the order in which they came.
 *
 * A window exists while at least one of them is not answered, and only when a second whole frame lay in the input
 * behind the first one: who asks one thing at a time never has one. What cannot be beside others (Python's, polls,
 * partial frames, what has to wait) waits in the input until the window is empty, and then goes the way of a single
 * request (docs/adr/0034-several-requests-in-work.md). */
#ifndef SHARDD_PLACES_H
#define SHARDD_PLACES_H
#include "net/conn/conn.h"

typedef enum place_state {
    PLACE_WORKING,
    PLACE_ANSWERED,
    PLACE_AGAIN /* not carried out: what it was routed by is old */
} place_state;

typedef struct place {
    place_state state;
    bool sends;     /* it is a SEND */
    bool holds;     /* somebody may still read its bytes in the input */
    uint8_t *frame; /* they begin here */
    pending *work;  /* where it waits */
    outcome end;
    struct sample *sample; /* it is traced */
    int64_t request_us;
} place;

typedef struct window {
    uint32_t first, count;   /* places in a ring */
    uint32_t working, again; /* of them */
    uint32_t sending;        /* SENDs at work: what depends on the end of a log waits for them */
    uint32_t holding;        /* of them; 0: the buffer of the input may go */
    uint32_t leaving;        /* the first ones: their answers are in the output */
    bool ends;               /* the next frame waits until it is empty */
    bool refuses;            /* it ends with the first place whose owner is not there */
    place places[WINDOW_REQUESTS_MAX];
    uint8_t answers[WINDOW_REQUESTS_MAX * DIALECT_ANSWER_SMALL];
} window;

static inline place *window_place(window *w, uint32_t number) {
    return &w->places[(w->first + number) % WINDOW_REQUESTS_MAX];
}

/* The oldest one is answered. */
static inline bool window_may_leave(window *w) { return w->count > 0 && window_place(w, 0)->state == PLACE_ANSWERED; }

/* Its memory is private input memory (shares.h). NULL: there is none, or the connection was closed for it. */
window *window_open(conn *c);
void window_close(conn *c);
/* Answers in order, up to the first place that has none; bytes written into `answers`. In one that refuses, places
 * behind the refusal go without an answer. */
size_t window_gather(window *w, const dialect *d);
/* The oldest one goes. */
void window_pop(window *w);
#endif
