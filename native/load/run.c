/* The loop of one process: all its actors, until each is at its end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "load.h"
#include "wire.h"

enum { SCRATCH_BYTES = 1 << 20, EVENTS_MAX = 256, TIMER = UINT32_MAX, OPENED = UINT32_MAX - 1, START_TIMEOUT_S = 120 };

typedef struct loop {
    load_run *run;
    actor *actors;
    size_t count, active;
    int epoll, timer;
    uint64_t armed_ns; /* the timer goes off then, 0: never */
    uint8_t *scratch;
    bool measures;
    uint64_t cpu_from_ns, wall_from_ns, waited_from_ns;
} loop;

static bool fail(load_run *run, const char *what) {
    if (run->fault[0] == 0) snprintf(run->fault, sizeof run->fault, "%s", what);
    return false;
}

static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* How long this thread could run while another had its CPU; 0 where the kernel does not say. */
static uint64_t waited_ns(void) {
    unsigned long long ran, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%llu %llu", &ran, &waited) != 2) waited = 0;
    fclose(file);
    return waited;
}

/* What ends a run from outside. */
static bool goes_on(load_run *run) {
    if (atomic_load_explicit(&run->slots[SLOT_STOP], memory_order_relaxed) != 0) return fail(run, "stopped");
    if (run->parent != 0 && getppid() != run->parent) return fail(run, "nobody waits for this run any more");
    return true;
}

/* Until all processes are ready. */
static bool wait_for_start(load_run *run) {
    atomic_fetch_add(&run->slots[SLOT_READY], 1);
    uint64_t until_ns = now_ns() + START_TIMEOUT_S * 1000000000ull, start_ns;
    while ((start_ns = (uint64_t)atomic_load(&run->slots[SLOT_START_NS])) == 0) {
        if (!goes_on(run)) return false;
        if (now_ns() > until_ns) return fail(run, "the run never began");
        usleep(200);
    }
    run->measure_from_ns = start_ns + run->warmup_ns;
    run->progress_ns = start_ns;
    return true;
}

/* Somebody outside opens another connection for this actor, and closes this one. */
static bool ask_for_another(loop *l, const actor *a) {
    uint32_t number = (uint32_t)(a - l->actors);
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, a->fd, NULL);
    if (write(l->run->broken_fd, &number, sizeof number) == (ssize_t)sizeof number) return true;
    return fail(l->run, "nobody opens connections again");
}

static bool advance(loop *l, actor *a) {
    if (a->over || a->broken) return true;
    if (!actor_advance(a, l->scratch, SCRATCH_BYTES)) return false;
    l->active -= a->over;
    return !a->broken || ask_for_another(l, a);
}

static bool watch_one(loop *l, size_t number) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = (uint32_t)number};
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->actors[number].fd, &event) == 0) return true;
    return fail(l->run, "a connection cannot be watched");
}

static bool take_opened(loop *l) {
    opened o; /* written at once, and there at once */
    while (read(l->run->opened_fd, &o, sizeof o) == (ssize_t)sizeof o) {
        if (o.actor >= l->count || !l->actors[o.actor].broken) return fail(l->run, "nobody has asked for this");
        actor_reopened(&l->actors[o.actor], &o);
        if (!watch_one(l, o.actor) || !advance(l, &l->actors[o.actor])) return false;
    }
    return true;
}

static void arm(loop *l, uint64_t at_ns) {
    if (at_ns == l->armed_ns) return;
    struct itimerspec time = {
        .it_value = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)}};
    timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &time, NULL);
    l->armed_ns = at_ns;
}

/* Those whose next request is due; and the timer for the first that will be. */
static bool advance_due(loop *l) {
    uint64_t now = now_ns(), next = 0;
    for (size_t i = 0; i < l->count; i++) {
        actor *a = &l->actors[i];
        if (a->wake_ns != 0 && a->wake_ns <= now && !advance(l, a)) return false;
        if (a->wake_ns != 0 && (next == 0 || a->wake_ns < next)) next = a->wake_ns;
    }
    arm(l, next);
    return true;
}

