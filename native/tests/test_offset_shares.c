/* Shares of stored offsets: counts by user against a plain list, and which entries make room for others. */
#include "log/offset_shares.h"
#include "test_offsets_support.h"

#define MAX 200u
#define USERS 6u

typedef struct plain { /* of a consumer; owner 0: root's, or not stored */
    bool stored;
    uint64_t owner, used_us;
} plain;

static uint64_t now_us = 1;
static uint64_t wall_of_test(void *context) {
    (void)context;
    return now_us;
}
static int64_t monotonic_of_test(void *context) {
    (void)context;
    return (int64_t)now_us;
}

static uint32_t count_of(const plain *list, uint64_t owner) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < 2 * MAX; i++) count += list[i].stored && list[i].owner == owner;
    return count;
}

static uint32_t stored_of(const plain *list, const bool *gone, bool of_gone) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < 2 * MAX; i++) count += list[i].stored && gone[list[i].owner] == of_gone;
    return count;
}

static void forget_longest_unused(plain *list, const bool *gone) {
    plain *found = NULL;
    for (uint32_t i = 0; i < 2 * MAX; i++)
        if (list[i].stored && gone[list[i].owner] && (found == NULL || list[i].used_us < found->used_us))
            found = &list[i];
    CHECK(found != NULL);
    found->stored = false;
}

static void check_all(const partition *p, const plain *list) {
    for (uint32_t i = 0; i < 2 * MAX; i++) CHECK_EQUAL(get(p, OFFSET_CONSUMER, i) != MODEL_NONE, list[i].stored);
}

static void test_shares_hold_whatever_is_stored_deleted_and_opened_again(void) {
    static model m;
    static plain list[2 * MAX];
    partition_options options;
    expiry_clock clock = {.wall_us = wall_of_test, .monotonic_us = monotonic_of_test};
    known_users users = {0};
    bool gone[2 * USERS] = {false};
    uint32_t refused = 0, removed = 0;
    for (uint64_t user = 1; user < USERS; user++) CHECK_EQUAL(known_users_add(&users, user), 0);
    known_users_begin(&users);
    partition *p = open_with(&options, &m, 100);
    options.clock = &clock;
    options.users = &users;
    options.offsets_max = MAX;
    p = kill_and_open(p, &options);
    uint64_t random = 7;
    for (uint32_t step = 0; step < 20000; step++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t id = (uint32_t)(random >> 33) % (2 * MAX), what = (uint32_t)(random >> 20) % 1000;
        uint64_t owner = (random >> 50) % USERS;
        now_us += 10;
        if (what < 2) {
            p = kill_and_open(p, &options);
            check_all(p, list);
        } else if (what < 5 && owner != 0) { /* an account is deleted, and made later */
            if (gone[owner]) CHECK_EQUAL(known_users_add(&users, owner), 0);
            else known_users_end(&users, owner);
            gone[owner] = !gone[owner];
        } else if (what < 100) {
            CHECK_EQUAL(partition_offset_delete(p, OFFSET_CONSUMER, id), list[id].stored ? 0 : 3021);
            list[id].stored = false;
        } else if (!gone[owner]) {
            uint32_t counted = stored_of(list, gone, false), own = owner != 0 ? count_of(list, owner) : 0;
            bool fits = list[id].stored || (counted < MAX && own < MAX - counted);
            CHECK_EQUAL(partition_offset_place(p, OFFSET_CONSUMER, id, owner), fits ? 0 : 3023);
            CHECK_EQUAL(partition_offset_store_by(p, OFFSET_CONSUMER, id, 10, &(offset_user){.owner = owner}),
                        fits ? 0 : 3023);
            refused += !fits;
            if (!fits) continue;
            if (!list[id].stored && counted + stored_of(list, gone, true) == MAX) {
                forget_longest_unused(list, gone);
                removed++;
            }
            list[id] = (plain){.stored = true, .owner = owner, .used_us = now_us};
        }
    }
    check_all(p, list);
    CHECK_EQUAL(users.removed, removed);
    CHECK(refused > 100 && removed > 100);
    end(p, &m);
    known_users_free(&users);
}

static void test_without_a_list_of_users_each_of_them_is_there(void) {
    static model m;
    partition_options options;
    known_users users = {0};
    partition *p = open_with(&options, &m, 100);
    options.users = &users;
    options.offsets_max = 8;
    p = kill_and_open(p, &options);
    for (uint32_t id = 0; id < 4; id++)
        CHECK_EQUAL(partition_offset_store_by(p, OFFSET_CONSUMER, id, 10, &(offset_user){.owner = 3}), 0);
    CHECK_EQUAL(partition_offset_store_by(p, OFFSET_CONSUMER, 4, 10, &(offset_user){.owner = 3}), 3023);
    for (uint32_t id = 5; id < 9; id++) CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, id, 10), 0);
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 9, 10), 3023);
    known_users_begin(&users); /* the user is not among them */
    CHECK_EQUAL(partition_offset_store(p, OFFSET_CONSUMER, 9, 10), 0);
    CHECK_EQUAL(users.removed, 1);
    end(p, &m);
    known_users_free(&users);
}

int main(void) {
    test_root_make();
    RUN(test_shares_hold_whatever_is_stored_deleted_and_opened_again);
    RUN(test_without_a_list_of_users_each_of_them_is_there);
    test_root_remove();
    return check_report();
}
