/* Polls over segments of two layouts, plain ones and such whose records somebody has to bring first, through the jobs
 * of the core: what is answered, who waits, and what is left behind. */
#include "test_segment_polls.h"

#include "masked_layout.h"

static masked_layout masked;

static void check_one_window(void) { CHECK_EQUAL(masked.live_blocks, 0); } /* the slow hold one window and not two */

static void help(void) { masked_help(&masked); }

static partition *here(void) { return core_owned(k, NS_HERE)->p; }

/* Segments of about 2,300 messages, each three windows: masked, plain, masked, and a plain active one. */
static void open_mixed(void) {
    open_core(LEVEL_WRITTEN);
    core_partition_remove(k, NS_HERE);
    masked_open(&masked);
    at_each_window = check_one_window;
    at_each_turn = help;
    partition_options options = options_here();
    partition *p = filled_partition(&options);
    partition *mixed = masked_reopen(&masked, p, &options);
    partition_release(p);
    CHECK(mixed != NULL && partition_segment_count(mixed) == 4);
    CHECK_EQUAL(core_partition_add(k, mixed), 0);
}

static void close_mixed(void) {
    CHECK_EQUAL(k->output.bytes, 0);
    close_core();
    CHECK_EQUAL(masked.live_blocks, 0);
    masked_close(&masked);
}

static void test_polls_over_several_layouts_answer_as_over_one(void) {
    open_mixed();
    srandom(7);
    for (int i = 0; i < 200; i++) {
        uint64_t first = (uint64_t)random() % MESSAGES;
        uint32_t count = 1 + (uint32_t)random() % (i % 4 ? 50 : MESSAGES);
        uint64_t expected = first + count < MESSAGES ? count : MESSAGES - first;
        check_poll(request_of(POLL_OFFSET, first, count), first, expected);
        uint64_t batch = first / 100 * 100; /* a batch has one timestamp */
        check_poll(request_of(POLL_TIMESTAMP, 1000 + batch, 10), batch, 10);
        check_poll(request_of(POLL_LAST, 0, count), MESSAGES - (count < MESSAGES ? count : MESSAGES),
                   count < MESSAGES ? count : MESSAGES);
        if (i % 3 == 0) masked_forget(&masked);
    }
    check_poll(request_of(POLL_FIRST, 0, MESSAGES), 0, MESSAGES);
    CHECK(masked.waits > 100 && masked.handed_out > 100 && masked.forgotten == 0);
    close_mixed();
}

static void test_a_poll_that_waits_says_so_and_nothing_else_waits_with_it(void) {
    open_mixed();
    heard h, other;
    start(request_of(POLL_OFFSET, 5, 10), 5, &h);
    for (int i = 0; i < 5; i++) turn();
    CHECK_EQUAL(h.ends, 0);
    REQUIRE(h.work != NULL && h.work->waits_for == WAITS_FOR_RECORDS);
    start(request_of(POLL_OFFSET, MESSAGES - 5, 5), MESSAGES - 5, &other); /* of a plain segment */
    CHECK_EQUAL(other.ends, 1);
    CHECK_EQUAL(other.messages, 5);
    run(&h);
    CHECK_EQUAL(h.ends, 1);
    CHECK_EQUAL(h.messages, 10);
    CHECK(h.work == NULL);
    close_mixed();
}

static void test_a_cancelled_wait_is_forgotten_by_the_layout(void) {
    open_mixed();
    for (unsigned windows = 0; windows < 3; windows++) { /* before the first answer, and inside of one */
        heard h;
        masked_forget(&masked);
        start(request_of(POLL_OFFSET, 0, MESSAGES), 0, &h);
        run_until(&h, windows);
        masked_forget(&masked);
        if (windows > 0) pending_next(h.work);
        for (int i = 0; i < 100 && masked.fetches == NULL; i++) turn();
        CHECK_EQUAL(h.ends, 0);
        REQUIRE(masked.fetches != NULL && h.work != NULL);
        unsigned before = masked.forgotten;
        pending_cancel(h.work);
        CHECK(h.ends == 1 && h.dropped && h.work == NULL);
        CHECK_EQUAL(masked.forgotten, before + 1);
        CHECK(masked.fetches == NULL && masked.live_blocks == 0 && k->reads.jobs == NULL);
    }
    close_mixed();
}