/* Who waits for another connection has a clock of its own, outside. */
static bool any_in_flight(const loop *l) {
    for (size_t i = 0; i < l->count; i++)
        if (l->actors[i].in_flight > 0 && !l->actors[i].broken) return true;
    return false;
}

/* What the parent shows while it waits. */
static void tell(load_run *run, uint64_t now) {
    _Atomic int64_t *worst = &run->slots[SLOT_WORST_NS];
    int64_t before = atomic_load(worst);
    run->told_ns = now;
    atomic_fetch_add(&run->slots[SLOT_MESSAGES], (int64_t)run->messages);
    atomic_fetch_add(&run->slots[SLOT_BYTES], (int64_t)run->bytes);
    while (before < (int64_t)run->worst_ns && !atomic_compare_exchange_weak(worst, &before, (int64_t)run->worst_ns))
        continue;
    run->messages = run->bytes = run->worst_ns = 0;
}

static bool tick(loop *l) {
    uint64_t now = now_ns();
    if (now - l->run->told_ns > TICK_MS * 1000000ull) tell(l->run, now);
    if (!l->measures && now >= l->run->measure_from_ns) {
        l->measures = true;
        l->cpu_from_ns = cpu_ns();
        l->wall_from_ns = now;
        l->waited_from_ns = waited_ns();
    }
    if (now - l->run->progress_ns > REPLY_TIMEOUT_MS * 1000000ull && any_in_flight(l))
        return fail(l->run, "the server has answered nothing for 10 s");
    return goes_on(l->run);
}

static bool turn(loop *l) {
    struct epoll_event events[EVENTS_MAX];
    int n = epoll_wait(l->epoll, events, EVENTS_MAX, TICK_MS);
    if (n < 0 && errno != EINTR) return fail(l->run, "epoll_wait failed");
    if (!tick(l)) return false;
    for (int i = 0; i < n; i++) {
        if (events[i].data.u32 == TIMER) l->armed_ns = 0;
        else if (events[i].data.u32 == OPENED) {
            if (!take_opened(l)) return false;
        } else if (!advance(l, &l->actors[events[i].data.u32])) return false;
    }
    return advance_due(l);
}

static bool watch(loop *l) {
    struct epoll_event timer = {.events = EPOLLIN | EPOLLET, .data.u32 = TIMER};
    if (l->epoll < 0 || l->timer < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->timer, &timer) != 0)
        return fail(l->run, "no epoll, or no timer");
    struct epoll_event opened = {.events = EPOLLIN, .data.u32 = OPENED};
    if (l->run->reopens && epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->run->opened_fd, &opened) != 0)
        return fail(l->run, "nobody opens connections again");
    for (size_t i = 0; i < l->count; i++)
        if (!watch_one(l, i)) return false;
    return true;
}

static bool run_loop(loop *l) {
    if (l->scratch == NULL) return fail(l->run, "the client has no memory left");
    if (!watch(l) || !wait_for_start(l->run) || !tick(l)) return false;
    for (size_t i = 0; i < l->count; i++) {
        l->actors[i].due_ns = l->run->measure_from_ns - l->run->warmup_ns;
        if (!advance(l, &l->actors[i])) return false;
    }
    if (!advance_due(l)) return false;
    while (l->active > 0)
        if (!turn(l)) return false;
    if (l->measures) {
        l->run->cpu_ns = cpu_ns() - l->cpu_from_ns;
        l->run->wall_ns = now_ns() - l->wall_from_ns;
        l->run->waited_ns = waited_ns() - l->waited_from_ns;
    }
    return true;
}

bool load_run_actors(load_run *run, actor *actors, size_t count) {
    loop l = {.run = run, .actors = actors, .count = count, .active = count, .scratch = malloc(SCRATCH_BYTES)};
    prctl(PR_SET_TIMERSLACK, 1);
    l.epoll = epoll_create1(EPOLL_CLOEXEC);
    l.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    bool done = run_loop(&l);
    if (!done) atomic_store(&run->slots[SLOT_STOP], 1);
    if (l.epoll >= 0) close(l.epoll);
    if (l.timer >= 0) close(l.timer);
    free(l.scratch);
    return done;
}
