/* Times ahead of the believed clock: they age from the moment when their segment is sealed, that is known after a
 * start, and a segment of them does not grow for ever. */
#include "stepped_clock.h"
#include "test_partition_support.h"

#include "log/expiry_clock.h"
#include "log/recover.h"

#define SECOND UINT64_C(1000000)
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)
#define YEAR (365 * DAY)
#define EXPIRY (10 * SECOND)

static expiry_clock test_clock; /* believes every wall clock */
static partition_limits limits;
static char trash[160];

static partition_options options_with(partition_limits l) {
    partition_options options = options_of(1 << 20);
    wall_now = 1000 * SECOND;
    monotonic_now = 5000000;
    test_clock = (expiry_clock){.wall_us = wall, .monotonic_us = monotonic};
    limits = l;
    options.clock = &test_clock;
    options.limits = &limits;
    snprintf(trash, sizeof(trash), "%s/trash-%s", test_root, strrchr(options.directory, '/') + 1);
    return options;
}

/* Steps of the retention over such a time. */
static partition_cleaned clean_by(partition *p, uint64_t us, uint64_t step_us) {
    partition_cleaned done;
    for (uint64_t passed = 0; passed <= us; passed += step_us) {
        CHECK_EQUAL(partition_clean(p, monotonic_now, trash, &done), 0);
        sync_all(p);
        pass(step_us);
    }
    return done;
}

/* The same, two in a second. */
static partition_cleaned clean_for(partition *p, uint64_t us) { return clean_by(p, us, SECOND / 2); }

/* As a start finds it after a kill. */
static partition *restarted(partition *p, partition_options *options) {
    recovered_partition found;
    sync_all(p);
    partition_release(p);
    CHECK(recover_partition(options->directory, 1, no_boot, &found));
    options->log_start = found.log_start;
    p = partition_open(options, found.segments, found.segments_count);
    recover_free(&found);
    return p;
}

/* A message of now, one of next year, and the clock is right again. */
static partition *opened_with_next_year(partition_options *options, model *m) {
    model_init(m, 1 << 20);
    partition *p = partition_open(options, NULL, 0);
    append(p, m, 1, 100, wall_now);
    wall_now += YEAR;
    append(p, m, 1, 100, wall_now);
    clean_for(p, 2 * SECOND); /* when something expires is known by that clock */
    wall_now -= YEAR;
    return p;
}

static void test_later_messages_expire_by_their_own_age_also_after_a_start(void) {
    for (unsigned restarts = 0; restarts < 2; restarts++) {
        partition_options options = options_with((partition_limits){.expiry_us = EXPIRY});
        static model m;
        partition *p = opened_with_next_year(&options, &m);
        CHECK(clean_for(p, SECOND).ahead);
        CHECK(inside_segments(p)->count >= 2); /* what is astray is sealed */
        CHECK(partition_messages(p) > 0);
        if (restarts) p = restarted(p, &options);
        clean_for(p, EXPIRY);
        CHECK_EQUAL(partition_messages(p), 0);
        for (unsigned i = 0; i < 3; i++) {
            append(p, &m, 1, 100, wall_now);
            if (restarts) p = restarted(p, &options);
            clean_for(p, EXPIRY / 2);
            if (restarts) p = restarted(p, &options);
            CHECK_EQUAL(partition_messages(p), 1); /* it is younger */
            clean_for(p, 2 * EXPIRY);
            CHECK_EQUAL(partition_messages(p), 0); /* its segment was sealed at its age, at most */
        }
        CHECK(clean_for(p, 0).ahead);
        end(p, &m);
    }
}

static void test_a_segment_rolls_at_its_own_age(void) {
    partition_options options = options_with((partition_limits){.segment_age_us = EXPIRY});
    static model m;
    partition *p = opened_with_next_year(&options, &m);
    clean_for(p, SECOND);
    append(p, &m, 1, 100, wall_now);
    uint32_t before = inside_segments(p)->count;
    clean_for(p, EXPIRY / 2);
    p = restarted(p, &options);
    CHECK_EQUAL(inside_segments(p)->count, before);
    clean_for(p, EXPIRY / 2 + SECOND);
    CHECK_EQUAL(inside_segments(p)->count, before + 1);
    CHECK_EQUAL(partition_messages(p), 3);
    end(p, &m);
}

static void test_a_size_takes_first_what_was_sealed_first(void) {
    partition_options options = options_with((partition_limits){.segment_age_us = EXPIRY});
    static model m;
    partition *p = opened_with_next_year(&options, &m);
    uint64_t right_again = wall_now;
    clean_for(p, 2 * SECOND);
    partition_oldest oldest;
    CHECK(partition_oldest_segment(p, &oldest));
    CHECK_EQUAL(oldest.first_timestamp, 1000 * SECOND); /* it was stored while the clock was right */
    CHECK(partition_drop_oldest(p) > 0);
    clean_for(p, 0); /* which writes it down */
    p = restarted(p, &options);
    CHECK(partition_oldest_segment(p, &oldest) || oldest.waits);
    CHECK(oldest.first_timestamp >= right_again && oldest.first_timestamp <= wall_now);
    end(p, &m);
}

