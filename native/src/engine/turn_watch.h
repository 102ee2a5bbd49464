/* How long the passes of the loop compute, by the CPU time of its thread (docs/adr/0038-bounded-steps.md). The clock
 * for that is a system call: it is read when a millisecond has passed since it was read last. So a pass is taken for a
 * millisecond longer than it was at most, and one that took less is not seen. */
#ifndef SHARDD_TURN_WATCH_H
#define SHARDD_TURN_WATCH_H
#include "base/clock.h"

#define TURN_WATCH_LOOK_US 1000

typedef struct turn_watch {
    int64_t read_us, cpu_us; /* both clocks when the second one was read */
    int64_t longest_us;      /* pass since somebody took it; 0: none was long */
} turn_watch;

/* What the thread computed until now belongs to nobody here. */
static inline void turn_watch_begin(turn_watch *w, int64_t now_us) {
    if (now_us - w->read_us < TURN_WATCH_LOOK_US) return;
    w->read_us = now_us;
    w->cpu_us = clock_thread_cpu_us();
}

/* A pass that began at `began_us` has ended. */
static inline void turn_watch_end(turn_watch *w, int64_t began_us, int64_t now_us) {
    if (now_us - w->read_us < TURN_WATCH_LOOK_US) return;
    int64_t before_us = w->cpu_us;
    turn_watch_begin(w, now_us);
    int64_t used_us = w->cpu_us - before_us;
    if (used_us > now_us - began_us) used_us = now_us - began_us;
    if (used_us >= TURN_WATCH_LOOK_US && used_us > w->longest_us) w->longest_us = used_us;
}

static inline int64_t turn_watch_take(turn_watch *w) {
    int64_t longest_us = w->longest_us;
    w->longest_us = 0;
    return longest_us;
}
#endif
