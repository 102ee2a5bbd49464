/* Log-linear histogram of durations in nanoseconds: 64 buckets for each power of two, so a value read back is at most
 * 1/64 (1.6 %) above the recorded one. Fixed size, no allocation. */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H
#include <stdint.h>

enum { HISTOGRAM_SUB_BITS = 6, HISTOGRAM_BUCKETS = (64 - HISTOGRAM_SUB_BITS + 1) << HISTOGRAM_SUB_BITS };

typedef struct histogram {
    uint64_t count;
    uint64_t max_ns; /* exact */
    uint64_t buckets[HISTOGRAM_BUCKETS];
} histogram;

void histogram_record(histogram *h, uint64_t value_ns);
void histogram_merge(histogram *into, const histogram *from);
/* Smallest bucket end that at least `fraction` (0..1] of the values do not exceed, never above the maximum; 0 when
 * empty. */
uint64_t histogram_percentile(const histogram *h, double fraction);
#endif
