/* The latency histogram's buckets. */
#include "check.h"
#include "net/net.h"

static void test_a_bucket_holds_the_times_between_two_powers_of_two(void) {
    CHECK_EQUAL(latency_bucket(-5), 0);
    CHECK_EQUAL(latency_bucket(0), 0);
    for (uint32_t i = 1; i < LATENCY_BUCKETS; i++) {
        int64_t low = (int64_t)1 << (i - 1), high = ((int64_t)1 << i) - 1;
        CHECK_EQUAL(latency_bucket(low), i);
        CHECK_EQUAL(latency_bucket(high), i);
    }
    CHECK_EQUAL(latency_bucket((int64_t)1 << (LATENCY_BUCKETS - 1)), LATENCY_BUCKETS - 1);
    CHECK_EQUAL(latency_bucket(INT64_MAX), LATENCY_BUCKETS - 1);
}

int main(void) {
    RUN(test_a_bucket_holds_the_times_between_two_powers_of_two);
    return check_report();
}