static void test_who_waits_for_memory_with_a_block_gives_it_back(void) {
    open_mixed();
    heard h;
    check_poll(request_of(POLL_OFFSET, 0, 500), 0, 500); /* its records are here now */
    void *taken[1024];
    unsigned count = 0;
    for (size_t size = POOL_BYTES; size >= 4096; size /= 2)
        while (count < 1024 && (taken[count] = pool_alloc(k->pool, size)) != NULL) count++;
    start(request_of(POLL_OFFSET, 0, 5), 0, &h);
    CHECK_EQUAL(h.ends, 0);
    REQUIRE(h.work != NULL && h.work->waits_for == WAITS_FOR_MEMORY);
    CHECK_EQUAL(masked.live_blocks, 1);
    pending_cancel(h.work);
    CHECK(h.dropped);
    CHECK_EQUAL(masked.live_blocks, 0);
    while (count > 0) pool_free(k->pool, taken[--count]);
    close_mixed();
}

#define DAMAGED_BLOCK 20u
#define FIRST_DAMAGED (DAMAGED_BLOCK * MASKED_BLOCK / MESSAGE_BYTES)
#define BEHIND_DAMAGED ((DAMAGED_BLOCK + 1) * MASKED_BLOCK / MESSAGE_BYTES + 1)

/* A poll that meets the damage: the loop reports it and the poll waits. */
static void start_in_doubt(heard *h) {
    events_clear(&k->events);
    start(request_of(POLL_OFFSET, 0, 200), 0, h);
    for (int i = 0; i < 100 && k->events.count == 0; i++) {
        masked_help(&masked);
        turn();
    }
    CHECK_EQUAL(h->ends, 0);
    CHECK_EQUAL(k->events.count, 1);
    CHECK_EQUAL(k->events.list[0].kind, EVENT_DOUBT);
    CHECK_EQUAL(k->events.list[0].number, 0); /* the segment */
    CHECK_EQUAL(masked.live_blocks, 0);
}

static void test_damage_that_the_layout_finds_is_surveyed_as_any_other(void) {
    open_mixed();
    heard h;
    masked_flip(&masked, directory, DAMAGED_BLOCK);
    start_in_doubt(&h);
    CHECK(partition_withhold(here(), FIRST_DAMAGED, BEHIND_DAMAGED, false));
    reads_surveyed(core_owned(k, NS_HERE), 0);
    run(&h);
    CHECK_EQUAL(h.status, 0);
    CHECK_EQUAL(h.messages, FIRST_DAMAGED); /* it ends before */
    start(request_of(POLL_OFFSET, FIRST_DAMAGED, 5), FIRST_DAMAGED, &h);
    run(&h);
    CHECK_EQUAL(h.status, STATUS_INVALID_MESSAGE_CHECKSUM);
    check_poll(request_of(POLL_OFFSET, BEHIND_DAMAGED, 500), BEHIND_DAMAGED, 500);
    close_mixed();
}

static void test_damage_that_a_survey_does_not_find_is_told(void) {
    open_mixed();
    heard h;
    masked_flip(&masked, directory, DAMAGED_BLOCK);
    start_in_doubt(&h);
    reads_surveyed(core_owned(k, NS_HERE), 0);
    run(&h);
    CHECK_EQUAL(h.ends, 1);
    CHECK_EQUAL(h.status, STATUS_INVALID_MESSAGE_CHECKSUM);
    CHECK_EQUAL(h.messages, 0);
    close_mixed();
}

static void test_damage_behind_the_first_window_ends_the_connection(void) {
    open_mixed();
    heard h;
    masked_flip(&masked, directory, 290); /* behind the first 256 KiB */
    start(request_of(POLL_OFFSET, 0, MESSAGES), 0, &h);
    run(&h);
    CHECK_EQUAL(h.ends, 1);
    CHECK(h.gone && h.windows >= 1);
    CHECK_EQUAL(masked.live_blocks, 0);
    close_mixed();
}

static void test_a_fetch_that_cannot_begin_is_an_error_of_reading(void) {
    open_mixed();
    heard h;
    masked.refuse = true;
    start(request_of(POLL_OFFSET, 0, 10), 0, &h);
    CHECK_EQUAL(h.ends, 1);
    CHECK_EQUAL(h.status, STATUS_CANNOT_READ_FILE);
    masked.refuse = false;
    check_poll(request_of(POLL_OFFSET, 0, 10), 0, 10);
    close_mixed();
}

