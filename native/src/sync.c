/* Background sync: dirty partitions reach the device every sync interval without delaying any answer; the durable end
 * follows. A failed sync poisons the partition and is never tried again. */
#include "engine.h"

#include <stdlib.h>
#include <unistd.h>

#define SYNC_FDS_MAX 64u
#define SYNCS_RUNNING_MAX 64u

typedef struct sync_group {
    owned *target;
    uint32_t running;
    int error;
} sync_group;

typedef struct sync_file {
    operation operation;
    sync_group *group;
    int fd;
} sync_file;

void sync_mark_dirty(owned *o) {
    if (o->dirty) return;
    o->dirty = true;
    o->next_dirty = o->e->dirty;
    o->e->dirty = o;
    o->references++;
}

static void finish(engine *e, sync_group *group) {
    owned *target = group->target;
    partition_sync_done(target->p, group->error);
    e->counters.syncs++;
    if (group->error != 0) e->counters.sync_errors++;
    target->syncing = false;
    e->syncs_running--;
    if (group->error != 0 && !target->poison_reported) {
        target->poison_reported = true;
        engine_event(e, EVENT_POISONED, target->ns)->number = (uint64_t)group->error;
    }
    if (partition_is_dirty(target->p)) sync_mark_dirty(target);
    owned_release(target);
    free(group);
}

static void begin(engine *e, owned *target) {
    int fds[SYNC_FDS_MAX];
    sync_group *group = calloc(1, sizeof *group);
    if (group == NULL) abort();
    group->target = target; /* takes over the reference of the dirty list */
    e->syncs_running++;
    size_t count = partition_sync_begin(target->p, fds, SYNC_FDS_MAX);
    for (size_t i = 0; i < count; i++) {
        sync_file *file = calloc(1, sizeof *file);
        if (file == NULL) abort();
        *file = (sync_file){.operation = {OPERATION_SYNC, file}, .group = group, .fd = fds[i]};
        group->running++;
        io_fdatasync(&e->io, &file->operation, file->fd);
    }
    if (count == 0) finish(e, group);
}

/* Starts what waits, first come first served, as far as the number of running syncs allows. */
static void begin_pending(engine *e) {
    while (e->sync_pending != NULL && e->syncs_running < SYNCS_RUNNING_MAX) {
        owned *target = e->sync_pending;
        e->sync_pending = target->next_pending;
        if (e->sync_pending == NULL) e->sync_pending_last = NULL;
        begin(e, target);
    }
}

void sync_tick(engine *e) {
    owned *list = e->dirty;
    e->dirty = NULL;
    while (list != NULL) {
        owned *target = list;
        list = target->next_dirty;
        if (target->syncing) { /* its present sync may not cover the newest bytes: next tick */
            target->next_dirty = e->dirty;
            e->dirty = target;
            continue;
        }
        target->dirty = false;
        target->syncing = true;
        target->next_pending = NULL;
        if (e->sync_pending == NULL) e->sync_pending = target;
        else e->sync_pending_last->next_pending = target;
        e->sync_pending_last = target;
    }
    begin_pending(e);
}

void sync_on_complete(operation *op, int result) {
    sync_file *file = op->owner;
    sync_group *group = file->group;
    engine *e = group->target->e;
    if (result < 0 && group->error == 0) group->error = -result;
    close(file->fd);
    free(file);
    if (--group->running > 0) return;
    finish(e, group);
    begin_pending(e);
}
