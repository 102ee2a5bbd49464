/* Syncs of partitions: in the background every sync interval, without delaying any answer, and at level `durable` as
 * group commit. There an answer is held until a sync that began after its write is done; syncs begin at the end of a
 * turn, and while one of a partition runs, later answers collect and the next one covers them all. Partitions sync
 * concurrently. A failed sync poisons the partition, answers all that it holds with its status and is never tried
 * again. A sync that does not end, or cannot begin, parks its callers: who cancels is taken out, and the sync goes on
 * without it. */
#include "core/sync.h"

#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define SYNC_FDS_MAX 64u
#define SYNC_RETRY_US 5000 /* when descriptors were missing and answers wait */

typedef struct sync_file {
    operation operation;
    sync_group *group;
    int fd;
} sync_file;

struct sync_group {
    sync_group *next, *previous; /* of all that run */
    owned *target;
    uint32_t begun, running; /* files */
    int error;
    sync_file files[];
};

typedef enum held_kind { HELD_ANSWER, HELD_CALL, HELD_EVENT } held_kind;

/* What waits for the device. `sync`: the first sync of the partition that covers it. */
struct held {
    pending pending; /* first; HELD_ANSWER: the caller knows it */
    held *next, *previous;
    owned *of;
    held_kind kind;
    uint64_t sync;
    caller to; /* HELD_ANSWER */
    outcome what;
    void *context; /* HELD_CALL */
    void (*done)(void *context, uint32_t status);
    uint64_t token; /* HELD_EVENT: what Python calls it */
};

void sync_mark_dirty(owned *o) {
    if (o->sync.dirty) return;
    o->sync.dirty = true;
    o->sync.next_dirty = o->core->sync.dirty;
    o->core->sync.dirty = o;
    o->references++;
}

/* ---- answers that are held ---- */

static void put_in(held *h) {
    owned *o = h->of;
    h->previous = o->sync.held_last;
    if (o->sync.held_first == NULL) o->sync.held_first = h;
    else o->sync.held_last->next = h;
    o->sync.held_last = h;
}

static void take_out(held *h) {
    owned *o = h->of;
    if (h->previous == NULL) o->sync.held_first = h->next;
    else h->previous->next = h->next;
    if (h->next == NULL) o->sync.held_last = h->previous;
    else h->next->previous = h->previous;
}

/* Of one that is in no list. */
static void tell(held *h, uint32_t status) {
    held was = *h;
    free(h);
    if (status != 0) was.what = (outcome){.status = status};
    switch (was.kind) {
    case HELD_ANSWER: caller_end(&was.to, &was.what); break;
    case HELD_CALL: was.done(was.context, status); break;
    case HELD_EVENT: events_promised(&was.of->core->events, EVENT_SYNCED, was.token)->number = status; break;
    }
}

static void answer(held *h, uint32_t status) {
    if (h->kind == HELD_ANSWER) caller_parked(&h->to, NULL);
    tell(h, status);
}

/* Answers everything that syncs up to `sync` cover. */
static void answer_held(owned *o, uint64_t sync, uint32_t status) {
    while (o->sync.held_first != NULL && o->sync.held_first->sync <= sync) {
        held *h = o->sync.held_first;
        take_out(h);
        answer(h, status);
    }
}

void sync_drop_held(owned *o, uint32_t status) { answer_held(o, UINT64_MAX, status); }

void sync_leave(held *h) {
    take_out(h);
    free(h);
}

/* The caller of a held answer wants it no more: the sync goes on without it. */
static void cancel(pending *p) {
    held *h = (held *)p;
    caller to = h->to;
    sync_leave(h);
    caller_parked(&to, NULL);
    caller_dropped(&to);
}

void sync_free_held(owned *o) {
    for (held *h = o->sync.held_first, *next; h != NULL; h = next) {
        next = h->next;
        if (h->kind == HELD_EVENT) events_unpromise(&o->core->events);
        free(h);
    }
    o->sync.held_first = o->sync.held_last = NULL;
}

/* ---- one sync ---- */

static void enqueue(core *k, owned *target) { /* takes over a reference */
    target->sync.waits = true;
    target->sync.next_pending = NULL;
    if (k->sync.pending == NULL) k->sync.pending = target;
    else k->sync.pending_last->sync.next_pending = target;
    k->sync.pending_last = target;
}

void sync_report_poison(owned *o, int error) {
    if (o->poison_reported) return;
    event *v = events_add(&o->core->events, EVENT_POISONED, o->ns);
    if (v == NULL) return; /* the next one who finds it poisoned tells */
    v->number = (uint64_t)error;
    o->poison_reported = true;
}

static void sync_soon(core *k) {
    if (k->sync.next_us > k->now_us + SYNC_RETRY_US) k->sync.next_us = k->now_us + SYNC_RETRY_US;
}

