/* Chooses the kind of XXH3, and is the one that every CPU of the architecture has. */
#include "base/checksum.h"

uint64_t checksum_long_baseline(const uint8_t *data, size_t length) { return XXH3_64bits(data, length); }

void checksum_update_baseline(XXH3_state_t *state, const uint8_t *data, size_t length) {
    XXH3_64bits_update(state, data, length);
}

#if defined(__x86_64__)
#include <cpuid.h>

/* Written once, before anybody can call. A flag and not an address: nothing can be made to jump by it. */
static bool with_avx2;

__attribute__((constructor)) static void look_at_cpu(void) { with_avx2 = checksum_has_avx2(); }

/* Not __builtin_cpu_supports: some compilers' libraries do not fill what it reads. */
bool checksum_has_avx2(void) {
    enum { OSXSAVE = 1 << 27, AVX2 = 1 << 5, BMI2 = 1 << 8, YMM_STATE = 6 };
    unsigned a, b, c, d;
    if (__get_cpuid_max(0, NULL) < 7) return false;
    __cpuid(1, a, b, c, d);
    if ((c & OSXSAVE) == 0) return false;
    __cpuid_count(7, 0, a, b, c, d);
    if ((b & AVX2) == 0 || (b & BMI2) == 0) return false;
    unsigned low, high; /* the kernel keeps these registers of a thread */
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & YMM_STATE) == YMM_STATE;
}

uint64_t checksum_long(const uint8_t *data, size_t length) {
    return with_avx2 ? checksum_long_avx2(data, length) : checksum_long_baseline(data, length);
}

void checksum_update(XXH3_state_t *state, const uint8_t *data, size_t length) {
    if (with_avx2) checksum_update_avx2(state, data, length);
    else checksum_update_baseline(state, data, length);
}
#else
uint64_t checksum_long(const uint8_t *data, size_t length) { return checksum_long_baseline(data, length); }

void checksum_update(XXH3_state_t *state, const uint8_t *data, size_t length) {
    checksum_update_baseline(state, data, length);
}
#endif
