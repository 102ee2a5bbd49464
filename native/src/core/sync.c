/* Syncs of partitions: in the background every sync interval, without delaying any answer, and at level `durable` as
 * group commit. There an answer is held until a sync that began after its write is done; syncs begin at the end of a
 * turn, and while one of a partition runs, later answers collect and the next one covers them all. Partitions sync
 * concurrently. A failed sync poisons the partition, answers all that it holds with its status and is never tried
 * again. A sync that does not end, or cannot begin, holds a connection for request_timeout (conn_limits.c): when it
 * closes its answer is taken out, and the sync goes on without it. */
#include "log/descriptors.h"
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define SYNC_FDS_MAX 64u
#define SYNC_RETRY_US 5000 /* when descriptors were missing and answers wait */

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

typedef enum held_kind { HELD_STATUS, HELD_POLL, HELD_EVENT } held_kind;

/* An answer that waits for the device. `sync`: the first sync of the partition that covers it. */
struct held {
    held *next, *previous;
    owned *of;
    held_kind kind;
    uint64_t sync;
    requester from; /* HELD_STATUS */
    read_job *job;  /* HELD_POLL: its last window goes out when the stored offset is durable */
    uint64_t token; /* HELD_EVENT: what Python calls it */
};

void sync_mark_dirty(owned *o) {
    if (o->dirty) return;
    o->dirty = true;
    o->next_dirty = o->e->dirty;
    o->e->dirty = o;
    o->references++;
}

/* ---- answers that are held ---- */

/* The connection here that gets the answer, or NULL. */
static conn *conn_of(const held *h) {
    return h->kind == HELD_STATUS ? h->from.c : h->kind == HELD_POLL ? h->job->to.c : NULL;
}

static void put_in(held *h) {
    owned *o = h->of;
    h->previous = o->held_last;
    if (o->held_first == NULL) o->held_first = h;
    else o->held_last->next = h;
    o->held_last = h;
    if (conn_of(h) != NULL) conn_of(h)->held = h;
}

static void take_out(held *h) {
    owned *o = h->of;
    if (h->previous == NULL) o->held_first = h->next;
    else h->previous->next = h->next;
    if (h->next == NULL) o->held_last = h->previous;
    else h->next->previous = h->previous;
    if (conn_of(h) != NULL) conn_of(h)->held = NULL;
}

static void answer(engine *e, held *h, uint32_t status) {
    switch (h->kind) {
    case HELD_STATUS: engine_answer(e, &h->from, status); break;
    case HELD_POLL: reads_offset_stored(h->job, status); break;
    case HELD_EVENT: engine_event(e, EVENT_SYNCED, h->token)->number = status; break;
    }
    free(h);
}

/* Answers everything that syncs up to `sync` cover. */
static void answer_held(owned *o, uint64_t sync, uint32_t status) {
    while (o->held_first != NULL && o->held_first->sync <= sync) {
        held *h = o->held_first;
        take_out(h);
        answer(o->e, h, status);
    }
}

void sync_drop_held(owned *o, uint32_t status) { answer_held(o, UINT64_MAX, status); }

void sync_leave(conn *c) {
    held *h = c->held;
    take_out(h);
    if (h->kind == HELD_POLL) h->job->held = false;
    else c->state = CONN_RECEIVING;
    free(h);
}

void sync_free_held(owned *o) {
    for (held *h = o->held_first, *next; h != NULL; h = next) {
        next = h->next;
        free(h);
    }
    o->held_first = o->held_last = NULL;
}

/* ---- one sync ---- */

static void enqueue(engine *e, owned *target) { /* takes over a reference */
    target->syncing = true;
    target->next_pending = NULL;
    if (e->sync_pending == NULL) e->sync_pending = target;
    else e->sync_pending_last->next_pending = target;
    e->sync_pending_last = target;
}

void sync_report_poison(owned *o, int error) {
    if (o->poison_reported) return;
    o->poison_reported = true;
    engine_event(o->e, EVENT_POISONED, o->ns)->number = (uint64_t)error;
}

/* After a sync: who may be answered now, and whether another one has to begin. `none`: it could not open a file. */
static void settle(engine *e, owned *target, int error, bool none) {
    bool covered = partition_sync_done(target->p, error);
    target->syncing = false;
    if (error != 0 || partition_sync_failed(target->p)) sync_report_poison(target, error != 0 ? error : EIO);
    if (covered) answer_held(target, target->syncs_begun, 0);
    else if (partition_sync_failed(target->p)) sync_drop_held(target, partition_state(target->p));
    if (partition_is_dirty(target->p) || target->held_first != NULL) sync_mark_dirty(target);
    if (target->held_first == NULL) return;
    if (none && !covered) {
        if (e->next_sync_us > e->now_us + SYNC_RETRY_US) e->next_sync_us = e->now_us + SYNC_RETRY_US;
    } else if (!target->syncing) {
        target->references++;
        enqueue(e, target);
    }
}

static void finish(engine *e, sync_group *group, bool none) {
    owned *target = group->target;
    e->counters.syncs++;
    if (group->error != 0) e->counters.sync_errors++;
    e->syncs_running--;
    settle(e, target, group->error, none);
    owned_release(target);
    free(group);
}

static size_t collect(owned *target, int *fds, size_t max) {
    sync_scope scope = target->sync_everything ? SYNC_EVERYTHING : SYNC_ACKNOWLEDGEMENTS;
    target->sync_everything = false;
    target->syncs_begun++;
    return partition_sync_begin(target->p, scope, fds, max < sync_files_max ? max : sync_files_max);
}

