/* Two engines of one server in two threads, driven over real sockets: frames in pieces, pipelines, sends and polls on
 * both shards, forwarding, moving sockets, limits and dead peers. The test plays Python: every login succeeds, every
 * topic 0 exists. */
#include "base/bytes.h"
#include "test_engine_support.h"

static server s;

static void test_frames_in_pieces_and_pipelines_are_answered_one_for_one(void) {
    int fd = dial(&s);
    uint32_t length;
    uint8_t ping[8] = {4, 0, 0, 0, 1, 0, 0, 0}, many[8 * 3000];
    for (int i = 0; i < 8; i++) {
        CHECK(send(fd, ping + i, 1, 0) == 1);
        usleep(1000);
    }
    CHECK_EQUAL(next_status(fd, &length, NULL), 0);
    for (size_t i = 0; i < sizeof many; i++) many[i] = ping[i % 8];
    CHECK(send(fd, many, sizeof many, 0) == sizeof many);
    for (int i = 0; i < 3000; i++) CHECK_EQUAL(next_status(fd, &length, NULL), 0);
    uint8_t tiny[8] = {3, 0, 0, 0, 1, 0, 0, 0};
    CHECK(send(fd, tiny, 8, 0) == 8);
    CHECK_EQUAL(next_status(fd, &length, NULL), 3);
    CHECK_EQUAL(call(fd, 202, "xxxx", 4, NULL, NULL), 40);
    close(fd);
}

static void test_sends_and_polls_reach_both_shards_and_sockets_move(void) {
    unsigned before = s.moved_in;
    uint32_t sent = 0; /* to each stream */
    do { /* 8 connections, one after the other, may all come in on the right shard: by a hash of their ports */
        sent += 120;
        for (uint32_t stream = 0; stream < 8; stream++) {
            int fd = login(&s);
            for (int i = 0; i < 40; i++) CHECK_EQUAL(send_messages(fd, stream, 3, 50), 0);
            CHECK_EQUAL(poll_messages(fd, stream, 0, 1000, NULL), sent);
            CHECK_EQUAL(poll_messages(fd, stream, sent - 1, 1000, NULL), 1);
            close(fd);
        }
    } while (s.moved_in == before && sent < 960);
    CHECK(s.moved_in > before);
}

static void test_large_batches_and_answers_of_many_windows_arrive_whole(void) {
    for (uint32_t stream = 8; stream < 12; stream++) { /* few requests: the ones of the other shard stay forwarded */
        int fd = login(&s);
        uint32_t length;
        CHECK_EQUAL(send_messages(fd, stream, 3000, 1000), 0);
        CHECK_EQUAL(poll_messages(fd, stream, 0, 3000, &length), 3000);
        CHECK_EQUAL(length, 16 + 3000 * 1064);
        CHECK_EQUAL(send_messages(fd, stream, 1, 5000000), 0);
        CHECK_EQUAL(poll_messages(fd, stream, 3000, 10, &length), 1);
        CHECK_EQUAL(length, 16 + 5000064);
        close(fd);
    }
}

/* Streams 12 to 15 live on both shards. The offset of group 7 moves, that of consumer 7 does not. */
static void test_group_polls_commit_as_the_group_and_are_reported(void) {
    for (uint32_t stream = 12; stream < 16; stream++) {
        int fd = login(&s);
        CHECK_EQUAL(send_messages(fd, stream, 5, 50), 0);
        CHECK_EQUAL(send_messages(fd, stream, 3000, 1000), 0);
        unsigned polls = s.group_polls, messages = s.group_messages;
        CHECK_EQUAL(poll_as(fd, CONSUMER_GROUP, 5, stream, 0, 2, NULL), 2);
        CHECK_EQUAL(poll_as(fd, CONSUMER_GROUP, 5, stream, 0, 2500, NULL), 2500); /* many windows */
        CHECK_EQUAL(poll_as(fd, CONSUMER_GROUP, 5, stream, 0, 1000, NULL), 503);
        CHECK_EQUAL(poll_as(fd, CONSUMER_GROUP, 5, stream, 0, 1000, NULL), 0);
        CHECK_EQUAL(poll_as(fd, CONSUMER_PLAIN, 5, stream, 0, 1, NULL), 1);
        CHECK_EQUAL(call(fd, CODE_PING, NULL, 0, NULL, NULL), 0);
        for (int i = 0; i < 500 && s.group_polls < polls + 4; i++) usleep(10000);
        CHECK_EQUAL(s.group_polls - polls, 4);
        CHECK_EQUAL(s.group_messages - messages, 3005);
        close(fd);
    }
}

