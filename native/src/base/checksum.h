/* XXH3 with seed 0 by the widest vectors that this CPU has: chosen when the core is loaded, so that one build runs at
 * full speed everywhere. docs/adr/0048-cpu-features-at-run-time.md */
#ifndef SHARDD_CHECKSUM_H
#define SHARDD_CHECKSUM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Inlined: twice the throughput of the shared library's function up to 64 KiB (measured on x86-64-v2). */
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#define CHECKSUM_SHORT_MAX 240u /* XXH3 uses no vectors up to here */

uint64_t checksum_long(const uint8_t *data, size_t length);
/* XXH3_64bits_update and XXH3_128bits_update: both do the same to the state. */
void checksum_update(XXH3_state_t *state, const uint8_t *data, size_t length);

static inline uint64_t checksum_64(const uint8_t *data, size_t length) {
    if (__builtin_expect(length > CHECKSUM_SHORT_MAX, 0)) return checksum_long(data, length);
    return XXH3_64bits(data, length);
}

/* ---- the kinds to choose from ---- */

uint64_t checksum_long_baseline(const uint8_t *data, size_t length);
void checksum_update_baseline(XXH3_state_t *state, const uint8_t *data, size_t length);
#if defined(__x86_64__)
bool checksum_has_avx2(void);
uint64_t checksum_long_avx2(const uint8_t *data, size_t length);
void checksum_update_avx2(XXH3_state_t *state, const uint8_t *data, size_t length);
#endif
#endif