/* False: there was nothing to sync, it is over. */
static bool begin(engine *e, owned *target) {
    int fds[SYNC_FDS_MAX];
    sync_group *group = calloc(1, sizeof *group);
    if (group == NULL) abort();
    group->target = target; /* takes over the reference of the queue */
    e->syncs_running++;
    size_t count = collect(target, fds, SYNC_FDS_MAX);
    group->running = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        sync_file *file = calloc(1, sizeof *file);
        if (file == NULL) abort();
        *file = (sync_file){.operation = operation_of(OPERATION_SYNC, file), .group = group, .fd = fds[i]};
        io_fdatasync(&e->io, &file->operation, file->fd);
    }
    if (count == 0) finish(e, group, true);
    return count > 0;
}

bool sync_begin_pending(engine *e) {
    bool settled = false;
    while (e->sync_pending != NULL && e->syncs_running < syncs_running_max) {
        owned *target = e->sync_pending;
        e->sync_pending = target->next_pending;
        if (e->sync_pending == NULL) e->sync_pending_last = NULL;
        settled |= !begin(e, target);
    }
    return settled;
}

void sync_on_complete(operation *op, int result) {
    sync_file *file = op->owner;
    sync_group *group = file->group;
    engine *e = group->target->e;
    if (result == -EINTR) { /* says nothing about the device */
        io_fdatasync(&e->io, op, file->fd);
        return;
    }
    if (result < 0 && group->error == 0) group->error = -result;
    close(file->fd);
    descriptors_spares_keep(); /* before anybody else takes it */
    free(file);
    if (--group->running > 0) return;
    finish(e, group, false);
}

void sync_close(engine *e) {
    for (owned *o = e->dirty, *next; o != NULL; o = next) {
        next = o->next_dirty;
        owned_release(o);
    }
    for (owned *o = e->sync_pending, *next; o != NULL; o = next) {
        next = o->next_pending;
        owned_release(o);
    }
    e->dirty = e->sync_pending = e->sync_pending_last = NULL;
}

/* ---- who asks for one ---- */

/* True when the partition may leave the dirty list: everything is written and no sync is asked for. */
static bool saved(owned *target) {
    bool clean = partition_flush(target->p) == 0 || partition_unsaved_bytes(target->p) == 0;
    if (partition_state(target->p) != 0) sync_report_poison(target, EIO);
    return clean || partition_state(target->p) != 0;
}

/* Deals with the dirty partitions of level `memory`, or with all others and those that answers wait for. */
static void tick(engine *e, bool memory) {
    owned *list = e->dirty;
    e->dirty = NULL;
    while (list != NULL) {
        owned *target = list;
        list = target->next_dirty;
        bool of_memory = partition_level_of(target->p) == LEVEL_MEMORY;
        bool concerned = of_memory == memory || (!memory && target->held_first != NULL); /* somebody waits */
        if (concerned) target->sync_everything = true;
        bool only_saved = concerned && memory && !e->options.save_syncs && target->held_first == NULL;
        /* A present sync may not cover the newest bytes: next tick. */
        if (!concerned || target->syncing || (only_saved && !saved(target))) {
            target->next_dirty = e->dirty;
            e->dirty = target;
            continue;
        }
        target->dirty = false;
        if (only_saved) owned_release(target);
        else enqueue(e, target); /* with the reference of the dirty list */
    }
}

void sync_tick(engine *e) { tick(e, false); }

void sync_save_tick(engine *e) { tick(e, true); }

void sync_level_changed(owned *o) {
    if (partition_state(o->p) != 0) sync_report_poison(o, EIO);
    if (!partition_is_dirty(o->p)) return;
    sync_mark_dirty(o);
    if (partition_level_of(o->p) != LEVEL_DURABLE || o->syncing) return;
    o->references++;
    enqueue(o->e, o);
}

void sync_lost(owned *o, int error) {
    partition_sync_lost(o->p);
    sync_report_poison(o, error);
    if (!o->syncing) sync_drop_held(o, partition_state(o->p));
}

static void hold(owned *o, const held *what) {
    held *h = malloc(sizeof *h);
    if (h == NULL) abort();
    *h = *what;
    h->of = o;
    if (partition_sync_failed(o->p)) {
        answer(o->e, h, partition_state(o->p));
        return;
    }
    h->sync = o->syncs_begun + 1;
    put_in(h);
    if (o->syncing) return;
    o->references++;
    enqueue(o->e, o);
}

void sync_answer(owned *o, const requester *from, uint32_t status) {
    bool nobody = from->c != NULL && from->c->closing;
    if (status != 0 || nobody || partition_level_of(o->p) != LEVEL_DURABLE) {
        engine_answer(o->e, from, status);
        return;
    }
    if (from->c != NULL) from->c->state = CONN_STAGED;
    hold(o, &(held){.kind = HELD_STATUS, .from = *from});
}

bool sync_hold_poll(owned *o, read_job *job) {
    if (partition_level_of(o->p) != LEVEL_DURABLE) return false;
    hold(o, &(held){.kind = HELD_POLL, .job = job});
    return true;
}

void sync_report(owned *o, uint64_t token) {
    o->sync_everything = true;
    hold(o, &(held){.kind = HELD_EVENT, .token = token});
}

size_t sync_begin_by_caller(owned *o, int *fds, size_t max) {
    o->syncing = o->syncing_by_caller = o->sync_everything = true;
    return collect(o, fds, max);
}

void sync_end_by_caller(owned *o, int error) {
    o->syncing_by_caller = false;
    settle(o->e, o, error, false);
}
