/* What a topic takes of its producers, judged batch by batch. */
#include "test_core_support.h"

#include "core/send_limits.h"

#define SIZE 100u

static uint8_t records[4][3 * RECORD_BYTES(2 * SIZE)];

static append_batch batch_of(int number, uint32_t count, uint32_t size) {
    for (uint32_t i = 0; i < count; i++) put_record(records[number] + i * RECORD_BYTES(size), size, 'x');
    return (append_batch){
        .messages = records[number], .length = (uint64_t)count * RECORD_BYTES(size), .count = count, .status = 77};
}

static send_limits *limits_of(uint64_t message_bytes_max, uint64_t messages_max, uint64_t bytes_max) {
    send_limits values = {.message_bytes_max = message_bytes_max, .messages_max = messages_max, .bytes_max = bytes_max};
    send_limits *l = send_limits_new(&values, 2);
    l->places[0] = (send_place){&k->links.stats[0], 1, 0};
    l->places[1] = (send_place){&k->links.stats[1], 5, 0};
    return l;
}

static void other_partition_has(uint64_t bytes, uint64_t incarnation) {
    atomic_store(&k->links.stats[1].size_bytes, bytes);
    atomic_store(&k->links.stats[1].incarnation, incarnation);
}

static void test_what_does_not_fit_is_refused_and_what_does_is_taken(void) {
    open_core(LEVEL_WRITTEN);
    other_partition_has(1000, 5);
    send_limits *l = limits_of(0, 0, 1000 + 3 * RECORD_BYTES(SIZE));
    append_batch batches[] = {batch_of(0, 2, SIZE), batch_of(1, 2, SIZE), batch_of(2, 1, SIZE), batch_of(3, 1, SIZE)};
    send_limits_judge(l, core_owned(k, NS_HERE)->p, 0, batches, 4, 1);
    CHECK_EQUAL(batches[0].status, 0);
    CHECK_EQUAL(batches[1].status, STATUS_TOPIC_FULL);
    CHECK_EQUAL(batches[2].status, 0);
    CHECK_EQUAL(batches[3].status, STATUS_TOPIC_FULL);
    send_limits_release(l);
    close_core();
}

static void test_another_partition_of_the_topic_counts_what_came_before_it_in_the_pass(void) {
    open_core(LEVEL_WRITTEN);
    other_partition_has(0, 5);
    send_limits *l = limits_of(0, 0, 3 * RECORD_BYTES(SIZE));
    append_batch b = batch_of(0, 2, SIZE);
    send_limits_judge(l, core_owned(k, NS_HERE)->p, 0, &b, 1, 1);
    CHECK_EQUAL(b.status, 0);
    send_limits_judge(l, core_owned(k, NS_HERE)->p, 0, &b, 1, 1);
    CHECK_EQUAL(b.status, STATUS_TOPIC_FULL);
    send_limits_judge(l, core_owned(k, NS_HERE)->p, 0, &b, 1, 2); /* nothing was appended: there is room again */
    CHECK_EQUAL(b.status, 0);
    send_limits_release(l);
    close_core();
}

/* Nothing of it is in the figures before its last part. */
static void test_a_large_batch_counts_from_its_first_part_on(void) {
    open_core(LEVEL_WRITTEN);
    other_partition_has(0, 5);
    partition *p = core_owned(k, NS_HERE)->p;
    send_limits *l = limits_of(0, 0, 3 * RECORD_BYTES(SIZE));
    append_batch large = batch_of(0, 2, SIZE), two = batch_of(1, 2, SIZE), one = batch_of(2, 1, SIZE);
    CHECK_EQUAL(send_limits_large_begins(l, p, 0, &large), 0);
    CHECK_EQUAL(send_limits_large_begins(l, p, 0, &two), STATUS_TOPIC_FULL);
    for (uint64_t pass = 1; pass < 3; pass++) {
        send_limits_judge(l, p, 0, &two, 1, pass);
        CHECK_EQUAL(two.status, STATUS_TOPIC_FULL);
        send_limits_judge(l, p, 0, &one, 1, pass);
        CHECK_EQUAL(one.status, 0);
    }
    send_limits_large_ends(l, 0, &large);
    other_partition_has(2 * RECORD_BYTES(SIZE), 5); /* as it would be seen */
    CHECK_EQUAL(send_limits_large_begins(l, p, 0, &two), STATUS_TOPIC_FULL);
    other_partition_has(0, 5); /* purged: sends go on, whoever else sends or not */
    CHECK_EQUAL(send_limits_large_begins(l, p, 0, &two), 0);
    send_limits_release(l);
    close_core();
}