static void test_a_stored_offset_holds_no_longer_than_from_the_sealing_on(void) {
    partition_options options = options_with((partition_limits){.expiry_us = EXPIRY, .held_us = EXPIRY});
    static model m;
    partition *p = opened_with_next_year(&options, &m);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 1, 0), 0);
    CHECK(clean_for(p, EXPIRY + SECOND).held);
    CHECK_EQUAL(partition_messages(p), 1);
    clean_for(p, EXPIRY + SECOND);
    CHECK_EQUAL(partition_messages(p), 0);
    end(p, &m);
}

static void test_times_that_are_right_are_counted_by_nothing_else(void) {
    partition_options options = options_with((partition_limits){.expiry_us = EXPIRY});
    static model m;
    model_init(&m, 1 << 20);
    partition *p = partition_open(&options, NULL, 0);
    append(p, &m, 1, 100, wall_now);
    CHECK(!clean_for(p, EXPIRY).ahead);
    for (uint32_t i = 0; i < inside_segments(p)->count; i++) CHECK_EQUAL(inside_segments(p)->items[i].counted_us, 0);
    recovered_partition found;
    sync_all(p);
    CHECK(recover_partition(options.directory, 1, no_boot, &found));
    for (size_t i = 0; i < found.segments_count; i++) CHECK_EQUAL(found.segments[i].counted_us, 0);
    recover_free(&found);
    end(p, &m);
}

/* As the first start that sees them writes it down. */
static void count_sealed(partition *p) {
    uint64_t now = expiry_clock_now(&test_clock);
    for (uint32_t i = 0; i + 1 < inside_segments(p)->count; i++) {
        segment *s = &inside_segments(p)->items[i];
        if (s->counted_us == 0 && partition_is_ahead(p, s->last_timestamp, now)) s->counted_us = now;
    }
}

/* Six segments; then the clock is wrong for three hours, and right again. */
static partition *behind_a_wrong_clock(partition_options *options, model *m, uint64_t back_us, uint64_t ahead_us) {
    test_clock.own.jump_max_us = HOUR;
    wall_now = 4 * YEAR;
    model_init(m, 1 << 20);
    partition *p = partition_open(options, NULL, 0);
    for (unsigned i = 0; i < 6; i++) {
        append(p, m, 1, 100, expiry_clock_stamp(&test_clock));
        clean_by(p, HOUR, 600 * SECOND);
    }
    wall_now += ahead_us - back_us;
    clean_by(p, 2 * HOUR, 60 * SECOND);
    count_sealed(p);
    clean_by(p, HOUR, 60 * SECOND);
    wall_now -= ahead_us - back_us;
    clean_by(p, 2 * HOUR, 60 * SECOND);
    return p;
}

static void test_a_clock_that_fell_and_is_right_again_expires_nothing(void) {
    partition_options options = options_with((partition_limits){.expiry_us = 30 * DAY, .segment_age_us = HOUR});
    static model m;
    partition *p = behind_a_wrong_clock(&options, &m, YEAR, 0);
    CHECK(inside_segments(p)->count > 3);
    CHECK_EQUAL(partition_messages(p), 6);
    end(p, &m);
}

static void test_a_clock_that_rose_and_is_right_again_ends_no_expiry(void) {
    partition_options options = options_with((partition_limits){.expiry_us = DAY, .segment_age_us = HOUR});
    static model m;
    partition *p = behind_a_wrong_clock(&options, &m, 0, YEAR);
    append(p, &m, 1, 100, expiry_clock_stamp(&test_clock));
    uint64_t now = expiry_clock_now(&test_clock);
    CHECK_EQUAL(expiry_clock_reaches(&test_clock, now, DAY), now + DAY);
    CHECK_EQUAL(expiry_clock_first_younger(&test_clock, now + 2 * DAY, DAY), now + DAY + 1);
    clean_by(p, 3 * DAY, 600 * SECOND);
    CHECK_EQUAL(partition_messages(p), 0);
    end(p, &m);
}

int main(void) {
    test_root_make();
    RUN(test_later_messages_expire_by_their_own_age_also_after_a_start);
    RUN(test_a_segment_rolls_at_its_own_age);
    RUN(test_a_size_takes_first_what_was_sealed_first);
    RUN(test_a_stored_offset_holds_no_longer_than_from_the_sealing_on);
    RUN(test_times_that_are_right_are_counted_by_nothing_else);
    RUN(test_a_clock_that_fell_and_is_right_again_expires_nothing);
    RUN(test_a_clock_that_rose_and_is_right_again_ends_no_expiry);
    test_root_remove();
    return check_report();
}
