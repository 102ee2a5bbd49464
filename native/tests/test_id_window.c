/* Which ids are known: those of the last messages that are not too old, whatever is sent, within the memory that all
 * windows have. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "log/id_window.h"

#define STEPS 60000u
#define AGE_US 5000u
#define NUMBER_MASK ((1u << 22) - 1)

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
    CHECK(id_window_add(w, id, id_window_hash(w, id), now_us, false));
}

static bool has(const id_window *w, uint64_t number, uint64_t now_us) {
    uint64_t id[2] = {number, ~number};
    return id_window_has(w, id, id_window_hash(w, id), now_us);
}

/* The model: the list of all that was stored, looked through from its end. What is below `left` has left. */
static bool listed_as_known(const listed *list, size_t count, size_t left, uint64_t id, uint64_t now_us) {
    for (; count > left; count--)
        if (list[count - 1].id == id) return now_us - list[count - 1].time_us < AGE_US;
    return false;
}

/* Numbers go on from `number`, in a table that was in use before. */
static void begin_at(id_window *w, uint32_t number) {
    CHECK(id_window_reserve(w, w->entries_max));
    w->first_number = number;
    for (uint32_t i = 0; i <= w->mask; i++)
        for (uint32_t word = 0; word < ID_BUCKET_WORDS; word++) w->table[i].words[word] = (number - 1) & NUMBER_MASK;
}

static void knows_what_a_list_knows(uint64_t entries_max, bool wraps, bool takes_back) {
    listed *list = calloc(STEPS, sizeof *list);
    size_t count = 0, left = 0;
    uint64_t now_us = 1000000, wrong = 0;
    id_window w;
    id_window_open(&w, &memory, entries_max, AGE_US);
    if (wraps) begin_at(&w, NUMBER_MASK - STEPS / 4);
    for (unsigned step = 0; step < STEPS; step++) {
        now_us += next_random() % 16;
        uint64_t number = next_random() % (entries_max * 2 + 3) + 1, id[2] = {number, ~number};
        bool known = listed_as_known(list, count, left, number, now_us);
        wrong += known != has(&w, number, now_us);
        CHECK(id_window_reserve(&w, 1));
        wrong += known == id_window_add(&w, id, id_window_hash(&w, id), now_us, false);
        if (!known) list[count++] = (listed){number, now_us};
        if (count > left + entries_max) left = count - entries_max;
        if (next_random() % 8 == 0) id_window_expire(&w, now_us, next_random() % 4);
        if (!takes_back || next_random() % 16 != 0) continue;
        uint64_t back = next_random() % 20;
        if (back > w.count) back = w.count;
        id_window_take_back(&w, back);
        count -= back;
    }
    CHECK_EQUAL(wrong, 0);
    id_window_free(&w);
    CHECK_EQUAL(memory.used_bytes, 0);
    free(list);
}

static void test_a_window_knows_what_a_list_of_all_messages_says(void) {
    const uint64_t sizes[] = {1, 2, 3, 42, 63, 64, 65, 100, 1000, 2500};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned round = 0; round < 4; round++) knows_what_a_list_knows(sizes[i], round % 2 != 0, round > 1);
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
        CHECK(id_window_add(&first, id, id_window_hash(&first, id), 10, false));
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

/* Two thirds of the words are used, so that buckets are full and entries stand farther on. */
static void test_a_table_that_is_as_full_as_may_be_knows_the_newest_and_no_other(void) {
    const uint64_t size = (1u << 20) * 2ull / 3, all = size * 2;
    uint64_t full = 0, wrong = 0;
    id_window w;
    id_window_open(&w, &memory, size, AGE_US);
    for (uint64_t id = 1; id <= all; id++) {
        if (id % 8 == 0) id_window_prepare(&w, 8);
        add(&w, id, 10);
    }
    CHECK_EQUAL((w.mask + 1) * ID_BUCKET_WORDS, 1u << 20);
    for (uint32_t i = 0; i <= w.mask; i++) full += ((w.table[i].words[0] - w.first_number) & NUMBER_MASK) < w.count;
    CHECK(full > 0);
    for (uint64_t id = 1; id <= all; id++) wrong += has(&w, id, 10) != (id > all - size);
    id_window_take_back(&w, size / 2);
    for (uint64_t id = 1; id <= all; id++) wrong += has(&w, id, 10) != (id > all - size && id <= all - size / 2);
    CHECK_EQUAL(wrong, 0);
    id_window_free(&w);
}

/* A log may have the same id a million times, from before the setting. */
static void test_an_id_that_enters_again_and_again_has_one_slot(void) {
    const uint64_t same[2] = {7, 7};
    uint32_t slots = 0;
    id_window w;
    id_window_open(&w, &memory, 1000, AGE_US);
    for (uint64_t i = 1; i <= 3000; i++) {
        add(&w, 100 + i, 10);
        CHECK(id_window_reserve(&w, 1));
        CHECK(id_window_add(&w, same, id_window_hash(&w, same), 10, true));
    }
    CHECK(!id_window_add(&w, same, id_window_hash(&w, same), 10, false));
    for (uint64_t i = 1; i <= 3000; i++) CHECK_EQUAL(has(&w, 100 + i, 10), i > 2500);
    for (uint32_t i = 0; i <= w.mask; i++)
        for (uint32_t word = 1; word < ID_BUCKET_WORDS; word++)
            slots += ((w.table[i].words[word] - w.first_number) & NUMBER_MASK) < w.count;
    CHECK_EQUAL(slots, 501);
    id_window_take_back(&w, 1000);
    CHECK_EQUAL(w.count, 0);
    CHECK(!id_window_has(&w, same, id_window_hash(&w, same), 10));
    id_window_free(&w);
}

/* Of a slot in which nobody entered for very long. */
static void test_no_number_comes_again_while_a_slot_still_has_it(void) {
    id_window w;
    id_window_open(&w, &memory, 1000, AGE_US);
    for (uint64_t id = 1; id <= 2000; id++) add(&w, id, 10);
    uint32_t round = (w.mask + 1) * 8, old = (w.first_number - (1u << 21)) & NUMBER_MASK;
    for (uint32_t i = 0; i <= w.mask; i++)
        for (uint32_t word = 1; word < ID_BUCKET_WORDS; word++)
            if (((w.table[i].words[word] - w.first_number) & NUMBER_MASK) >= w.count)
                w.table[i].words[word] = (w.table[i].words[word] & ~NUMBER_MASK) | old;
    for (uint64_t id = 2001; id <= 2000 + round; id++) add(&w, id, 10);
    for (uint32_t i = 0; i <= w.mask; i++)
        for (uint32_t word = 1; word < ID_BUCKET_WORDS; word++)
            CHECK(((w.first_number + w.count - w.table[i].words[word]) & NUMBER_MASK) <= w.count + round + 1);
    for (uint64_t id = 1; id <= 2000 + round; id++) CHECK_EQUAL(has(&w, id, 10), id > 1000 + round);
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
    RUN(test_an_id_that_enters_again_and_again_has_one_slot);
    RUN(test_no_number_comes_again_while_a_slot_still_has_it);
    return check_report();
}
