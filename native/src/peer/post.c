#include "peer/peers.h"

#include <stdlib.h>

struct outgoing {
    waiter wait; /* first */
    peers *peers;
    uint32_t shard;
    descriptor d;
    outgoing *next_free;
};

/* The table holds as many connections as all shards together may have; each shard may have as many calls of Python as
 * we. Each of them asks one shard for one thing at a time, which gets one answer, and gives one lease back: more cannot
 * wait. The memory is taken at the start, when the kernel can still say no; it fills no page before it is used. */
bool post_open(peers *p) {
    const core_options *o = &p->core->options;
    p->outgoing.max = 2 * (p->net->conns.capacity + o->shards * o->calls_max);
    p->outgoing.all = calloc(p->outgoing.max, sizeof *p->outgoing.all);
    return p->outgoing.all != NULL;
}

void post_close(peers *p) { free(p->outgoing.all); }

static bool retry(waiter *w) {
    outgoing *o = (outgoing *)w;
    peers *p = o->peers;
    if (!links_post(&p->core->links, o->shard, &o->d, NULL)) return false;
    o->next_free = p->outgoing.free;
    p->outgoing.free = o;
    return true;
}

/* NULL: more waits than connections can ask for, which only happens when a peer dies again and again in front of a full
 * ring. Who asked is gone then, or hears nothing until its request_timeout. */
static outgoing *take(peers *p) {
    outgoing *o = p->outgoing.free;
    if (o != NULL) p->outgoing.free = o->next_free;
    else if (p->outgoing.used < p->outgoing.max) o = &p->outgoing.all[p->outgoing.used++];
    return o;
}

void peers_post(peers *p, uint32_t shard, const descriptor *d) {
    if (links_post(&p->core->links, shard, d, NULL)) return;
    outgoing *o = take(p);
    if (o == NULL) return;
    *o = (outgoing){.peers = p, .shard = shard, .d = *d};
    core_wait(p->core, &o->wait, retry);
}
