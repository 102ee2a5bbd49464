#include "peer/peers.h"

#include <stdlib.h>

typedef struct outgoing {
    waiter wait; /* first */
    links *links;
    uint32_t shard;
    descriptor d;
} outgoing;

static bool retry(waiter *w) {
    outgoing *o = (outgoing *)w;
    if (!links_post(o->links, o->shard, &o->d, NULL)) return false;
    free(o);
    return true;
}

void peers_post(peers *p, uint32_t shard, const descriptor *d) {
    if (links_post(&p->core->links, shard, d, NULL)) return;
    outgoing *o = calloc(1, sizeof *o);
    if (o == NULL) abort();
    o->links = &p->core->links;
    o->shard = shard;
    o->d = *d;
    core_wait(p->core, &o->wait, retry);
}
