/* Checks for the C unit tests: one program per file, `RUN(test)` for each test, `return check_report();` at the end. */
#ifndef SHARDD_CHECK_H
#define SHARDD_CHECK_H
#include <inttypes.h>
#include <stdio.h>

static unsigned check_passed, check_failed, check_errors;

/* The value of the expression is the verdict: a failed check is counted and reported, the test goes on. */
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, __func__, #condition); \
            check_errors++; \
        } \
    } while (0)

/* Like CHECK, shows both integers. */
#define CHECK_EQUAL(actual, expected) \
    do { \
        uint64_t check_a = (uint64_t)(actual), check_b = (uint64_t)(expected); \
        if (check_a != check_b) { \
            fprintf(stderr, "%s:%d: %s: %s is %" PRIu64 ", expected %" PRIu64 "\n", __FILE__, __LINE__, __func__, \
                    #actual, check_a, check_b); \
            check_errors++; \
        } \
    } while (0)

/* Leaves the test when the condition does not hold (for what the rest needs). */
#define REQUIRE(condition) \
    do { \
        unsigned check_n = check_errors; \
        CHECK(condition); \
        if (check_errors != check_n) return; \
    } while (0)

#define RUN(test) \
    do { \
        unsigned check_n = check_errors; \
        test(); \
        if (check_errors == check_n) check_passed++; \
        else check_failed++; \
    } while (0)

static inline int check_report(void) {
    printf("%u passed, %u failed\n", check_passed, check_failed);
    return check_failed != 0;
}
#endif