static void test_a_partition_that_goes_answers_whoever_waits_for_its_records(void) {
    open_mixed();
    heard first, second, inside;
    start(request_of(POLL_OFFSET, 0, MESSAGES), 0, &inside);
    run_until(&inside, 1);
    masked_forget(&masked);
    pending_next(inside.work);
    for (int i = 0; i < 100 && masked.fetches == NULL; i++) turn();
    start(request_of(POLL_OFFSET, 0, 10), 0, &first);
    start(request_of(POLL_OFFSET, 50, 10), 50, &second);
    core_partition_remove(k, NS_HERE);
    CHECK_EQUAL(first.ends, 1);
    CHECK_EQUAL(first.status, STATUS_PARTITION_NOT_FOUND);
    CHECK_EQUAL(second.status, STATUS_PARTITION_NOT_FOUND);
    for (int i = 0; i < 100 && inside.ends == 0; i++) turn(); /* a large one has its turn */
    CHECK(inside.ends == 1 && inside.gone);
    CHECK(masked.fetches == NULL && k->reads.jobs == NULL);
    close_mixed();
}

static void test_the_end_of_the_process_leaves_nothing_behind(void) {
    open_mixed();
    heard waiting, between;
    start(request_of(POLL_OFFSET, 0, MESSAGES), 0, &between);
    run_until(&between, 1);
    masked_forget(&masked);
    start(request_of(POLL_OFFSET, 50, 10), 50, &waiting);
    CHECK(masked.fetches != NULL);
    close_core();
    CHECK_EQUAL(waiting.ends, 0); /* nobody hears anything */
    masked_close(&masked);
}

static void test_the_offset_is_stored_behind_a_wait(void) {
    open_mixed();
    partition_request what = request_of(POLL_OFFSET, 100, 50);
    what.auto_commit = true;
    uint64_t stored = 0;
    heard h;
    start(what, 100, &h);
    CHECK(!partition_offset_get(here(), OFFSET_CONSUMER, 1, &stored));
    run(&h);
    CHECK_EQUAL(h.messages, 50);
    CHECK(partition_offset_get(here(), OFFSET_CONSUMER, 1, &stored));
    CHECK_EQUAL(stored, 149);
    what = request_of(POLL_NEXT, 0, 10);
    masked_forget(&masked);
    check_poll(what, 150, 10);
    close_mixed();
}

static void test_retention_moves_the_files_of_a_layout_and_waits_for_its_readers(void) {
    open_mixed();
    char trash[128], path[160];
    uint32_t deleted;
    bool busy;
    heard h;
    snprintf(trash, sizeof trash, "%s-trash", directory);
    start(request_of(POLL_OFFSET, 0, MESSAGES), 0, &h);
    run_until(&h, 1);
    CHECK_EQUAL(partition_delete_segments(here(), 1, trash, &deleted, &busy), 0);
    CHECK(busy && deleted == 0);
    run(&h);
    CHECK_EQUAL(h.messages, MESSAGES);
    CHECK_EQUAL(partition_delete_segments(here(), 1, trash, &deleted, &busy), 0);
    CHECK(!busy && deleted == 1);
    snprintf(path, sizeof path, "%s-%020u.masked", trash, 0);
    CHECK_EQUAL(unlink(path), 0);
    snprintf(path, sizeof path, "rm -f '%s'-*", trash);
    CHECK_EQUAL(system(path), 0);
    close_mixed();
}

static void test_the_segment_that_grows_is_plain(void) {
    open_mixed();
    partition_options options = options_here();
    segment_info infos[MASKED_SEGMENTS];
    uint32_t count = partition_segment_count(here());
    for (uint32_t i = 0; i < count; i++) CHECK(partition_segment(here(), i, &infos[i]));
    infos[count - 1].layout = &masked.calls;
    options.stats = NULL;
    errno = 0;
    CHECK(partition_open(&options, infos, count) == NULL);
    CHECK_EQUAL(errno, EINVAL);
    close_mixed();
}

int main(void) {
    RUN(test_polls_over_several_layouts_answer_as_over_one);
    RUN(test_a_poll_that_waits_says_so_and_nothing_else_waits_with_it);
    RUN(test_a_cancelled_wait_is_forgotten_by_the_layout);
    RUN(test_who_waits_for_memory_with_a_block_gives_it_back);
    RUN(test_damage_that_the_layout_finds_is_surveyed_as_any_other);
    RUN(test_damage_that_a_survey_does_not_find_is_told);
    RUN(test_damage_behind_the_first_window_ends_the_connection);
    RUN(test_a_fetch_that_cannot_begin_is_an_error_of_reading);
    RUN(test_a_partition_that_goes_answers_whoever_waits_for_its_records);
    RUN(test_the_end_of_the_process_leaves_nothing_behind);
    RUN(test_the_offset_is_stored_behind_a_wait);
    RUN(test_retention_moves_the_files_of_a_layout_and_waits_for_its_readers);
    RUN(test_the_segment_that_grows_is_plain);
    return check_report();
}
