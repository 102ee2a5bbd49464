/* Pool: cap, reserve, alignment, merging, a random run against a model, trim, misuse. */
#include "base/pool.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MIB ((size_t)1 << 20)

static int memfd;

static pool *fresh(size_t bytes) {
    memfd = memfd_create("test-pool", MFD_CLOEXEC);
    return pool_create(memfd, bytes);
}

static void done(pool *p) {
    pool_destroy(p);
    close(memfd);
}

/* Bytes of the memfd that the kernel has given memory for. */
static size_t kernel_bytes(void) {
    struct stat status;
    fstat(memfd, &status);
    return (size_t)status.st_blocks * 512;
}

static void test_capacity(void) {
    pool *p = fresh(10 * MIB + 4097);
    REQUIRE(p != NULL);
    CHECK_EQUAL(pool_capacity(p), 10 * MIB);
    struct stat status;
    fstat(memfd, &status);
    CHECK_EQUAL(status.st_size, 10 * MIB);
    CHECK_EQUAL(kernel_bytes(), 0);
    done(p);
    p = fresh(1);
    CHECK_EQUAL(pool_capacity(p), 8 * MIB);
    done(p);
    CHECK(pool_create(-1, 8 * MIB) == NULL);
}

static void test_sizes(void) {
    pool *p = fresh(300 * MIB);
    static const size_t wanted[][2] = {{1, 4096},
                                       {4096, 4096},
                                       {4097, 8192},
                                       {65536, 65536},
                                       {65537, 131072},
                                       {3 * MIB, 4 * MIB},
                                       {POOL_BLOCK_MAX, POOL_BLOCK_MAX}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *block = pool_alloc(p, wanted[i][0]);
        REQUIRE(block != NULL);
        CHECK_EQUAL(pool_block_size(p, block), wanted[i][1]);
        CHECK_EQUAL((uintptr_t)block % 4096, 0);
        CHECK_EQUAL(pool_offset(p, (char *)block + 5) % 4096, 5);
        CHECK_EQUAL(pool_used(p), wanted[i][1]);
        pool_free(p, block);
    }
    CHECK(pool_alloc(p, 0) == NULL);
    CHECK(pool_alloc(p, (size_t)POOL_BLOCK_MAX + 1) == NULL);
    CHECK_EQUAL(pool_used(p), 0);
    done(p);
}

static void test_cap_and_merge(void) {
    enum { PAGES = 11 * 256 };
    pool *p = fresh(11 * MIB); /* not a power of two */
    static void *blocks[PAGES];
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < PAGES; i++) REQUIRE((blocks[i] = pool_alloc(p, 4096)) != NULL);
        CHECK(pool_alloc(p, 1) == NULL);
        CHECK_EQUAL(pool_used(p), 11 * MIB);
        for (size_t i = 0; i < PAGES; i++) /* odd order, so that buddies meet late */
            pool_free(p, blocks[(i * 1223) % PAGES]);
        CHECK_EQUAL(pool_used(p), 0);
    }
    void *large = pool_alloc(p, 8 * MIB), *rest = pool_alloc(p, 2 * MIB), *last = pool_alloc(p, MIB);
    CHECK(large != NULL && rest != NULL && last != NULL);
    CHECK(pool_alloc(p, 1) == NULL);
    done(p);
}

static void test_reserve(void) {
    pool *p = fresh(8 * MIB);
    void *first = pool_alloc_reserving(p, 4 * MIB, 4 * MIB);
    CHECK(first != NULL);
    CHECK(pool_alloc_reserving(p, 4096, 4 * MIB) == NULL);
    CHECK(pool_alloc_reserving(p, 4096, 4 * MIB - 4096) != NULL);
    CHECK(pool_alloc(p, 2 * MIB) != NULL);
    CHECK(pool_alloc_reserving(p, 4096, SIZE_MAX) == NULL);
    done(p);
}

typedef struct held {
    uint8_t *block;
    size_t size;
    uint8_t mark;
} held;

