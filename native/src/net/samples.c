/* See samples.h. */
#include "net/samples.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int samples_open(samples *s, uint32_t every) {
    *s = (samples){.every = every, .left = every};
    if (every == 0) return 0;
    s->places = calloc(SAMPLES_MAX, sizeof *s->places);
    return s->places != NULL ? 0 : -ENOMEM;
}

void samples_free(samples *s) {
    free(s->places);
    *s = (samples){0};
}

/* NULL: no place. */
sample *samples_begin_chosen(samples *s, const sample *what, const uint8_t *payload) {
    for (uint32_t i = 0; i < SAMPLES_MAX; i++) {
        sample *one = &s->places[i];
        if (one->state != SAMPLE_FREE) continue;
        *one = *what;
        one->state = SAMPLE_OPEN;
        one->begin_length = what->length < SAMPLE_BYTES ? what->length : SAMPLE_BYTES;
        if (one->begin_length > 0) memcpy(one->begin, payload, one->begin_length);
        return one;
    }
    s->missed++;
    return NULL;
}