/* After a sync: who may be answered now, and whether another one has to begin. `none`: it could not open a file. */
static void settle(core *k, owned *target, int error, bool none) {
    bool covered = partition_sync_done(target->p, error);
    if (target->has_waiting_polls) waiting_polls_wake(target);
    target->sync.waits = false;
    if (error != 0 || partition_sync_failed(target->p)) sync_report_poison(target, error != 0 ? error : EIO);
    if (covered) answer_held(target, target->sync.begun, 0);
    else if (partition_sync_failed(target->p)) sync_drop_held(target, partition_state(target->p));
    if (partition_is_dirty(target->p) || target->sync.held_first != NULL) sync_mark_dirty(target);
    if (target->sync.held_first == NULL) return;
    if (none && !covered) {
        sync_soon(k);
    } else if (!target->sync.waits) {
        target->references++;
        enqueue(k, target);
    }
}

static void enter_running(core *k, sync_group *group) {
    k->sync.running++;
    group->next = k->sync.groups;
    if (group->next != NULL) group->next->previous = group;
    k->sync.groups = group;
}

static void leave_running(core *k, sync_group *group) {
    k->sync.running--;
    if (group->next != NULL) group->next->previous = group->previous;
    if (group->previous != NULL) group->previous->next = group->next;
    else k->sync.groups = group->next;
}

static void finish(core *k, sync_group *group, bool none) {
    owned *target = group->target;
    k->counters.syncs++;
    if (group->error != 0) k->counters.sync_errors++;
    leave_running(k, group);
    settle(k, target, group->error, none);
    owned_release(target);
    free(group);
}

static size_t collect(owned *target, int *fds, size_t max) {
    sync_scope scope = target->sync.everything ? SYNC_EVERYTHING : SYNC_ACKNOWLEDGEMENTS;
    target->sync.everything = false;
    target->sync.begun++;
    uint32_t files_max = target->core->files.budget.sync_files;
    return partition_sync_begin(target->p, scope, fds, max < files_max ? max : files_max);
}

/* No memory now: the dirty list keeps it, with all who wait, for the next tick. */
static void postpone(core *k, owned *target) {
    target->sync.waits = false;
    sync_mark_dirty(target);
    sync_soon(k);
    owned_release(target);
}

/* False: there was nothing to sync, it is over; or it is postponed. */
static bool begin(core *k, owned *target) {
    int fds[SYNC_FDS_MAX];
    sync_group *group = malloc(sizeof *group + SYNC_FDS_MAX * sizeof *group->files);
    if (group == NULL) {
        postpone(k, target);
        return false;
    }
    size_t count = collect(target, fds, SYNC_FDS_MAX);
    /* takes over the reference of the queue */
    *group = (sync_group){.target = target, .begun = (uint32_t)count, .running = (uint32_t)count};
    enter_running(k, group);
    for (size_t i = 0; i < count; i++) {
        sync_file *file = &group->files[i];
        *file = (sync_file){.operation = operation_of(OPERATION_SYNC, file), .group = group, .fd = fds[i]};
        io_fdatasync(&k->io, &file->operation, file->fd);
    }
    if (count == 0) finish(k, group, true);
    return count > 0;
}

bool sync_begin_pending(core *k) {
    bool settled = false;
    while (k->sync.pending != NULL && k->sync.running < k->files.budget.syncs) {
        owned *target = k->sync.pending;
        k->sync.pending = target->sync.next_pending;
        if (k->sync.pending == NULL) k->sync.pending_last = NULL;
        settled |= !begin(k, target);
    }
    return settled;
}

void sync_on_complete(operation *op, int result) {
    sync_file *file = op->owner;
    sync_group *group = file->group;
    core *k = group->target->core;
    if (result == -EINTR) { /* says nothing about the device */
        io_fdatasync(&k->io, op, file->fd);
        return;
    }
    if (result < 0 && group->error == 0) group->error = -result;
    close(file->fd);
    file->fd = -1;
    file_cache_spares_keep(&k->files); /* before anybody else takes it */
    if (--group->running > 0) return;
    finish(k, group, false);
}

void sync_close(core *k) {
    for (owned *o = k->sync.dirty, *next; o != NULL; o = next) {
        next = o->sync.next_dirty;
        owned_release(o);
    }
    for (owned *o = k->sync.pending, *next; o != NULL; o = next) {
        next = o->sync.next_pending;
        owned_release(o);
    }
    for (sync_group *group = k->sync.groups, *next; group != NULL; group = next) {
        next = group->next;
        for (uint32_t i = 0; i < group->begun; i++)
            if (group->files[i].fd >= 0) close(group->files[i].fd);
        owned_release(group->target);
        free(group);
    }
    k->sync.dirty = k->sync.pending = k->sync.pending_last = NULL;
    k->sync.groups = NULL;
}

