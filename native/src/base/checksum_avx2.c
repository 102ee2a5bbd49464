/* XXH3 compiled for CPUs with AVX2. Only checksum.c may call this, after it has asked the CPU. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>
#if defined(__clang__)
#define XXH_VECTOR 2 /* XXH_AVX2: an attribute, other than the pragma of gcc, defines no __AVX2__ */
#pragma clang attribute push(__attribute__((target("avx2,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi2")
#endif
#include "base/checksum.h"

uint64_t checksum_long_avx2(const uint8_t *data, size_t length) { return XXH3_64bits(data, length); }

void checksum_update_avx2(XXH3_state_t *state, const uint8_t *data, size_t length) {
    XXH3_64bits_update(state, data, length);
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
