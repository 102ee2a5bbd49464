/* Shares of what all connections use: receive buffers, private input memory, turns. Many connections of one address
 * wait with unread bytes, never read, or send half a frame; others go on meanwhile. */
#include "test_engine_support.h"

#include <fcntl.h>

#define CROWD 700u   /* more than both shards have receive buffers */
#define OUTSIDERS 5u /* user of the crowd: another owner than user 0 */
#define LARGE 100000u

static server s;
static int fds[CROWD];

/* Pushes what the server takes; bytes taken. */
static size_t push(int fd, const uint8_t *data, size_t length) {
    size_t sent = 0;
    for (int patience = 0; sent < length && patience < 20;) {
        ssize_t n = send(fd, data + sent, length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) sent += (size_t)n;
        else if (n < 0 && errno == EAGAIN) usleep(1000), patience++;
        else break;
    }
    return sent;
}

static void close_crowd(void) {
    for (unsigned i = 0; i < CROWD; i++) close(fds[i]);
}

/* A connection that is logged in, on either shard, and large batches on it are answered. */
static void others_go_on(void) {
    for (int i = 0; i < 6; i++) {
        int fd = login(&s);
        for (uint32_t stream = 0; stream < 4; stream++) {
            CHECK_EQUAL(send_messages(fd, stream, 1, LARGE), 0);
            CHECK_EQUAL(send_messages(fd, stream, 1, 100), 0);
        }
        CHECK_EQUAL(call(fd, CODE_PING, NULL, 0, NULL, NULL), 0);
        close(fd);
    }
}

/* Python never answers the first request of each; unread ones lie behind it. */
static void test_who_waits_with_unread_bytes_gives_its_buffer_back(void) {
    uint8_t frames[8 + 8 * 200];
    memcpy(frames, "\4\0\0\0", 4);
    uint32_t code = CODE_NEVER_ANSWERED;
    memcpy(frames + 4, &code, 4);
    for (int i = 1; i <= 200; i++) memcpy(frames + 8 * i, "\4\0\0\0\1\0\0\0", 8);
    for (unsigned i = 0; i < CROWD; i++) {
        fds[i] = i % 2 ? dial(&s) : login(&s);
        CHECK_EQUAL(push(fds[i], frames, sizeof frames), sizeof frames);
    }
    others_go_on();
    close_crowd();
}

/* The frames behind a request whose bytes were parked are answered in order, and none is lost. */
static void test_parked_bytes_are_not_lost(void) {
    uint32_t total, words[2], length;
    uint8_t *payload = send_payload(1, 1, 300, &total);
    words[0] = total + 4;
    words[1] = CODE_SEND_MESSAGES;
    size_t one = 8 + total, all = 20 * one;
    uint8_t *frames = malloc(all + 9);
    memcpy(frames, "\5\0\0\0\46\0\0\0x", 9); /* a login in front */
    for (int n = 0; n < 20; n++) {
        memcpy(frames + 9 + (size_t)n * one, words, 8);
        memcpy(frames + 9 + (size_t)n * one + 8, payload, total);
    }
    for (unsigned i = 0; i < CROWD; i++) {
        fds[i] = dial(&s);
        CHECK_EQUAL(push(fds[i], frames, all + 9), all + 9);
    }
    for (unsigned i = 0; i < CROWD; i++)
        for (int n = 0; n < 21; n++) CHECK_EQUAL(next_status(fds[i], &length, NULL), 0);
    free(payload);
    free(frames);
    close_crowd();
}

static void hold_half(bool with_login, uint32_t code, uint32_t length, size_t part) {
    static uint8_t frame[1 << 20];
    uint32_t words[2] = {length + 4, code};
    memset(frame, 0, sizeof frame);
    memcpy(frame, words, 8);
    for (unsigned i = 0; i < CROWD; i++) {
        fds[i] = dial(&s);
        uint8_t as_outsider[] = {6, 0, 0, 0, CODE_LOGIN_USER, 0, 0, 0, 'x', OUTSIDERS};
        uint32_t ignored;
        if (with_login) {
            CHECK(send(fds[i], as_outsider, sizeof as_outsider, MSG_NOSIGNAL) == sizeof as_outsider);
            CHECK_EQUAL(next_status(fds[i], &ignored, NULL), 0);
        }
        push(fds[i], frame, 8 + part);
    }
}