static void test_a_partition_that_is_not_open_counts_as_its_part(void) {
    open_core(LEVEL_WRITTEN);
    send_limits *l = limits_of(0, 0, 2 * RECORD_BYTES(SIZE));
    append_batch b = batch_of(0, 1, SIZE), two = batch_of(1, 2, SIZE);
    other_partition_has(0, 4); /* of another topic by now */
    send_limits_judge(l, core_owned(k, NS_HERE)->p, 0, &two, 1, 1);
    CHECK_EQUAL(two.status, STATUS_TOPIC_FULL);
    send_limits_judge(l, core_owned(k, NS_HERE)->p, 0, &b, 1, 2);
    CHECK_EQUAL(b.status, 0);
    other_partition_has(0, 5);
    send_limits_judge(l, core_owned(k, NS_HERE)->p, 0, &two, 1, 3);
    CHECK_EQUAL(two.status, 0);
    send_limits_release(l);
    close_core();
}

/* Of many partitions a pass looks at some: sooner or later at all of them, and the sum is theirs again. */
static void test_the_sum_of_many_partitions_is_right_after_a_round(void) {
    open_core(LEVEL_WRITTEN);
    const uint32_t many = 5 * SEND_PLACES_LOOKED_AT + 7;
    partition_stats *figures = calloc(many, sizeof *figures);
    send_limits values = {.bytes_max = UINT64_MAX / 2};
    send_limits *l = send_limits_new(&values, many);
    for (uint32_t i = 0; i < many; i++) {
        atomic_store(&figures[i].incarnation, 1);
        atomic_store(&figures[i].size_bytes, i);
        l->places[i] = (send_place){&figures[i], 1, 0};
    }
    partition *p = core_owned(k, NS_HERE)->p;
    append_batch b = batch_of(0, 1, SIZE);
    uint64_t pass = 1, sum = (uint64_t)many * (many - 1) / 2;
    send_limits_judge(l, p, 0, &b, 1, pass++); /* the first one looks at all */
    CHECK_EQUAL(l->bytes, sum + b.length);
    atomic_store(&figures[0].size_bytes, b.length); /* appended */
    atomic_store(&figures[many - 1].size_bytes, 0); /* purged */
    atomic_store(&figures[many / 2].size_bytes, 1u << 30);
    sum += (1u << 30) - many / 2 - (many - 1) + b.length;
    uint64_t taken = 0;
    for (int i = 0; i < 6; i++, taken += b.length) send_limits_judge(l, p, 0, &b, 1, pass++);
    atomic_store(&figures[0].size_bytes, b.length + taken);
    append_batch none = batch_of(1, 1, SIZE);
    l->bytes_max = 1; /* from now on nothing is taken */
    for (int i = 0; i < 6; i++) send_limits_judge(l, p, 0, &none, 1, pass++);
    CHECK_EQUAL(none.status, STATUS_TOPIC_FULL);
    CHECK_EQUAL(l->bytes, sum + taken);
    send_limits_release(l);
    free(figures);
    close_core();
}

static void test_messages_are_counted_and_measured(void) {
    open_core(LEVEL_WRITTEN);
    send_limits *l = limits_of(SIZE, 3, 0);
    append_batch batches[] = {batch_of(0, 2, SIZE), batch_of(1, 2, SIZE), batch_of(2, 2, SIZE), batch_of(3, 1, 0)};
    put_record(records[2] + batches[2].length, SIZE, 'x'); /* with a byte of user headers */
    memcpy(records[2] + batches[2].length + 48, &(uint32_t){1}, 4);
    batches[2].length += RECORD_BYTES(SIZE) + 1;
    batches[2].count++;
    send_limits_judge(l, core_owned(k, NS_HERE)->p, 0, batches, 4, 1);
    CHECK_EQUAL(batches[0].status, 0);
    CHECK_EQUAL(batches[1].status, STATUS_TOPIC_FULL);
    CHECK_EQUAL(batches[2].status, STATUS_TOO_BIG_MESSAGE_PAYLOAD);
    CHECK_EQUAL(batches[3].status, 0);
    send_limits_release(l);
    close_core();
}

int main(void) {
    RUN(test_what_does_not_fit_is_refused_and_what_does_is_taken);
    RUN(test_another_partition_of_the_topic_counts_what_came_before_it_in_the_pass);
    RUN(test_a_large_batch_counts_from_its_first_part_on);
    RUN(test_a_partition_that_is_not_open_counts_as_its_part);
    RUN(test_the_sum_of_many_partitions_is_right_after_a_round);
    RUN(test_messages_are_counted_and_measured);
    return check_report();
}
