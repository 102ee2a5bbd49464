/* Which ids are known: those of the last messages that are not too old, whatever is sent, within the memory that all
 * windows have. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "log/id_window.h"

#define STEPS 60000u
#define AGE_US 5000u

static id_memory memory;

typedef struct listed {
    uint64_t id, time_us;
} listed;

static uint64_t random_state = 42;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void add(id_window *w, uint64_t number, uint64_t now_us) {
    uint64_t id[2] = {number, ~number};
    CHECK(id_window_reserve(w, 1));
    id_window_add(w, id, id_window_hash(w, id), now_us);
}

static bool has(const id_window *w, uint64_t number, uint64_t now_us) {
    uint64_t id[2] = {number, ~number};
    return id_window_has(w, id, id_window_hash(w, id), now_us);
}

/* The model: the list of all that was stored, looked through from its end. */
static bool listed_as_known(const listed *list, size_t count, uint64_t entries_max, uint64_t id, uint64_t now_us) {
    for (size_t back = 1; back <= count && back <= entries_max; back++) {
        const listed *l = &list[count - back];
        if (l->id == id) return now_us - l->time_us < AGE_US;
    }
    return false;
}

static void knows_what_a_list_knows(uint64_t entries_max) {
    listed *list = calloc(STEPS, sizeof *list);
    size_t count = 0;
    uint64_t now_us = 1000000, wrong = 0;
    id_window w;
    id_window_open(&w, &memory, entries_max, AGE_US);
    for (unsigned step = 0; step < STEPS; step++) {
        now_us += next_random() % 16;
        uint64_t id = next_random() % (entries_max * 2 + 3) + 1;
        bool known = listed_as_known(list, count, entries_max, id, now_us);
        wrong += known != has(&w, id, now_us);
        if (!known) {
            add(&w, id, now_us);
            list[count++] = (listed){id, now_us};
        }
        if (next_random() % 8 == 0) id_window_expire(&w, now_us, next_random() % 4);
    }
    CHECK_EQUAL(wrong, 0);
    id_window_free(&w);
    CHECK_EQUAL(memory.used_bytes, 0);
    free(list);
}

static void test_a_window_knows_what_a_list_of_all_messages_says(void) {
    const uint64_t sizes[] = {1, 2, 3, 63, 64, 65, 100, 1000, 2500};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned round = 0; round < 4; round++) knows_what_a_list_knows(sizes[i]);
}

static void test_what_is_taken_back_is_not_known_and_all_before_it_is(void) {
    id_window w;
    id_window_open(&w, &memory, 100, AGE_US);
    for (uint64_t i = 1; i <= 60; i++) add(&w, i, 10);
    id_window_take_back(&w, 20);
    for (uint64_t i = 1; i <= 60; i++) CHECK_EQUAL(has(&w, i, 10), i <= 40);
    for (uint64_t i = 41; i <= 150; i++) add(&w, i, 10);
    for (uint64_t i = 1; i <= 150; i++) CHECK_EQUAL(has(&w, i, 10), i > 50);
    id_window_take_back(&w, 1000);
    CHECK_EQUAL(w.count, 0);
    id_window_free(&w);
}

static void test_new_bounds_hold_at_once(void) {
    id_window w;
    id_window_open(&w, &memory, 100, AGE_US);
    for (uint64_t i = 1; i <= 100; i++) add(&w, i, i);
    CHECK(id_window_change(&w, 10, AGE_US));
    for (uint64_t i = 1; i <= 100; i++) CHECK_EQUAL(has(&w, i, 100), i > 90);
    CHECK(id_window_change(&w, 1000, 5));
    CHECK(!has(&w, 95, 100));
    CHECK(has(&w, 96, 100));
    id_window_free(&w);
}

static void test_the_memory_of_all_windows_has_a_bound_and_comes_back(void) {
    id_memory small = {.bytes_max = 8192};
    id_window first, second;
    id_window_open(&first, &small, 1000, AGE_US);
    id_window_open(&second, &small, 1000, AGE_US);
    uint64_t taken = 0;
    while (id_window_reserve(&first, 1)) {
        uint64_t id[2] = {++taken, 7};
        id_window_add(&first, id, id_window_hash(&first, id), 10);
    }
    CHECK(taken >= 64);
    CHECK(small.used_bytes <= small.bytes_max);
    uint64_t oldest[2] = {1, 7};
    CHECK(id_window_has(&first, oldest, id_window_hash(&first, oldest), 10)); /* a refusal loses nothing */
    id_window_expire(&first, 10 + AGE_US, 0);
    CHECK_EQUAL(small.used_bytes, 0);
    CHECK(id_window_reserve(&second, 64));
    id_window_free(&first);
    id_window_free(&second);
}

static void test_a_full_window_takes_at_most_forty_bytes_an_id(void) {
    const uint64_t sizes[] = {64, 1000, 10000, 65536, 100000, 1000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        id_window w;
        id_window_open(&w, &memory, sizes[i], AGE_US);
        for (uint64_t id = 1; id <= sizes[i] + 10; id++) add(&w, id, 10);
        CHECK_EQUAL(w.count, sizes[i]);
        CHECK(memory.used_bytes <= sizes[i] * 40);
        id_window_free(&w);
    }
}

/* Two thirds full, so that some entries are farther from where their hash begins than a slot can say. */
static void test_a_table_that_is_as_full_as_may_be_knows_the_newest_and_no_other(void) {
    const uint64_t size = (1u << 20) * 2ull / 3, all = size * 2;
    uint64_t far = 0, wrong = 0;
    id_window w;
    id_window_open(&w, &memory, size, AGE_US);
    for (uint64_t id = 1; id <= all; id++) {
        if (id % 8 == 0) id_window_prepare(&w, 8);
        add(&w, id, 10);
    }
    CHECK_EQUAL(w.mask + 1, 1u << 20);
    for (uint32_t slot = 0; slot <= w.mask; slot++) far += w.table[slot] != 0 && (w.table[slot] >> 21 & 63) == 63;
    CHECK(far > 0);
    for (uint64_t id = 1; id <= all; id++) wrong += has(&w, id, 10) != (id > all - size);
    id_window_take_back(&w, size / 2);
    for (uint64_t id = 1; id <= all; id++) wrong += has(&w, id, 10) != (id > all - size && id <= all - size / 2);
    CHECK_EQUAL(wrong, 0);
    id_window_free(&w);
}

int main(void) {
    CHECK_EQUAL(id_memory_open(&memory, 1u << 30), 0);
    RUN(test_a_window_knows_what_a_list_of_all_messages_says);
    RUN(test_what_is_taken_back_is_not_known_and_all_before_it_is);
    RUN(test_new_bounds_hold_at_once);
    RUN(test_the_memory_of_all_windows_has_a_bound_and_comes_back);
    RUN(test_a_full_window_takes_at_most_forty_bytes_an_id);
    RUN(test_a_table_that_is_as_full_as_may_be_knows_the_newest_and_no_other);
    return check_report();
}
