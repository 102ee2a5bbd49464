/* Every kind of XXH3 that this CPU can run gives the same checksums. */
#include "base/checksum.h"

#include <stdlib.h>

#include "check.h"

#define LENGTH_MAX ((size_t)1 << 20)

static uint8_t *data; /* starts off a border of 8 bytes */

static size_t next_length(size_t length) { return length < 1500 ? length + 1 : length * 3 + 5; }

static void test_chosen_kind_equals_baseline(void) {
    for (size_t length = 0; length <= LENGTH_MAX; length = next_length(length)) {
        CHECK_EQUAL(checksum_64(data, length), checksum_long_baseline(data, length));
        if (length > CHECKSUM_SHORT_MAX) CHECK_EQUAL(checksum_long(data, length), checksum_long_baseline(data, length));
    }
}

/* Pieces of different kinds make one stream: their states are the same. */
static void test_streams_of_kinds_mix(void) {
    for (size_t piece = 1; piece < 70000; piece = piece * 5 + 1) {
        XXH3_state_t state;
        XXH3_64bits_reset(&state);
        size_t length = piece < 100 ? 3000 : 200000;
        for (size_t at = 0, turn = 0; at < length; at += piece, turn++) {
            size_t part = length - at < piece ? length - at : piece;
            if (turn % 3 == 0) checksum_update_baseline(&state, data + at, part);
            else checksum_update(&state, data + at, part);
        }
        CHECK_EQUAL(XXH3_64bits_digest(&state), checksum_long_baseline(data, length));
    }
}

#if defined(__x86_64__)
/* Asked of the compiler's library, which knows CPUs in its own way. */
static void test_cpu_is_seen(void) {
    __builtin_cpu_init();
    CHECK_EQUAL(checksum_has_avx2(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"));
}

static void test_avx2_equals_baseline(void) {
    if (!checksum_has_avx2()) return; /* an illegal instruction here */
    for (size_t length = 0; length <= LENGTH_MAX; length = next_length(length))
        CHECK_EQUAL(checksum_long_avx2(data, length), checksum_long_baseline(data, length));
}
#endif

int main(void) {
    uint8_t *block = malloc(LENGTH_MAX + 3);
    if (block == NULL) return 1;
    data = block + 3;
    for (size_t i = 0; i < LENGTH_MAX; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    RUN(test_chosen_kind_equals_baseline);
    RUN(test_streams_of_kinds_mix);
#if defined(__x86_64__)
    RUN(test_cpu_is_seen);
    RUN(test_avx2_equals_baseline);
#endif
    free(block);
    return check_report();
}