/* On both shards; the later member has the newer generation. */
static void test_lent_memberships_poll_natively_until_a_newer_one_has_polled(void) {
    for (uint32_t stream = 12; stream < 16; stream++) {
        s.assignment = 5;
        int old = login(&s), new = login(&s);
        CHECK_EQUAL(send_messages(old, stream, 3000, 1000), 0);
        unsigned polls = s.group_polls, lent = s.lent;
        CHECK_EQUAL(poll_as(old, CONSUMER_GROUP, 5, stream, 0, 10, NULL), 10);
        CHECK_EQUAL(poll_as(old, CONSUMER_GROUP, 5, stream, 0, 2000, NULL), 2000); /* many windows */
        CHECK_EQUAL(s.lent - lent, 1);
        s.assignment = 6;
        CHECK_EQUAL(poll_as(new, CONSUMER_GROUP, 5, stream, 0, 1, NULL), 1);
        CHECK_EQUAL(poll_as(old, CONSUMER_GROUP, 5, stream, 0, 10, NULL), 0);
        CHECK_EQUAL(poll_as(old, CONSUMER_GROUP, 1, stream, 0, 2000, NULL), 0);
        CHECK_EQUAL(poll_as(new, CONSUMER_GROUP, 5, stream, 0, 100, NULL), 100);
        CHECK_EQUAL(call(old, CODE_PING, NULL, 0, NULL, NULL), 0);
        CHECK_EQUAL(s.lent - lent, 2);
        CHECK_EQUAL(s.group_polls, polls);
        close(old);
        close(new);
    }
    s.assignment = 0;
}

static void test_bad_batches_and_missing_topics_leave_the_connection_in_step(void) {
    int fd = login(&s);
    uint32_t total;
    uint8_t *payload = send_payload(0, 2, 10, &total);
    payload[4 + 22 + 4] ^= 1; /* first index position */
    CHECK_EQUAL(call(fd, CODE_SEND_MESSAGES, payload, total, NULL, NULL), 4033);
    CHECK_EQUAL(call(fd, CODE_SEND_MESSAGES, payload, 3, NULL, NULL), 3);
    free(payload);
    CHECK_EQUAL(send_messages(fd, 99, 1, 10), 1009);
    CHECK_EQUAL(call(fd, CODE_PING, "12345", 5, NULL, NULL), 0);
    close(fd);
}

static void test_oversized_frames_are_refused_and_anonymous_ones_drained(void) {
    int fd = dial(&s);
    static uint8_t large[1 << 20];
    CHECK_EQUAL(call(fd, CODE_PING, large, sizeof large, NULL, NULL), 0);
    CHECK_EQUAL(call(fd, 202, large, FRAME_SMALL_MAX, NULL, NULL), 40);
    CHECK_EQUAL(call(fd, 202, large, sizeof large, NULL, NULL), 3); /* taken in, dropped, and the connection goes on */
    CHECK_EQUAL(call(fd, CODE_SEND_MESSAGES, large, sizeof large, NULL, NULL), 40);
    uint32_t words[2] = {FRAME_CONTROL_MAX + 5, 202}, length;
    CHECK(send(fd, words, 8, 0) == 8);
    CHECK_EQUAL(next_status(fd, &length, NULL), 3);
    CHECK(next_status(fd, &length, NULL) == -1);
    close(fd);
    fd = login(&s);
    uint32_t batch[2] = {POOL_BYTES / 4 + 5, CODE_SEND_MESSAGES}; /* more than this small pool could ever hold */
    CHECK(send(fd, batch, 8, 0) == 8);
    CHECK_EQUAL(next_status(fd, &length, NULL), 3);
    CHECK(next_status(fd, &length, NULL) == -1);
    close(fd);
}

/* Asks for 3,000 messages (3 MB) and reads nothing for longer than slow_reader_timeout. */
static void test_readers_that_do_not_read_are_closed_after_the_timeout(void) {
    int fd = login(&s);
    int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    uint8_t payload[64] = {1, 1, 4, 7, 0, 0, 0};
    uint32_t words[2] = {42, CODE_POLL_MESSAGES}, count = 3000;
    put_address(payload + 7, 8);
    memcpy(payload + 19, "\1\0\0\0\0\1", 6);
    memcpy(payload + 33, &count, 4);
    for (int i = 0; i < 8; i++) { /* more than the sockets between us can hold */
        CHECK(send(fd, words, 8, MSG_NOSIGNAL) == 8 && send(fd, payload, 38, MSG_NOSIGNAL) == 38);
    }
    unsigned before = s.closed;
    for (int i = 0; i < 100 && s.closed == before; i++) usleep(100000);
    CHECK(s.closed == before + 1);
    close(fd);
}

static int ask_for(uint32_t count) {
    int fd = login(&s);
    int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    uint8_t payload[64] = {1, 1, 4, 7, 0, 0, 0};
    uint32_t words[2] = {42, CODE_POLL_MESSAGES};
    put_address(payload + 7, 8);
    memcpy(payload + 19, "\1\0\0\0\0\1", 6);
    memcpy(payload + 33, &count, 4);
    CHECK(send(fd, words, 8, MSG_NOSIGNAL) == 8 && send(fd, payload, 38, MSG_NOSIGNAL) == 38);
    return fd;
}

