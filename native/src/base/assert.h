/* Assertions: what must hold whatever a client, a peer or the disk does. What these can cause is never asserted, it
 * gets a typed error.
 *
 * ASSERT states pre- and postconditions of exported functions and invariants. In test builds (the Makefile defines
 * SHARDD_CHECKED beside the sanitizers) one that fails ends the process. In release builds it costs
 * nothing and is only compiled: a wrong statement must not end a worker with all its connections.
 *
 * ASSERT_ALWAYS is for memory that would belong to two: to go on would hand the bytes of one connection to another, so
 * it ends the process in every build. The check costs a compare. */
#ifndef SHARDD_ASSERT_H
#define SHARDD_ASSERT_H
#include <stdio.h>
#include <stdlib.h>

#define ASSERT_ALWAYS(condition) \
    do { \
        if (__builtin_expect(!(condition), 0)) { \
            fprintf(stderr, "%s:%d: %s: does not hold: %s\n", __FILE__, __LINE__, __func__, #condition); \
            abort(); \
        } \
    } while (0)

#ifdef SHARDD_CHECKED
#define ASSERT(condition) ASSERT_ALWAYS(condition)
#else
#define ASSERT(condition) \
    do { \
        (void)sizeof((condition) ? 1 : 0); \
    } while (0)
#endif
#endif
