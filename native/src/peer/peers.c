/* What peers post is given to forward.c (answers) and serve.c (requests). */
#include "peer/peers.h"

#include "base/clock.h"
#include "net/moving.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_BETWEEN_LOOKS 8u /* at the clock */

int peers_open(peers *p, core *k, net *n, int receive_fd, const int *send_fds) {
    uint32_t shards = k->options.shards;
    *p = (peers){.core = k, .net = n};
    p->remote = (remote){.forward = forward_request, .ask_wake = serve_ask_wake, .wake = serve_wake};
    p->moves.receive_fd = receive_fd;
    p->moves.send_fds = calloc(shards, sizeof *p->moves.send_fds);
    p->moves.dealt = calloc(shards, sizeof *p->moves.dealt);
    p->moves.space = malloc(MOVING_BYTES_MAX);
    if (p->moves.send_fds == NULL || p->moves.dealt == NULL || p->moves.space == NULL || !post_open(p) ||
        !serve_open(p))
        return -ENOMEM;
    memcpy(p->moves.send_fds, send_fds, shards * sizeof *send_fds);
    k->remote = &p->remote;
    return 0;
}

void peers_close(peers *p) {
    post_close(p);
    forward_free(p);
    serve_free(p);
    free(p->moves.send_fds);
    free(p->moves.dealt);
    free(p->moves.space);
}

/* One of each peer in turn, so that none waits for another one's crowd. */
void peers_serve(peers *p, int64_t until_us) {
    links *l = &p->core->links;
    descriptor d;
    bool any = true;
    for (uint32_t round = 1; any && round <= LINK_SLOTS; round++) {
        any = false;
        for (uint32_t from = 0; from < l->shards; from++) {
            if (from == l->shard || !links_take(l, from, &d)) continue;
            any = true;
            if (d.operation == LINK_STATUS || d.operation == LINK_WINDOW) forward_take_answer(p, from, &d);
            else serve_request(p, from, &d);
        }
        if (round % ROUNDS_BETWEEN_LOOKS == 0 && clock_monotonic_us() > until_us) return;
    }
}

void peers_down(peers *p, uint32_t shard) {
    peers_serve(p, INT64_MAX); /* its last answers count */
    p->core->peer_is_down[shard] = true;
    forward_peer_down(p, shard);
    serve_peer_down(p, shard);
    waiting_polls_owner_down(p->core, shard);
}

void peers_up(peers *p, uint32_t shard, uint32_t generation) {
    p->core->peer_is_down[shard] = false;
    forward_peer_up(p, shard);
    links_admit(&p->core->links, shard, generation);
}