/* ---- who asks for one ---- */

/* True when the partition may leave the dirty list: everything is written and no sync is asked for. */
static bool saved(owned *target) {
    bool clean = partition_flush(target->p) == 0 || partition_unsaved_bytes(target->p) == 0;
    if (partition_state(target->p) != 0) sync_report_poison(target, EIO);
    return (clean || partition_state(target->p) != 0) && !partition_has_refused(target->p);
}

/* Deals with the dirty partitions of level `memory`, or with all others and those that answers wait for. */
static void tick(core *k, bool memory) {
    owned *list = k->sync.dirty;
    k->sync.dirty = NULL;
    while (list != NULL) {
        owned *target = list;
        list = target->sync.next_dirty;
        bool of_memory = partition_level_of(target->p) == LEVEL_MEMORY;
        bool concerned = of_memory == memory || (!memory && target->sync.held_first != NULL); /* somebody waits */
        if (concerned) target->sync.everything = true;
        bool only_saved = concerned && memory && !k->options.save_syncs && target->sync.held_first == NULL;
        /* A present sync may not cover the newest bytes: next tick. */
        if (!concerned || target->sync.waits || (only_saved && !saved(target))) {
            target->sync.next_dirty = k->sync.dirty;
            k->sync.dirty = target;
            continue;
        }
        target->sync.dirty = false;
        if (only_saved) owned_release(target);
        else enqueue(k, target); /* with the reference of the dirty list */
    }
}

void sync_tick(core *k) { tick(k, false); }

void sync_save_tick(core *k) { tick(k, true); }

void sync_level_changed(owned *o) {
    if (o->has_waiting_polls) waiting_polls_wake(o);
    if (partition_state(o->p) != 0) sync_report_poison(o, EIO);
    if (!partition_is_dirty(o->p)) return;
    sync_mark_dirty(o);
    if (partition_level_of(o->p) != LEVEL_DURABLE || o->sync.waits) return;
    o->references++;
    enqueue(o->core, o);
}

void sync_early(owned *o) {
    if (!partition_is_dirty(o->p) || o->sync.waits) return;
    o->references++;
    enqueue(o->core, o);
}

void sync_lost(owned *o, int error) {
    partition_sync_lost(o->p);
    sync_report_poison(o, error);
    if (!o->sync.waits) sync_drop_held(o, partition_state(o->p));
}

/* False: no memory. `entry`: what it became, unless it was told at once. */
static bool hold(owned *o, const held *what, held **entry) {
    held *h = malloc(sizeof *h);
    if (h == NULL) return false;
    *h = *what;
    h->of = o;
    if (partition_sync_failed(o->p)) {
        tell(h, partition_state(o->p));
        return true;
    }
    h->sync = o->sync.begun + 1;
    put_in(h);
    *entry = h;
    if (o->sync.waits) return true;
    o->references++;
    enqueue(o->core, o);
    return true;
}

void sync_answer(owned *o, const caller *to, const outcome *what) {
    static const pending_calls calls = {.cancel = cancel};
    if (what->status != 0 || partition_level_of(o->p) != LEVEL_DURABLE || !to->calls->wanted(to)) {
        caller_end(to, what);
        return;
    }
    held *h = NULL;
    held waiting = {
        .kind = HELD_ANSWER, .pending = {.calls = &calls, .waits_for = WAITS_FOR_DEVICE}, .to = *to, .what = *what};
    if (!hold(o, &waiting, &h)) caller_gone(to); /* whether the device will have it nobody can wait to hear */
    else if (h != NULL) caller_parked(to, &h->pending);
}

bool sync_hold(owned *o, void *context, void (*done)(void *context, uint32_t status), held **entry) {
    if (partition_level_of(o->p) != LEVEL_DURABLE) return false;
    held *h = NULL;
    if (!hold(o, &(held){.kind = HELD_CALL, .context = context, .done = done}, &h))
        done(context, STATUS_CANNOT_SYNC_FILE);
    if (h != NULL) *entry = h; /* otherwise it is over, and maybe the context with it */
    return true;
}

bool sync_report(owned *o, uint64_t token) {
    held *unused;
    if (!events_promise(&o->core->events)) return false;
    o->sync.everything = true;
    bool held_it = hold(o, &(held){.kind = HELD_EVENT, .token = token}, &unused);
    if (!held_it) events_unpromise(&o->core->events);
    return held_it;
}

size_t sync_begin_by_caller(owned *o, int *fds, size_t max) {
    o->sync.waits = o->sync.by_caller = o->sync.everything = true;
    return collect(o, fds, max);
}

void sync_end_by_caller(owned *o, int error) {
    o->sync.by_caller = false;
    settle(o->core, o, error, false);
}
