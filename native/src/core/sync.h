/* Syncs of partitions (sync.c): in the background, and as group commit of level `durable`. */
#ifndef SHARDD_SYNC_H
#define SHARDD_SYNC_H
#include "core/core.h"

void sync_mark_dirty(owned *o);
/* Something waits for its sync: it does not wait for the interval. */
void sync_early(owned *o);
void sync_lost(owned *o, int error); /* a sync of its files failed outside the engine: as if one of ours had */
void sync_level_changed(owned *o);   /* to `durable`: what is there is synced at once */
void sync_tick(core *k);
void sync_save_tick(core *k); /* the message saver: the journals of `memory` */
/* At the end of a turn: starts what waits, first come first served, as far as the number of running syncs allows. True
 * when one had nothing to do and answers may have to go out. */
bool sync_begin_pending(core *k);
void sync_report_poison(owned *o, int error);
/* Ends a request whose write has returned: at once, or at `durable` when the device has it. */
void sync_answer(owned *o, const caller *to, const outcome *what);
/* At `durable`: `done` comes when what is stored now is on the device, maybe at once. False: nothing to wait for. */
bool sync_hold(owned *o, void *context, void (*done)(void *context, uint32_t status), held **entry);
void sync_leave(held *h);                       /* `done` will not come */
bool sync_report(owned *o, uint64_t token);     /* EVENT_SYNCED when all there is now is on the device; any level */
void sync_drop_held(owned *o, uint32_t status); /* the partition goes: whoever waits gets `status` */
void sync_free_held(owned *o);                  /* the process ends: nobody gets anything */
void sync_close(core *k);                       /* lets go of the partitions that wait for a sync */
/* A sync that the caller does itself while none waits: descriptors as partition_sync_begin. */
size_t sync_begin_by_caller(owned *o, int *fds, size_t max);
void sync_end_by_caller(owned *o, int error);
void sync_on_complete(operation *op, int result);
#endif
