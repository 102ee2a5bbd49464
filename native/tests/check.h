/* Checks for the C unit tests: one program per file, `RUN(test)` for each test, `return check_report();` at the end. */
#ifndef SHARDD_CHECK_H
#define SHARDD_CHECK_H
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

/* For canaries: what fails between these two is not printed and does not count. */
typedef struct check_hidden {
    int stderr_fd;
    unsigned errors;
} check_hidden;

static inline check_hidden check_hide(void) {
    fflush(stderr);
    check_hidden hidden = {dup(STDERR_FILENO), check_errors};
    if (hidden.stderr_fd < 0 || freopen("/dev/null", "w", stderr) == NULL) abort();
    return hidden;
}

/* How many checks have failed. */
static inline unsigned check_show(check_hidden hidden) {
    fflush(stderr);
    dup2(hidden.stderr_fd, STDERR_FILENO);
    close(hidden.stderr_fd);
    unsigned found = check_errors - hidden.errors;
    check_errors = hidden.errors;
    return found;
}

static inline int check_report(void) {
    printf("%u passed, %u failed\n", check_passed, check_failed);
    return check_failed != 0;
}
#endif
