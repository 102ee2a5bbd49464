/* See event.h. */
#include "core/event.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int events_open(event_queue *q, uint32_t capacity) {
    *q = (event_queue){.list = calloc(capacity, sizeof *q->list), .capacity = capacity};
    return q->list != NULL ? 0 : -ENOMEM;
}

void events_close(event_queue *q) {
    if (q->list != NULL) events_clear(q);
    free(q->list);
    q->list = NULL;
}

event *events_add(event_queue *q, event_kind kind, uint64_t connection) {
    if (q->count == q->capacity) {
        uint32_t capacity = q->capacity * 2;
        event *larger = realloc(q->list, capacity * sizeof *larger);
        if (larger == NULL) abort();
        q->list = larger;
        q->capacity = capacity;
    }
    event *v = &q->list[q->count++];
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->connection = connection;
    return v;
}

void events_clear(event_queue *q) {
    for (uint32_t i = 0; i < q->count; i++) free(q->list[i].data);
    q->count = q->anonymous = 0;
}