static void test_half_a_frame_without_a_login_takes_nothing_from_others(void) {
    hold_half(false, CODE_LOGIN_USER, FRAME_SMALL_MAX, FRAME_SMALL_MAX - 100);
    others_go_on();
    close_crowd();
    hold_half(false, CODE_CREATE_USER, 65536, 62000);
    others_go_on();
    close_crowd();
}

static void test_half_batches_of_one_account_leave_a_share_to_others(void) {
    hold_half(true, CODE_SEND_MESSAGES, LARGE, LARGE * 8 / 10);
    others_go_on();
    close_crowd();
}

/* Answers of 3 MB that nobody reads, of more connections than the pool has windows for. */
static void test_answers_that_nobody_reads_leave_room_for_others(void) {
    int filler = login(&s), small = 4096;
    for (int n = 0; n < 30; n++) CHECK_EQUAL(send_messages(filler, 2, 1, LARGE), 0);
    close(filler);
    uint8_t payload[64] = {1, 1, 4, 7, 0, 0, 0};
    uint32_t words[2] = {42, CODE_POLL_MESSAGES}, count = 30;
    put_address(payload + 7, 2);
    memcpy(payload + 19, "\1\0\0\0\0\1", 6);
    memcpy(payload + 33, &count, 4);
    for (unsigned i = 0; i < CROWD; i++) fds[i] = -1;
    for (unsigned i = 0; i < CROWD / 2; i++) { /* each second some of them are closed for it, and the next one waits */
        fds[i] = login(&s);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        CHECK(send(fds[i], words, 8, MSG_NOSIGNAL | MSG_MORE) == 8);
        CHECK(send(fds[i], payload, 38, MSG_NOSIGNAL) == 38);
    }
    others_go_on();
    uint32_t length;
    int fd = login(&s);
    CHECK_EQUAL(poll_messages(fd, 2, 0, 5, &length), 5);
    close(fd);
    close_crowd();
}

/* Nobody else waits: a frame may come slowly. */
static void test_a_slow_upload_is_not_given_up_while_nobody_waits(void) {
    int fd = login(&s);
    uint32_t total, words[2], length;
    uint8_t *payload = send_payload(3, 1, 60000, &total);
    words[0] = total + 4;
    words[1] = CODE_SEND_MESSAGES;
    CHECK(send(fd, words, 8, MSG_NOSIGNAL) == 8);
    for (uint32_t sent = 0; sent < total;) { /* 3 s; partial_frame_timeout is 1 s here, the frame has 4 s more */
        uint32_t part = total - sent < 2000 ? total - sent : 2000;
        CHECK(send(fd, payload + sent, part, MSG_NOSIGNAL) == (ssize_t)part);
        sent += part;
        usleep(100000);
    }
    CHECK_EQUAL(next_status(fd, &length, NULL), 0);
    free(payload);
    close(fd);
}

static void run_on(io_engine which) {
    s.io_engine = which;
    s.bounds.limits.connections = 8 * CROWD; /* those whose request is never answered stay */
    start_server(&s);
    RUN(test_who_waits_with_unread_bytes_gives_its_buffer_back);
    RUN(test_parked_bytes_are_not_lost);
    RUN(test_half_a_frame_without_a_login_takes_nothing_from_others);
    RUN(test_half_batches_of_one_account_leave_a_share_to_others);
    RUN(test_answers_that_nobody_reads_leave_room_for_others);
    RUN(test_a_slow_upload_is_not_given_up_while_nobody_waits);
    stop_server(&s);
}

int main(void) {
    raise_descriptor_limit();
    for_each_engine(run_on);
    return check_report();
}
