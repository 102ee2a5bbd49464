/* Balanced partitioning: the partition of a SEND that leaves the choice to the server.
 *
 * The partitions of a topic take turns, over all clients and shards (links_balance). Whoever sends alone gets exactly
 * that order. When several connections send to a topic at once, nobody can tell in which order they came, and a shard
 * may exchange a turn: one at a partition of another shard for one at a partition of its own, which saves the way there
 * (docs/adr/0098). Each partition is owed what it did not get, and owes what it got instead, TURNS_OWED_MAX at most: so
 * no partition is ever further than that from its share, and the more so the turns of the other shards pay it back.
 */
#ifndef SHARDD_TURNS_H
#define SHARDD_TURNS_H
#include "core/core.h"

#define TURNS_OWED_MAX 64    /* requests, of a partition; what two shards do in the same moment comes on top */
#define TURNS_TRIED 8u       /* own partitions that are looked at for one turn */
#define TURNS_CROWD 32u      /* requests in a row that each follow one of somebody else: from then on a crowd */
#define TURNS_ALONE 8u       /* requests in a row of the same connection end it */
#define TURNS_PAUSE_US 10000 /* so does such a pause */

/* The index of the partition. `t` has some. */
uint32_t turns_take(core *k, route_topic *t, const session *who);
#endif
