/* The running sum of a topic that refuses: what a recount gives, after any sequence, for bounded work in each pass. */
#include "test_core_support.h"

#include "core/send_limits.h"

#define PARTITIONS (2 * SEND_PLACES_LOOKED_AT + 900)
#define PASSES_OF_A_ROUND (PARTITIONS / SEND_PLACES_LOOKED_AT + 1)
#define LIMIT (UINT64_C(1) << 30)
#define LARGE_MAX 4u

static uint64_t random_state, pass;
static struct {
    append_batch batch;
    uint32_t place;
} large[LARGE_MAX]; /* taken, and not seen yet; length 0: none */

static uint64_t draw(uint64_t below) {
    uint64_t z = (random_state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) % below;
}

static partition_stats *stats_of(uint32_t place) { return &k->links.stats[place + 1]; } /* 0 is that of NS_HERE */

static send_limits *limits_of_many(void) {
    send_limits values = {.bytes_max = LIMIT};
    send_limits *l = send_limits_new(&values, PARTITIONS);
    for (uint32_t i = 0; i < PARTITIONS; i++) {
        l->places[i] = (send_place){stats_of(i), i + 1, 0};
        atomic_store(&stats_of(i)->incarnation, i + 1);
    }
    return l;
}

static uint64_t recount(const send_limits *l) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        bool open = atomic_load(&l->places[i].stats->incarnation) == l->places[i].incarnation;
        bytes += open ? atomic_load(&l->places[i].stats->size_bytes) : LIMIT / PARTITIONS;
    }
    return bytes;
}

static uint64_t sum_of_places(const send_limits *l) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->count; i++) bytes += l->places[i].bytes;
    return bytes;
}

static void judge(send_limits *l, uint32_t place, append_batch *b) {
    send_limits_judge(l, core_owned(k, NS_HERE)->p, place, b, 1, pass);
}

/* Taken; then it is in the figures, or its write has failed. */
static void send(send_limits *l, uint32_t place) {
    append_batch b = {.length = 1 + draw(LIMIT / 64), .count = 1};
    judge(l, place, &b);
    CHECK(b.status == 0 || b.status == STATUS_TOPIC_FULL);
    if (b.status == 0 && draw(4) > 0) atomic_fetch_add(&stats_of(place)->size_bytes, b.length);
}

static void send_large(send_limits *l, uint32_t place) {
    unsigned which = (unsigned)draw(LARGE_MAX);
    append_batch *b = &large[which].batch;
    if (b->length == 0) {
        *b = (append_batch){.length = 1 + draw(LIMIT / 16), .count = 1};
        large[which].place = place;
        if (send_limits_large_begins(l, core_owned(k, NS_HERE)->p, place, b) != 0) b->length = 0;
        return;
    }
    if (draw(3) > 0) atomic_fetch_add(&stats_of(large[which].place)->size_bytes, b->length);
    send_limits_large_ends(l, large[which].place, b);
    b->length = 0;
}

/* Another shard sends, its retention removes, it is killed or comes back. */
static void change_elsewhere(uint32_t place) {
    partition_stats *s = stats_of(place);
    if (draw(3) == 0) atomic_store(&s->incarnation, atomic_load(&s->incarnation) == 0 ? place + 1 : 0);
    else atomic_store(&s->size_bytes, draw(LIMIT / PARTITIONS * 2));
}

static void play(uint64_t seed) {
    random_state = seed;
    open_core(LEVEL_WRITTEN);
    send_limits *l = limits_of_many();
    append_batch none = {.length = 0};
    for (int stretch = 0; stretch < 30; stretch++) {
        for (uint64_t step = 0, steps = 1 + draw(200); step < steps; step++) {
            uint32_t place = (uint32_t)draw(PARTITIONS);
            pass += draw(2);
            switch (draw(4)) {
            case 0: change_elsewhere(place); break;
            case 1: send_large(l, place); break;
            default: send(l, place);
            }
        }
        CHECK_EQUAL(l->bytes, sum_of_places(l));
        for (unsigned i = 0; i < PASSES_OF_A_ROUND; i++, pass++) judge(l, 0, &none);
        pass++;
        judge(l, 0, &none);
        CHECK_EQUAL(l->bytes, recount(l));
    }
    for (unsigned i = 0; i < LARGE_MAX; i++) {
        if (large[i].batch.length > 0) send_limits_large_ends(l, large[i].place, &large[i].batch);
        large[i].batch.length = 0;
    }
    CHECK_EQUAL(l->large, 0);
    send_limits_release(l);
    close_core();
}

static void test_the_sum_is_what_a_recount_gives_after_any_sequence(void) {
    for (uint64_t seed = 1; seed <= 10; seed++) play(seed);
}

static void test_a_pass_looks_at_no_more_partitions_than_its_bound(void) {
    open_core(LEVEL_WRITTEN);
    send_limits *l = limits_of_many();
    append_batch none = {.length = 0};
    judge(l, 0, &none); /* the first one looks at all */
    for (uint64_t size = 1; size < 10; size++) {
        for (uint32_t i = 0; i < PARTITIONS; i++) atomic_store(&stats_of(i)->size_bytes, size);
        pass++;
        for (int sends = 0; sends < 3; sends++) judge(l, 7, &none); /* the same pass */
        uint32_t looked_at = 0;
        for (uint32_t i = 0; i < PARTITIONS; i++) looked_at += l->places[i].bytes == size;
        CHECK_EQUAL(looked_at, SEND_PLACES_LOOKED_AT);
    }
    send_limits_release(l);
    close_core();
}

int main(void) {
    RUN(test_the_sum_is_what_a_recount_gives_after_any_sequence);
    RUN(test_a_pass_looks_at_no_more_partitions_than_its_bound);
    return check_report();
}
