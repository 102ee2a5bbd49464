/* Who may connect: limits over all shards, what the refused and the slow see, and that moving loses nobody. */
#include "test_engine_support.h"

static server s;

static uint64_t network_of(const links *l, const char *text) {
    struct sockaddr_storage address = {0};
    CHECK(admission_parse_host(text, &address));
    return admission_network(l, &address);
}

static void test_networks_are_hosts_of_ipv4_and_64_bits_of_ipv6(void) {
    links l = {.seed = 7};
    CHECK(network_of(&l, "10.0.0.1") != network_of(&l, "10.0.0.2"));
    CHECK(network_of(&l, "10.0.0.1") == network_of(&l, "::ffff:10.0.0.1"));
    CHECK(network_of(&l, "2001:db8:0:1::1") == network_of(&l, "2001:db8:0:1:ffff::2"));
    CHECK(network_of(&l, "2001:db8:0:1::1") != network_of(&l, "2001:db8:0:2::1"));
    links other = {.seed = 8}; /* nobody can choose addresses that share counters */
    CHECK(network_of(&l, "10.0.0.1") != network_of(&other, "10.0.0.1"));
}

static uint64_t network_of_user(const links *l, uint32_t uid, uint64_t socket) {
    struct sockaddr_storage address = {0};
    local_peer user = {.family = AF_UNIX, .uid = uid, .socket = socket};
    memcpy(&address, &user, sizeof user);
    return admission_network(l, &address);
}

static void test_a_user_of_this_host_is_one_address_whatever_socket_it_has(void) {
    links l = {.seed = 7};
    CHECK(network_of_user(&l, 1000, 1) == network_of_user(&l, 1000, 2));
    CHECK(network_of_user(&l, 1000, 1) != network_of_user(&l, 1001, 1));
    CHECK(network_of_user(&l, 0x0100000a, 1) != network_of(&l, "10.0.0.1"));
}

static void test_what_is_no_address_of_a_host_is_refused(void) {
    struct sockaddr_storage address = {0};
    const char *wrong[] = {"", "localhost", "1.2.3", "1.2.3.4.5", "256.1.1.1", "1.2.3.4:5", "[::1]", "::1%lo", "::g"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) CHECK(!admission_parse_host(wrong[i], &address));
}

static void open_links(links *l, uint32_t shard, int region) {
    int pools[SHARDS], bells[SHARDS] = {0};
    for (uint32_t i = 0; i < SHARDS; i++) {
        pools[i] = memfd_create("pool", 0);
        CHECK(ftruncate(pools[i], 4096) == 0);
    }
    CHECK_EQUAL(links_open(l, shard, SHARDS, region, pools, bells, 4096), 0);
    for (uint32_t i = 0; i < SHARDS; i++) close(pools[i]);
}

static void test_counts_hold_over_shards_and_die_with_a_worker(void) {
    int region = memfd_create("region", 0);
    CHECK_EQUAL(links_region_format(region, SHARDS), 0);
    links one, two;
    open_links(&one, 0, region);
    open_links(&two, 1, region);
    bool down[SHARDS] = {false, false};
    admission_limits limits = {.connections = 6, .per_address = 3, .before_login = 5};
    uint64_t home = network_of(&one, "10.0.0.1"), away = network_of(&one, "10.0.0.2");
    CHECK(home == network_of(&two, "10.0.0.1"));
    CHECK_EQUAL(admission_enter(&one, down, &limits, home), ADMITTED);
    CHECK_EQUAL(admission_enter(&two, down, &limits, home), ADMITTED);
    CHECK_EQUAL(admission_enter(&two, down, &limits, home), ADMITTED);
    CHECK_EQUAL(admission_enter(&one, down, &limits, home), REFUSED_ADDRESS);
    CHECK_EQUAL(admission_enter(&one, down, &limits, away), ADMITTED);
    CHECK_EQUAL(admission_enter(&one, down, &limits, away), ADMITTED);
    CHECK_EQUAL(admission_enter(&two, down, &limits, away), REFUSED_BEFORE_LOGIN);
    admission_anonymous(&one, -1); /* one logs in */
    CHECK_EQUAL(admission_enter(&two, down, &limits, away), ADMITTED);
    admission_anonymous(&one, -1);
    CHECK_EQUAL(admission_enter(&two, down, &limits, network_of(&one, "10.0.0.3")), REFUSED_TOTAL);
    limits.connections = limits.before_login = 100;
    admission_leave(&two, home, true);
    CHECK_EQUAL(admission_enter(&one, down, &limits, home), ADMITTED);
    down[1] = true; /* its connections are gone with it */
    CHECK_EQUAL(admission_enter(&one, down, &limits, home), ADMITTED);
    down[1] = false;
    CHECK_EQUAL(admission_enter(&one, down, &limits, home), REFUSED_ADDRESS);
    links_close(&two);
    open_links(&two, 1, region); /* its successor */
    CHECK_EQUAL(admission_enter(&two, down, &limits, home), REFUSED_ADDRESS);
    admission_leave(&one, home, true);
    CHECK_EQUAL(admission_enter(&two, down, &limits, home), ADMITTED);
    links_close(&one);
    links_close(&two);
    close(region);
}

