/* Connections of trusted proxies begin with a header: what it says is the address that counts, in every worker. */
#include "test_engine_support.h"

#include "proxy_headers.h"

#define PER_ADDRESS 20
#define PROXY_HOST "127.0.0.2"

static server s;

static int dial_from(const char *host) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(s.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 60};
    inet_pton(AF_INET, host, &from.sin_addr);
    if (bind(fd, (struct sockaddr *)&from, sizeof from) != 0) abort();
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) abort();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static void put_all(int fd, const void *data, size_t length) {
    if (send(fd, data, length, MSG_NOSIGNAL) != (ssize_t)length) abort();
}

static void tell(int fd, uint8_t command, uint8_t kind, const char *source, size_t rest) {
    uint8_t bytes[PROXY_HEADER_BYTES_MAX + 64];
    put_all(fd, bytes, put_header(bytes, command, kind, source, 40000, rest));
}

static int dial_for(const char *client) {
    int fd = dial_from(PROXY_HOST);
    tell(fd, PROXY, strchr(client, ':') != NULL ? TCP6 : TCP4, client, 0);
    return fd;
}

static int64_t ping(int fd) { return call(fd, CODE_PING, NULL, 0, NULL, NULL); }

static bool is_closed(int fd) {
    uint8_t byte;
    return recv(fd, &byte, 1, 0) <= 0;
}

/* Until the server knows that they are gone: the address has all its places again. */
static void close_all(int *fds, int count) {
    for (int i = 0; i < count; i++) close(fds[i]);
}

/* How many of `count` connections for the client are served; those are left open in `fds`. */
static int served(const char *client, int *fds, int count) {
    int good = 0;
    for (int i = 0; i < count; i++) {
        fds[good] = dial_for(client);
        int64_t status = ping(fds[good]);
        if (status == 0) good++;
        else close(fds[good]);
        CHECK(status == 0 || status == STATUS_DISCONNECTED);
    }
    return good;
}

static void await_places(const char *client) {
    int fds[PER_ADDRESS];
    for (int i = 0; i < 600; i++) { /* a minute */
        int good = served(client, fds, PER_ADDRESS);
        close_all(fds, good);
        if (good == PER_ADDRESS) return;
        usleep(100000);
    }
    CHECK(!"all places come back");
}

static void test_a_header_is_followed_by_what_the_client_says(void) {
    const size_t rests[] = {0, 3, 500, 996};
    for (size_t i = 0; i < 4; i++) {
        int fd = dial_from(PROXY_HOST);
        tell(fd, PROXY, TCP4, "192.0.2.1", rests[i]);
        CHECK_EQUAL(ping(fd), 0);
        close(fd);
    }
    uint8_t bytes[PROXY_HEADER_BYTES_MAX + 64];
    size_t length = put_header(bytes, PROXY, TCP6, "2001:db8::1", 1, 30);
    memcpy(bytes + length, "\4\0\0\0\1\0\0\0\4\0\0\0\1\0\0\0", 16); /* two pings in the same segment */
    int fd = dial_from(PROXY_HOST);
    uint32_t ignored;
    put_all(fd, bytes, length + 16);
    CHECK_EQUAL(next_status(fd, &ignored, NULL), 0);
    CHECK_EQUAL(next_status(fd, &ignored, NULL), 0);
    close(fd);
    fd = dial_from(PROXY_HOST); /* in pieces of one byte */
    for (size_t at = 0; at < length + 8; at++) put_all(fd, bytes + at, 1);
    CHECK_EQUAL(next_status(fd, &ignored, NULL), 0);
    close(fd);
}

static void test_clients_behind_one_proxy_have_their_own_places(void) {
    int one[PER_ADDRESS + 5], two[PER_ADDRESS + 5], same[5];
    CHECK_EQUAL(served("192.0.2.1", one, PER_ADDRESS + 5), PER_ADDRESS);
    CHECK_EQUAL(served("2001:db8:0:1::1", two, PER_ADDRESS), PER_ADDRESS);
    CHECK_EQUAL(served("2001:db8:0:1::2", same, 5), 0); /* of one network */
    CHECK_EQUAL(served("192.0.2.1", same, 5), 0);
    CHECK_EQUAL(served("::ffff:192.0.2.1", same, 5), 0); /* the same address in another form */
    int other = dial_for("192.0.2.2");
    CHECK_EQUAL(ping(other), 0);
    close(other);
    close_all(one, PER_ADDRESS);
    close_all(two, PER_ADDRESS);
    await_places("192.0.2.1");
    await_places("2001:db8:0:1::1");
}

static void test_a_connection_that_moved_counts_for_its_client_still(void) {
    int fds[PER_ADDRESS], more[5];
    unsigned moved = s.moved_in;
    CHECK_EQUAL(served("192.0.2.1", fds, PER_ADDRESS), PER_ADDRESS);
    for (int i = 0; i < PER_ADDRESS; i++) CHECK_EQUAL(call(fds[i], CODE_LOGIN_USER, "x", 1, NULL, NULL), 0);
    for (uint32_t stream = 0; stream < 4; stream++) /* they live on both shards */
        for (int n = 0; n < 20; n++)
            for (int i = 0; i < PER_ADDRESS; i++) CHECK_EQUAL(send_messages(fds[i], stream, 1, 10), 0);
    CHECK(s.moved_in > moved + PER_ADDRESS / 2);
    CHECK_EQUAL(served("192.0.2.1", more, 5), 0);
    close_all(fds, PER_ADDRESS);
    await_places("192.0.2.1");
}

