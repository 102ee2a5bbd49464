/* See places.h. */
#include "net/conn/places.h"
#include "net/samples.h"

#include "base/assert.h"
#include "base/status.h"

#include <stdlib.h>

window *window_open(conn *c) {
    ASSERT(c->window == NULL);
    window *w = malloc(sizeof *w);
    if (w == NULL) return NULL;
    w->first = w->count = w->working = w->again = w->sending = w->holding = w->leaving = 0;
    w->ends = w->refuses = false;
    c->window = w;
    return share_hold(c, sizeof *w) ? w : NULL;
}

void window_close(conn *c) {
    if (c->window == NULL) return;
    for (uint32_t i = 0; i < c->window->count; i++) sample_drop(&window_place(c->window, i)->sample);
    share_give_back(c, sizeof *c->window);
    free(c->window);
    c->window = NULL;
}

size_t window_gather(window *w, const dialect *d) {
    size_t length = 0;
    for (; w->leaving < w->count; w->leaving++) {
        const place *p = window_place(w, w->leaving);
        if (p->state != PLACE_ANSWERED) break;
        bool refused = w->refuses && p->end.status == STATUS_SHARD_COMMUNICATION_ERROR;
        if (refused && w->working > 0) break;
        if (refused) w->count = w->leaving + 1;
        uint8_t *at = w->answers + length;
        if (p->end.made.kind != PRODUCED_NONE) length += d->put_produced(at, &p->end.made);
        else if (p->end.committed) length += d->put_committed(NULL, at, p->end.offset);
        else length += d->put_status(NULL, at, p->end.status);
    }
    return length;
}

void window_pop(window *w) {
    ASSERT(w->count > 0 && w->leaving > 0);
    w->first = (w->first + 1) % WINDOW_REQUESTS_MAX;
    w->count--;
    w->leaving--;
}
