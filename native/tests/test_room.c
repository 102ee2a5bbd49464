/* Room on the disk: budgets between two looks, refusals, large batches. The threshold itself on a real small disk:
 * tests/crash/test_disk_full.py. */
#include "log/room.h"

#include "check.h"

static void test_without_a_directory_there_is_always_room(void) {
    room r;
    REQUIRE(room_open(&r, NULL, 1, 1) == 0);
    CHECK(room_take(&r, UINT64_MAX));
    CHECK(!room_look(&r));
    room_close(&r);
    REQUIRE(room_open(&r, ".", 0, 1) == 0);
    CHECK(room_take(&r, UINT64_MAX));
    room_close(&r);
    CHECK(room_open(&r, "./no such directory", 1, 1) < 0);
}

static void test_shards_share_half_of_what_is_left(void) {
    room r;
    REQUIRE(room_open(&r, ".", 4096, 4) == 0);
    REQUIRE(!r.refused && r.low_bytes == 4096);
    CHECK_EQUAL(r.budget, (r.free_bytes - 4096) / 2 / 4);
    uint64_t budget = r.budget;
    CHECK(room_take(&r, 1000));
    CHECK_EQUAL(r.budget, budget - 1000);
    r.budget = 10; /* spent: it is looked at again */
    CHECK(room_take(&r, 1000));
    CHECK(r.budget > 1000);
    room_close(&r);
}

static void test_a_batch_larger_than_the_disk_is_refused_alone(void) {
    room r;
    REQUIRE(room_open(&r, ".", 4096, 1) == 0);
    CHECK(!room_take(&r, r.free_bytes * 2));
    CHECK(!r.refused);
    CHECK(room_take(&r, 1000));
    CHECK(room_take(&r, r.free_bytes / 4 * 3)); /* more than the budget, less than what is there */
    room_close(&r);
}

static void test_what_is_taken_ahead_leaves_half_of_the_budget(void) {
    room r;
    REQUIRE(room_open(&r, NULL, 1, 1) == 0);
    CHECK(room_take_ahead(&r, UINT64_MAX));
    REQUIRE(room_open(&r, ".", 4096, 1) == 0);
    r.budget = 1000;
    CHECK(!room_take_ahead(&r, 501));
    CHECK(room_take_ahead(&r, 500));
    CHECK_EQUAL(r.budget, 500);
    r.refused = true;
    CHECK(!room_take_ahead(&r, 1));
    CHECK_EQUAL(r.budget, 500);
    room_close(&r);
}

static void test_refused_until_a_look_finds_room(void) {
    room r;
    REQUIRE(room_open(&r, ".", 4096, 1) == 0);
    r.refused = true;
    CHECK(!room_take(&r, 1));
    CHECK(room_look(&r));
    CHECK(room_take(&r, 1));
    CHECK(!room_look(&r));
    room_close(&r);
}

/* A directory of a file system with a fixed number of inodes; true: there is one. */
static bool on_fixed_inodes(room *r) {
    static const char *const places[] = {".", "/dev/shm", "/"};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (room_open(r, places[i], 4096, 1) == 0 && r->low_inodes > 0 && !r->refused) return true;
        room_close(r);
    }
    return false;
}

static void test_inodes_are_watched_like_bytes(void) {
    room r;
    if (!on_fixed_inodes(&r)) {
        printf("no file system here has a fixed number of inodes\n");
        return;
    }
    CHECK(r.low_inodes <= ROOM_INODES && r.free_inodes >= r.low_inodes);
    CHECK(!room_is_short(r.low_inodes, r.low_inodes, false));
    CHECK(room_is_short(r.low_inodes - 1, r.low_inodes, false));
    CHECK(room_is_short(r.low_inodes, r.low_inodes, true)); /* until half as many more are free */
    CHECK(!room_is_short(r.low_inodes + r.low_inodes / 2, r.low_inodes, true));
    CHECK(!room_is_short(0, 0, true)); /* no fixed number */
    room_close(&r);
}

int main(void) {
    RUN(test_without_a_directory_there_is_always_room);
    RUN(test_shards_share_half_of_what_is_left);
    RUN(test_a_batch_larger_than_the_disk_is_refused_alone);
    RUN(test_what_is_taken_ahead_leaves_half_of_the_budget);
    RUN(test_refused_until_a_look_finds_room);
    RUN(test_inodes_are_watched_like_bytes);
    return check_report();
}
