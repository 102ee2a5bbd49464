/* Which shard gets a connection that was accepted just now. The other shard is the test: its page, and the socket that
 * connections go to. */
#include "test_net_support.h"

#include "peer/peers.h"

#include <fcntl.h>

enum { OTHER = 1, FIRST = 1, FEW = 8 }; /* FEW: what a shard is given without a sign of life */

static peers p;
static links other;
static int way[2];
static memory_stream *standing;

static void open_all(void) {
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, way) != 0) abort();
    int send_fds[2] = {-1, way[0]};
    open_net(LEVEL_WRITTEN);
    standing = dial(&dialect_classic, false, true);
    if (peers_open(&p, k, &n, -1, send_fds) != 0) abort();
    int pools[2] = {descriptors[1], descriptors[1]}, bells[2] = {descriptors[2], descriptors[2]};
    if (links_open(&other, OTHER, 2, descriptors[0], pools, bells, POOL_BYTES) != 0) abort();
    peers_up(&p, OTHER, FIRST);
}

static void have(uint32_t ours, uint32_t theirs) {
    atomic_store(&links_page(&k->links, 0)->connections, ours);
    atomic_store(&links_page(&other, OTHER)->connections, theirs);
}

static void close_all(void) {
    have(1, 0); /* ours is open, and is counted when it goes */
    hang_up(standing);
    CHECK_EQUAL(n.conns.count, 0);
    links_close(&other);
    peers_close(&p);
    close_net();
    close(way[0]);
    close(way[1]);
}

static void pass(unsigned times) { atomic_fetch_add(&links_page(&other, OTHER)->beat, times); }

/* How many of those connections the other shard gets; what stays here is not counted yet. */
static unsigned deal(listener_kind kind, unsigned connections) {
    unsigned given = 0;
    for (unsigned i = 0; i < connections; i++) {
        int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (handover_deal(&p, kind, fd)) given++;
        else close(fd);
    }
    char data[16];
    for (unsigned i = 0; i < given; i++) CHECK_EQUAL(recv(way[1], data, sizeof data, 0), 2);
    CHECK(recv(way[1], data, sizeof data, 0) < 0);
    return given;
}

static void test_a_connection_goes_to_the_shard_that_has_fewer(void) {
    open_all();
    pass(2);
    have(3, 1);
    CHECK_EQUAL(deal(LISTENER_TCP, 5), 2);
    CHECK_EQUAL(deal(LISTENER_TCP, 5), 0);
    have(3, 3); /* those have arrived */
    CHECK_EQUAL(deal(LISTENER_TCP, 5), 0);
    have(2, 5);
    CHECK_EQUAL(deal(LISTENER_TCP, 5), 0);
    pass(2);
    have(6, 5);
    CHECK_EQUAL(deal(LISTENER_WEBSOCKET, 5), 1);
    close_all();
}

static void test_a_shard_that_shows_no_life_gets_few(void) {
    open_all();
    have(1000, 0);
    pass(2);
    CHECK_EQUAL(deal(LISTENER_TCP, 30), FEW);
    pass(1); /* the pass that it was in may have begun before they came */
    CHECK_EQUAL(deal(LISTENER_UNIX, 30), 0);
    pass(1);
    CHECK_EQUAL(deal(LISTENER_TCP, 30), FEW);
    close_all();
}

static void test_a_shard_that_is_down_gets_none(void) {
    open_all();
    have(1000, 0);
    peers_down(&p, OTHER);
    CHECK_EQUAL(deal(LISTENER_TCP, 5), 0);
    CHECK_EQUAL(deal(LISTENER_UNIX, 5), 0);
    close_all();
}

static void test_equal_shards_take_turns_at_the_socket_of_all(void) {
    open_all();
    unsigned given = 0;
    for (int i = 0; i < 10; i++) {
        have(1, 1);
        pass(2);
        given += deal(LISTENER_UNIX, 1);
    }
    CHECK_EQUAL(given, 5);
    CHECK_EQUAL(deal(LISTENER_TCP, 5), 0);
    close_all();
}

static void test_a_full_way_leaves_connections_here(void) {
    open_all();
    have(1000, 0);
    while (send(way[0], "", 1, 0) == 1) {
    }
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(!handover_deal(&p, LISTENER_TCP, fd));
    CHECK(fcntl(fd, F_GETFD) >= 0);
    close(fd);
    close_all();
}

int main(void) {
    RUN(test_a_connection_goes_to_the_shard_that_has_fewer);
    RUN(test_a_shard_that_shows_no_life_gets_few);
    RUN(test_a_shard_that_is_down_gets_none);
    RUN(test_equal_shards_take_turns_at_the_socket_of_all);
    RUN(test_a_full_way_leaves_connections_here);
    return check_report();
}
