/* Allocations of the core that fail: for programs that are linked with --wrap, so that malloc, calloc and realloc of
 * the core come here. */
#ifndef SHARDD_TEST_FAILING_MEMORY_H
#define SHARDD_TEST_FAILING_MEMORY_H
#include "test_engine_support.h"

static _Thread_local bool in_turn;
static _Atomic int64_t until_failure = -1; /* allocations that still succeed; -1: all of them */
static _Atomic bool none_succeeds;
static _Atomic unsigned failures;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
bool __real_engine_turn(engine *e, int epoll_fd, int64_t timeout_us);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
bool __wrap_engine_turn(engine *e, int epoll_fd, int64_t timeout_us);

static bool fails(void) {
    if (!in_turn) return false;
    if (!none_succeeds && (until_failure < 0 || until_failure-- != 0)) return false;
    failures++;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t count, size_t bytes) { return fails() ? NULL : __real_calloc(count, bytes); }

void *__wrap_realloc(void *old, size_t bytes) { return fails() ? NULL : __real_realloc(old, bytes); }

/* What the tests do in Python's place has its memory. */
bool __wrap_engine_turn(engine *e, int epoll_fd, int64_t timeout_us) {
    in_turn = true;
    bool ready = __real_engine_turn(e, epoll_fd, timeout_us);
    in_turn = false;
    return ready;
}
#endif