/* Random allocations and frees: blocks never overlap (their marks survive), used is the sum, the whole comes back. */
static void test_random_model(void) {
    enum { HELD = 200, STEPS = 40000 };
    pool *p = fresh(21 * MIB);
    static held model[HELD];
    uint64_t random = 88172645463325252u;
    size_t used = 0;
    for (int step = 0; step < STEPS && check_errors == 0; step++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        held *slot = &model[random % HELD];
        if (slot->block != NULL) {
            CHECK(slot->block[0] == slot->mark && slot->block[slot->size - 1] == slot->mark);
            pool_free(p, slot->block);
            used -= slot->size;
            slot->block = NULL;
        } else {
            size_t wanted = (size_t)1 + (random >> 20) % ((size_t)1 << (10 + (random >> 50) % 11));
            slot->block = pool_alloc(p, wanted);
            if (slot->block != NULL) {
                slot->size = pool_block_size(p, slot->block);
                slot->mark = (uint8_t)random;
                CHECK(slot->size >= wanted && (slot->size < 2 * wanted || slot->size == 4096));
                memset(slot->block, slot->mark, slot->size);
                used += slot->size;
            }
        }
        CHECK_EQUAL(pool_used(p), used);
        CHECK(pool_resident(p) >= used && pool_resident(p) <= pool_capacity(p));
        if (step % 1000 == 999) {
            pool_trim(p, (random >> 9) % (4 * MIB), (random >> 3) % (2 * MIB));
            CHECK(pool_resident(p) >= kernel_bytes());
        }
    }
    for (int i = 0; i < HELD; i++) pool_free(p, model[i].block);
    memset(model, 0, sizeof model);
    CHECK_EQUAL(pool_used(p), 0);
    CHECK(pool_alloc(p, 16 * MIB) != NULL);
    done(p);
}

static void test_trim(void) {
    pool *p = fresh(64 * MIB);
    uint8_t *kept = pool_alloc(p, 4096), *large = pool_alloc(p, 16 * MIB), *small = pool_alloc(p, MIB);
    kept[0] = 77;
    memset(large, 1, 16 * MIB);
    memset(small, 2, MIB);
    pool_free(p, large);
    pool_free(p, small);
    CHECK_EQUAL(pool_used(p), 4096);
    CHECK_EQUAL(pool_resident(p), 17 * MIB + 4096);
    CHECK_EQUAL(kernel_bytes(), 17 * MIB + 4096);
    pool_trim(p, 2 * MIB, SIZE_MAX); /* the larger block goes, the smaller one may stay */
    CHECK(pool_resident(p) - pool_used(p) <= 2 * MIB);
    CHECK(kernel_bytes() <= pool_resident(p));
    pool_trim(p, 0, SIZE_MAX);
    CHECK_EQUAL(pool_resident(p), 4096);
    CHECK_EQUAL(kernel_bytes(), 4096);
    CHECK_EQUAL(kept[0], 77);
    uint8_t *again = pool_alloc(p, 16 * MIB);
    REQUIRE(again != NULL);
    CHECK_EQUAL(again[12345], 0); /* given back and fresh */
    done(p);
}

/* The process that frees wrongly must end by SIGABRT. */
static void expect_abort(void (*misuse)(pool *, uint8_t *)) {
    pool *p = fresh(8 * MIB);
    uint8_t *block = pool_alloc(p, 8192);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(3);
        misuse(p, block);
        _exit(0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    done(p);
}

static void free_twice(pool *p, uint8_t *block) {
    pool_free(p, block);
    pool_free(p, block);
}

static void free_inside(pool *p, uint8_t *block) { pool_free(p, block + 4096); }

static void free_foreign(pool *p, uint8_t *block) {
    (void)block;
    pool_free(p, p);
}

static void test_misuse(void) {
    expect_abort(free_twice);
    expect_abort(free_inside);
    expect_abort(free_foreign);
}

int main(void) {
    RUN(test_capacity);
    RUN(test_sizes);
    RUN(test_cap_and_merge);
    RUN(test_reserve);
    RUN(test_random_model);
    RUN(test_trim);
    RUN(test_misuse);
    return check_report();
}
