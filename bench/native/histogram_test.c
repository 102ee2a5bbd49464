/* Every recorded value is read back within 1/64, counts and the maximum are exact. */
#include "histogram.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static histogram h, other;

static void test_single_values(void) {
    for (uint64_t value = 1; value != 0 && value < UINT64_MAX / 3; value = value * 3 + 1) {
        memset(&h, 0, sizeof h);
        histogram_record(&h, value);
        histogram_record(&h, value * 2); /* keeps the maximum away from the value under test */
        uint64_t read = histogram_percentile(&h, 0.5);
        CHECK(read >= value && read - value <= value / 64);
        CHECK(histogram_percentile(&h, 1.0) == value * 2);
    }
}

static void test_percentiles_and_merge(void) {
    memset(&h, 0, sizeof h);
    memset(&other, 0, sizeof other);
    for (uint64_t i = 1; i <= 100000; i++) histogram_record(i % 2 ? &h : &other, i);
    histogram_merge(&h, &other);
    CHECK(h.count == 100000 && h.max_ns == 100000);
    const double fractions[] = {0.001, 0.5, 0.9, 0.99, 0.999};
    for (size_t i = 0; i < sizeof fractions / sizeof *fractions; i++) {
        double exact = fractions[i] * 100000, read = (double)histogram_percentile(&h, fractions[i]);
        CHECK(read >= exact - 0.5 && read <= exact * (1 + 1.0 / 64) + 1);
    }
}

int main(void) {
    memset(&h, 0, sizeof h);
    CHECK(histogram_percentile(&h, 0.5) == 0);
    histogram_record(&h, UINT64_MAX);
    CHECK(histogram_percentile(&h, 0.5) == UINT64_MAX);
    test_single_values();
    test_percentiles_and_merge();
    puts("histogram: ok");
    return 0;
}
