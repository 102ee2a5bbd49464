/* Sends to a partition that knows the ids of its last messages: each message once (docs/adr/0070-deduplication.md).
 * Ids are compared before the limits of the topic and before offsets are given: what is there already is answered like
 * what is stored now, takes no place and no offset. */
#ifndef SHARDD_ONCE_H
#define SHARDD_ONCE_H
#include "core/core.h"

/* Whether its sends are judged before they are appended: after a change of the limits, the window, `readonly` or
 * `paused`. */
void once_changed(owned *o);
/* Some of the batches may be stored, and the partition was paused: Python hears of it. What Liftbridge stores ends no
 * pause here: there it is known which publishes do, and some that are on their way when a partition is paused do not.
 * Without memory for the event the next batch tells it. */
void once_paused(core *k, owned *target, const append_batch *batches, size_t count);
/* Removes from each of the staged batches what is there already, and gives it a status: 0, 10006 without memory for the
 * ids, or what the limits of the topic say. One with a status has a count of 0, one with nothing left, too. */
void once_judge(core *k, owned *target, append_batch *batches, size_t count);
/* The batch `failed` could not be written, and nothing behind it was: what they brought is not known, and who was
 * answered by it is refused, too. */
void once_failed(owned *target, append_batch *batches, size_t failed, size_t count);
/* The same for one large batch, some messages in each step. False: there is more to do. */
bool once_filter_large(core *k, owned *target, append_batch *b, id_filter *f, uint32_t *status);
#endif
