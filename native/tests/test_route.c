/* The route table: what is found, what ends it, and that nothing else does. */
#include "core/route.h"

#include "check.h"
#include "namespace.h"

#include <stdio.h>

static route_table t;
static int dropped;

static void count_drop(route_partition *r) {
    (void)r;
    dropped++;
}

static void open_table(void) {
    CHECK(routes_open(&t, count_drop) == 0);
    dropped = 0;
}

static route_topic *topic_put(uint32_t stream, uint32_t topic, uint32_t partitions) {
    route_topic *made = routes_topic_put(&t, stream, namespace_of(stream, topic, 0), partitions);
    CHECK(made != NULL);
    return made;
}

static route *put(uint32_t user, uint32_t key, route_topic *topic) {
    route *r = routes_put(&t, user, (uint8_t *)&key, sizeof key, topic);
    CHECK(r != NULL);
    return r;
}

static route *find(uint32_t user, uint32_t key) { return routes_find(&t, user, (uint8_t *)&key, sizeof key); }

static void test_routes_are_found_by_user_and_bytes(void) {
    open_table();
    route_topic *topic = topic_put(1, 2, 3);
    for (uint32_t i = 0; i < 5000; i++) put(i % 3, i, topic)->can_send = i % 2;
    for (uint32_t i = 0; i < 5000; i++) {
        route *r = find(i % 3, i);
        CHECK(r != NULL && r->can_send == (i % 2) && r->topic == topic);
        CHECK(find(i % 3 + 1, i) == NULL); /* another user */
    }
    put(1, 4999, topic); /* replaced */
    CHECK(t.count == 5000 && dropped == 0);
    routes_close(&t);
    CHECK(dropped == 3);
}

static void test_all_routes_of_a_topic_share_its_partitions(void) {
    open_table();
    route_topic *topic = topic_put(1, 2, 3);
    CHECK(put(0, 1, topic)->topic->partitions == put(7, 2, topic)->topic->partitions);
    CHECK(routes_topic(&t, namespace_of(1, 2, 0)) == topic && routes_topic(&t, namespace_of(2, 1, 0)) == NULL);
    CHECK_EQUAL(topic->references, 3);
    routes_close(&t);
}

static void test_the_end_of_a_topic_ends_its_routes_and_no_others(void) {
    open_table();
    uint64_t version = topic_put(1, 2, 3)->version;
    put(0, 1, routes_topic(&t, namespace_of(1, 2, 0)));
    put(5, 2, routes_topic(&t, namespace_of(1, 2, 0)));
    put(0, 3, topic_put(1, 3, 3));
    put(0, 4, topic_put(2, 2, 3));
    routes_end_topic(&t, namespace_of(1, 2, 0));
    CHECK(dropped == 3); /* at once, though nobody has asked for its routes */
    CHECK(find(0, 1) == NULL && find(5, 2) == NULL && find(0, 3) != NULL && find(0, 4) != NULL);
    CHECK(routes_topic(&t, namespace_of(1, 2, 0)) == NULL);
    CHECK(topic_put(1, 2, 4)->version != version);
    CHECK(find(0, 1) == NULL); /* what was decided about an earlier one does not count for it */
    put(0, 1, routes_topic(&t, namespace_of(1, 2, 0)));
    CHECK_EQUAL(find(0, 1)->topic->partitions_count, 4);
    routes_close(&t);
}

static void test_new_partitions_of_a_topic_end_its_routes(void) {
    open_table();
    put(0, 1, topic_put(1, 2, 3));
    topic_put(1, 2, 3);
    CHECK(dropped == 3 && find(0, 1) == NULL && t.topics_count == 1);
    routes_close(&t);
}

static void test_the_end_of_a_stream_ends_its_topics_and_no_others(void) {
    open_table();
    for (uint32_t stream = 0; stream < 40; stream++)
        for (uint32_t topic = 0; topic < 40; topic++) put(0, stream * 100 + topic, topic_put(stream, topic, 1));
    CHECK(t.topics_capacity > 256);
    routes_end_stream(&t, 7);
    CHECK(dropped == 40 && t.topics_count == 39 * 40);
    for (uint32_t stream = 0; stream < 40; stream++)
        for (uint32_t topic = 0; topic < 40; topic++) CHECK((find(0, stream * 100 + topic) == NULL) == (stream == 7));
    routes_close(&t);
}

static void test_the_end_of_a_user_ends_his_routes_and_leaves_the_topics(void) {
    open_table();
    route_topic *topic = topic_put(1, 2, 3);
    put(4, 1, topic);
    put(5, 1, topic);
    routes_end_user(&t, 4);
    CHECK(find(4, 1) == NULL && find(5, 1) != NULL && dropped == 0);
    put(4, 1, topic);
    CHECK(find(4, 1) != NULL);
    routes_end_user(&t, 4 + ROUTE_USER_PLACES); /* shares the place */
    CHECK(find(4, 1) == NULL && find(5, 1) != NULL);
    routes_close(&t);
}

static void test_the_end_of_all_ends_everything(void) {
    open_table();
    put(0, 1, topic_put(1, 2, 3));
    put(0, 2, topic_put(2, 2, 3));
    routes_end_all(&t);
    CHECK(dropped == 6 && find(0, 1) == NULL && find(0, 2) == NULL && t.topics_count == 0 && t.count == 0);
    routes_close(&t);
}

static void test_routes_that_have_ended_make_room(void) {
    open_table();
    for (uint32_t round = 0; round < 1000; round++) {
        route_topic *topic = topic_put(1, 2, 1);
        for (uint32_t i = 0; i < 100; i++) put(0, round * 100 + i, topic);
        for (uint32_t i = 0; i < 100; i++) CHECK(find(0, round * 100 + i) != NULL);
    }
    CHECK(t.capacity <= 512 && t.topics_count == 1); /* 100 of 100,000 count */
    routes_close(&t);
}

static void test_a_full_route_table_is_emptied_and_knows_its_topics(void) {
    open_table();
    route_topic *topic = topic_put(1, 2, 3);
    for (uint32_t i = 0; i < ROUTES_MAX; i++) put(0, i, topic);
    CHECK_EQUAL(t.count, ROUTES_MAX);
    put(0, ROUTES_MAX, topic);
    CHECK(t.count == 1 && find(0, ROUTES_MAX) != NULL && find(0, 0) == NULL);
    CHECK(dropped == 0 && routes_topic(&t, namespace_of(1, 2, 0)) == topic);
    routes_close(&t);
}

int main(void) {
    RUN(test_routes_are_found_by_user_and_bytes);
    RUN(test_all_routes_of_a_topic_share_its_partitions);
    RUN(test_the_end_of_a_topic_ends_its_routes_and_no_others);
    RUN(test_new_partitions_of_a_topic_end_its_routes);
    RUN(test_the_end_of_a_stream_ends_its_topics_and_no_others);
    RUN(test_the_end_of_a_user_ends_his_routes_and_leaves_the_topics);
    RUN(test_the_end_of_all_ends_everything);
    RUN(test_routes_that_have_ended_make_room);
    RUN(test_a_full_route_table_is_emptied_and_knows_its_topics);
    return check_report();
}
