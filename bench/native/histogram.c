#include "histogram.h"

#include <math.h>

static uint32_t bucket_of(uint64_t value) {
    if (value < (1u << HISTOGRAM_SUB_BITS)) return (uint32_t)value;
    uint32_t shift = 63u - (uint32_t)__builtin_clzll(value) - HISTOGRAM_SUB_BITS;
    /* value >> shift lies in 64..127: its low six bits are the position inside this power of two. */
    return ((shift + 1) << HISTOGRAM_SUB_BITS) + (uint32_t)((value >> shift) - (1u << HISTOGRAM_SUB_BITS));
}

static uint64_t bucket_end(uint32_t bucket) {
    if (bucket < (1u << HISTOGRAM_SUB_BITS)) return bucket;
    uint32_t shift = (bucket >> HISTOGRAM_SUB_BITS) - 1;
    uint64_t position = (bucket & ((1u << HISTOGRAM_SUB_BITS) - 1)) + (1u << HISTOGRAM_SUB_BITS);
    return ((position + 1) << shift) - 1;
}

void histogram_record(histogram *h, uint64_t value_ns) {
    h->count++;
    h->buckets[bucket_of(value_ns)]++;
    if (value_ns > h->max_ns) h->max_ns = value_ns;
}

void histogram_merge(histogram *into, const histogram *from) {
    into->count += from->count;
    if (from->max_ns > into->max_ns) into->max_ns = from->max_ns;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) into->buckets[i] += from->buckets[i];
}

uint64_t histogram_percentile(const histogram *h, double fraction) {
    uint64_t wanted = (uint64_t)ceil(fraction * (double)h->count);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen >= wanted && seen > 0) return bucket_end(i) < h->max_ns ? bucket_end(i) : h->max_ns;
    }
    return h->max_ns;
}