static void test_a_proxy_that_speaks_for_itself_has_its_own_address(void) {
    int fds[PER_ADDRESS];
    const uint8_t kinds[][2] = {{LOCAL, NOTHING}, {LOCAL, TCP4}, {PROXY, NOTHING}, {PROXY, UNIX_STREAM}};
    for (int i = 0; i < PER_ADDRESS; i++) {
        fds[i] = dial_from(PROXY_HOST);
        tell(fds[i], kinds[i % 4][0], kinds[i % 4][1], "192.0.2.1", 0);
        CHECK_EQUAL(ping(fds[i]), 0);
    }
    int more = dial_from(PROXY_HOST);
    tell(more, LOCAL, NOTHING, "", 0);
    CHECK_EQUAL(ping(more), STATUS_DISCONNECTED);
    close(more);
    more = dial_for("192.0.2.1");
    CHECK_EQUAL(ping(more), 0);
    close(more);
    close_all(fds, PER_ADDRESS);
}

static void test_a_proxy_without_a_good_header_is_closed_without_an_answer(void) {
    uint8_t bytes[PROXY_HEADER_BYTES_MAX + 64];
    int fd = dial_from(PROXY_HOST);
    put_all(fd, "\4\0\0\0\1\0\0\0", 8);
    CHECK(is_closed(fd));
    close(fd);
    fd = dial_from(PROXY_HOST);
    put_all(fd, "PROXY TCP4 192.0.2.1 127.0.0.1 1 2\r\n", 36);
    CHECK(is_closed(fd));
    close(fd);
    fd = dial_from(PROXY_HOST);
    tell(fd, PROXY, UDP4, "192.0.2.1", 0);
    CHECK(is_closed(fd));
    close(fd);
    fd = dial_from(PROXY_HOST);
    put_all(fd, bytes, put_header(bytes, PROXY, TCP4, "192.0.2.1", 1, 997));
    CHECK(is_closed(fd));
    close(fd);
}

static void test_others_speak_for_themselves_only(void) {
    int fd = dial_from("127.0.0.3");
    uint32_t ignored;
    CHECK_EQUAL(ping(fd), 0);
    close(fd);
    fd = dial_from("127.0.0.3");
    tell(fd, PROXY, TCP4, "192.0.2.1", 0);
    CHECK_EQUAL(next_status(fd, &ignored, NULL), STATUS_INVALID_COMMAND); /* no frame is so long */
    CHECK(is_closed(fd));
    close(fd);
}

static void test_a_header_that_does_not_come_is_given_up(void) {
    uint8_t bytes[PROXY_HEADER_BYTES_MAX + 64];
    size_t length = put_header(bytes, PROXY, TCP4, "192.0.2.1", 1, 900), sent = 0;
    int silent = dial_from(PROXY_HOST), dripping = dial_from(PROXY_HOST), half = dial_from(PROXY_HOST);
    put_all(half, bytes, 40);
    CHECK(is_closed(silent));
    CHECK(is_closed(half));
    for (; sent < length && send(dripping, bytes + sent, 1, MSG_NOSIGNAL) == 1; sent++) usleep(100000);
    CHECK(sent < length / 2);
    close(silent);
    close(half);
    close(dripping);
}

static void test_silent_proxies_leave_a_place_for_one_that_speaks(void) {
    static int fds[2 * INTRODUCTIONS_MAX + 200];
    const int count = (int)(sizeof fds / sizeof fds[0]);
    for (int i = 0; i < count; i++) {
        fds[i] = dial_from(PROXY_HOST);
        if (i % 100 != 0) continue;
        int speaking = dial_for("192.0.2.1");
        CHECK_EQUAL(ping(speaking), 0);
        close(speaking);
    }
    close_all(fds, count);
    await_places("192.0.2.1");
}

static void run_on(io_engine which) {
    s.io_engine = which;
    s.bounds = (server_bounds){.tcp_proxies = PROXY_HOST "/32\n"};
    s.bounds.limits = (admission_limits){.connections = 100, .per_address = PER_ADDRESS, .before_login = 90};
    start_server(&s);
    RUN(test_a_header_is_followed_by_what_the_client_says);
    await_places("192.0.2.1");
    RUN(test_clients_behind_one_proxy_have_their_own_places);
    RUN(test_a_connection_that_moved_counts_for_its_client_still);
    RUN(test_a_proxy_that_speaks_for_itself_has_its_own_address);
    RUN(test_a_proxy_without_a_good_header_is_closed_without_an_answer);
    RUN(test_others_speak_for_themselves_only);
    RUN(test_a_header_that_does_not_come_is_given_up);
    RUN(test_silent_proxies_leave_a_place_for_one_that_speaks);
    int waiting = dial_from(PROXY_HOST); /* it is let go with the server (ASan) */
    usleep(50000);
    stop_server(&s);
    close(waiting);
}

int main(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for_each_engine(run_on);
    return check_report();
}