static int dial_from(const char *host) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(s.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 60};
    inet_pton(AF_INET, host, &from.sin_addr);
    CHECK(bind(fd, (struct sockaddr *)&from, sizeof from) == 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static void close_all(int *fds, int count) {
    for (int i = 0; i < count; i++) close(fds[i]);
    usleep(400000);
}

static void test_an_address_gets_its_share_and_the_refused_are_told(void) {
    int fds[35], refused = 0;
    uint32_t length;
    for (int i = 0; i < 30; i++) {
        fds[i] = dial_from("127.0.0.1");
        int64_t status = call(fds[i], CODE_PING, NULL, 0, NULL, NULL);
        refused += status == STATUS_DISCONNECTED;
        if (status != 0) CHECK(next_status(fds[i], &length, NULL) == -1); /* and closed */
    }
    CHECK_EQUAL(refused, 10);
    for (int i = 30; i < 35; i++) {
        fds[i] = dial_from("127.0.0.2");
        CHECK_EQUAL(call(fds[i], CODE_PING, NULL, 0, NULL, NULL), 0);
    }
    close_all(fds, 35);
    int fd = dial_from("127.0.0.1");
    CHECK_EQUAL(call(fd, CODE_PING, NULL, 0, NULL, NULL), 0);
    close_all(&fd, 1);
}

static void test_logins_make_room_for_others_before_login(void) {
    int fds[26];
    for (int i = 0; i < 25; i++) {
        fds[i] = dial_from(i % 2 ? "127.0.0.1" : "127.0.0.2");
        CHECK_EQUAL(call(fds[i], CODE_PING, NULL, 0, NULL, NULL), 0);
    }
    fds[25] = dial_from("127.0.0.3");
    CHECK_EQUAL(call(fds[25], CODE_PING, NULL, 0, NULL, NULL), STATUS_DISCONNECTED);
    close(fds[25]);
    CHECK_EQUAL(call(fds[0], CODE_LOGIN_USER, "x", 1, NULL, NULL), 0);
    fds[25] = dial_from("127.0.0.3");
    CHECK_EQUAL(call(fds[25], CODE_PING, NULL, 0, NULL, NULL), 0);
    close_all(fds, 26);
}

/* All places are taken; then the connections go where their partitions live, and back. */
static void test_connections_that_move_with_every_place_taken_stay_open(void) {
    int fds[28];
    unsigned moved = s.moved_in;
    for (int i = 0; i < 28; i++) {
        fds[i] = dial_from(i % 2 ? "127.0.0.1" : "127.0.0.2");
        CHECK_EQUAL(call(fds[i], CODE_LOGIN_USER, "x", 1, NULL, NULL), 0);
    }
    int over = dial_from("127.0.0.3"); /* 28 is the limit */
    CHECK_EQUAL(call(over, CODE_PING, NULL, 0, NULL, NULL), STATUS_DISCONNECTED);
    close(over);
    for (uint32_t stream = 0; stream < 4; stream++) /* they live on both shards */
        for (int n = 0; n < 20; n++)
            for (int i = 0; i < 28; i++) CHECK_EQUAL(send_messages(fds[i], stream, 1, 10), 0);
    CHECK(s.moved_in > moved + 28);
    over = dial_from("127.0.0.3");
    CHECK_EQUAL(call(over, CODE_PING, NULL, 0, NULL, NULL), STATUS_DISCONNECTED);
    close(over);
    close_all(fds, 28);
}

static void test_who_does_not_log_in_is_told_and_closed(void) {
    uint32_t length;
    int silent = dial(&s), pinging = dial(&s), logged_in = login(&s);
    int64_t told = 0;
    for (int i = 0; i < 8 && told == 0; i++) { /* on a busy machine the time is over before the eighth */
        usleep(100000);
        told = call(pinging, CODE_PING, NULL, 0, NULL, NULL);
        CHECK_EQUAL(call(logged_in, CODE_PING, NULL, 0, NULL, NULL), 0);
    }
    if (told == 0) told = next_status(pinging, &length, NULL);
    CHECK_EQUAL(told, STATUS_UNAUTHENTICATED);
    CHECK_EQUAL(next_status(silent, &length, NULL), STATUS_UNAUTHENTICATED);
    CHECK(next_status(silent, &length, NULL) == -1);
    CHECK_EQUAL(call(logged_in, CODE_PING, NULL, 0, NULL, NULL), 0);
    CHECK_EQUAL(next_status(logged_in, &length, NULL), STATUS_STALE_CLIENT); /* silent for idle_timeout */
    CHECK(next_status(logged_in, &length, NULL) == -1);
    close(silent);
    close(pinging);
    close(logged_in);
}

static void test_a_request_without_an_answer_gets_a_status_in_time(void) {
    int fd = login(&s);
    uint32_t length;
    CHECK_EQUAL(call(fd, CODE_NEVER_ANSWERED, NULL, 0, NULL, NULL), STATUS_TASK_TIMEOUT);
    CHECK(next_status(fd, &length, NULL) == -1);
    close(fd);
    fd = dial(&s); /* a login has the time of a login */
    CHECK_EQUAL(call(fd, CODE_NEVER_ANSWERED, NULL, 0, NULL, NULL), STATUS_UNAUTHENTICATED);
    CHECK(next_status(fd, &length, NULL) == -1);
    close(fd);
}

/* One byte every 100 ms is progress, but the frame has to be whole within partial_frame_timeout all the same. */
static void test_a_dripped_frame_is_given_up(void) {
    int fd = login(&s);
    uint8_t frame[200] = {196, 0, 0, 0, CODE_PING};
    int sent = 0;
    while (sent < 100 && send(fd, frame + sent, 1, MSG_NOSIGNAL) == 1) {
        sent++;
        usleep(100000);
    }
    CHECK(sent >= 8 && sent < 60);
    close(fd);
}

/* The answers before a close are not lost when more has come than was read. */
static void test_answers_before_a_close_reach_a_client_that_still_sends(void) {
    static uint8_t pings[8 * 100], junk[1 << 20];
    for (int i = 0; i < 100; i++) memcpy(pings + 8 * i, "\4\0\0\0\1\0\0\0", 8);
    for (int round = 0; round < 20; round++) {
        int fd = login(&s);
        uint32_t words[2] = {FRAME_CONTROL_MAX + 5, 202}, length;
        CHECK(send(fd, pings, sizeof pings, MSG_NOSIGNAL) == (ssize_t)sizeof pings);
        CHECK(send(fd, words, 8, MSG_NOSIGNAL) == 8);
        CHECK(send(fd, junk, sizeof junk, MSG_NOSIGNAL) > 0);
        for (int i = 0; i < 100; i++) CHECK_EQUAL(next_status(fd, &length, NULL), 0);
        CHECK_EQUAL(next_status(fd, &length, NULL), STATUS_INVALID_COMMAND);
        CHECK(next_status(fd, &length, NULL) == -1);
        close(fd);
    }
}

static void run_on(io_engine which) {
    s.io_engine = which;
    s.bounds = (server_bounds){0};
    s.bounds.limits = (admission_limits){.connections = 28, .per_address = 20, .before_login = 25};
    start_server(&s);
    RUN(test_an_address_gets_its_share_and_the_refused_are_told);
    RUN(test_logins_make_room_for_others_before_login);
    RUN(test_connections_that_move_with_every_place_taken_stay_open);
    stop_server(&s);
    s.bounds = (server_bounds){.login_timeout_us = 1000000, .idle_timeout_us = 1500000, .request_timeout_us = 1000000};
    start_server(&s);
    RUN(test_who_does_not_log_in_is_told_and_closed);
    RUN(test_a_request_without_an_answer_gets_a_status_in_time);
    RUN(test_a_dripped_frame_is_given_up);
    RUN(test_answers_before_a_close_reach_a_client_that_still_sends);
    stop_server(&s);
}

int main(void) {
    RUN(test_networks_are_hosts_of_ipv4_and_64_bits_of_ipv6);
    RUN(test_a_user_of_this_host_is_one_address_whatever_socket_it_has);
    RUN(test_what_is_no_address_of_a_host_is_refused);
    RUN(test_counts_hold_over_shards_and_die_with_a_worker);
    for_each_engine(run_on);
    return check_report();
}