/* The kernel has all of the answer at once. */
static void test_readers_whose_answer_the_kernel_has_are_closed_after_the_timeout(void) {
    int fd = ask_for(300);
    unsigned before = s.closed;
    for (int i = 0; i < 100 && s.closed == before; i++) usleep(100000);
    CHECK(s.closed == before + 1);
    close(fd);
}

static void test_clients_that_end_their_half_and_do_not_read_are_closed_after_the_timeout(void) {
    int fd = ask_for(300);
    unsigned before = s.closed;
    shutdown(fd, SHUT_WR);
    usleep(500000);
    CHECK(s.closed == before); /* it has a place as long as the kernel has its answer */
    for (int i = 0; i < 100 && s.closed == before; i++) usleep(100000);
    CHECK(s.closed == before + 1);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 1); /* what had come before */
    close(fd);
}

/* The kernel makes room for more half of a MiB at a time, which takes longer than the timeout here. */
static void test_readers_that_go_on_taking_their_answer_are_not_closed(void) {
    int fd = ask_for(1500);
    static uint8_t some[65536];
    size_t size = 0, want = 8;
    while (size < want) {
        ssize_t got = recv(fd, some, sizeof some, MSG_WAITALL);
        CHECK(got > 0);
        if (got <= 0) break;
        if (size == 0) want = 8 + load_u32(some + 4);
        if (want - size - (size_t)got < sizeof some) shutdown(fd, SHUT_WR); /* the rest comes all the same */
        size += (size_t)got;
        usleep(250000);
    }
    CHECK(size == want && want > 1500000);
    close(fd);
}

static void test_half_frames_are_closed_after_the_timeout(void) {
    int fd = login(&s);
    uint32_t words[2] = {10u << 20, CODE_SEND_MESSAGES}, length;
    CHECK(send(fd, words, 8, 0) == 8);
    CHECK(next_status(fd, &length, NULL) == -1);
    close(fd);
}

static void test_a_reader_that_goes_away_in_the_middle_costs_nothing(void) {
    for (int i = 0; i < 20; i++) {
        int fd = login(&s);
        uint8_t payload[64] = {1, 1, 4, 7, 0, 0, 0};
        uint32_t words[2] = {42, CODE_POLL_MESSAGES}, count = 3000;
        put_address(payload + 7, 8 + (uint32_t)i % 4);
        memcpy(payload + 19, "\1\0\0\0\0\1", 6);
        memcpy(payload + 33, &count, 4);
        CHECK(send(fd, words, 8, 0) == 8 && send(fd, payload, 38, 0) == 38);
        if (i % 2) usleep(2000);
        close(fd);
    }
    int fd = login(&s);
    CHECK_EQUAL(poll_messages(fd, 8, 0, 3000, NULL), 3000);
    close(fd);
}

static void test_more_connections_than_allowed_are_refused_and_the_rest_works(void) {
    static int fds[700];
    usleep(300000); /* those of the tests before are gone */
    for (int i = 0; i < 700; i++) fds[i] = dial(&s);
    int answered = 0;
    for (int i = 0; i < 700; i++) answered += call(fds[i], CODE_PING, NULL, 0, NULL, NULL) == 0;
    CHECK_EQUAL(answered, 600);
    for (int i = 0; i < 700; i++) close(fds[i]);
    usleep(300000);
    int fd = login(&s);
    CHECK_EQUAL(call(fd, CODE_PING, NULL, 0, NULL, NULL), 0);
    close(fd);
}

static void run_on(io_engine which) {
    s.io_engine = which;
    start_server(&s);
    RUN(test_frames_in_pieces_and_pipelines_are_answered_one_for_one);
    RUN(test_sends_and_polls_reach_both_shards_and_sockets_move);
    RUN(test_large_batches_and_answers_of_many_windows_arrive_whole);
    RUN(test_group_polls_commit_as_the_group_and_are_reported);
    RUN(test_lent_memberships_poll_natively_until_a_newer_one_has_polled);
    RUN(test_bad_batches_and_missing_topics_leave_the_connection_in_step);
    RUN(test_oversized_frames_are_refused_and_anonymous_ones_drained);
    RUN(test_readers_that_do_not_read_are_closed_after_the_timeout);
    RUN(test_readers_whose_answer_the_kernel_has_are_closed_after_the_timeout);
    RUN(test_clients_that_end_their_half_and_do_not_read_are_closed_after_the_timeout);
    RUN(test_readers_that_go_on_taking_their_answer_are_not_closed);
    RUN(test_half_frames_are_closed_after_the_timeout);
    RUN(test_a_reader_that_goes_away_in_the_middle_costs_nothing);
    RUN(test_more_connections_than_allowed_are_refused_and_the_rest_works);
    stop_server(&s);
}

int main(void) {
    for_each_engine(run_on);
    return check_report();
}
