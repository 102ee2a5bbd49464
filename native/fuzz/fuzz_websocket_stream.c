/* libFuzzer: any bytes at a stream of WebSocket, before and behind the upgrade, in any pieces, with answers, PONGs and
 * ends in between. It goes on or breaks off, and what it writes begins with what HTTP wants or is frames of its own. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/websocket.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static websockets worker;

static const char opening[] = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                              "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

static void give(stream *s, const void *bytes, size_t length) {
    uint8_t into[512], *exact = malloc(length);
    memcpy(exact, bytes, length);
    stream_take(s, exact, (uint32_t)length);
    for (int i = 0; i < 1000 && stream_available(s) > 0; i++)
        if (stream_receive_now(s, into, sizeof into) <= 0) break;
    if (!stream_keep(s)) abort();
    free(exact);
}

/* What a client sees: HTTP, and then frames of a server, which are whole and without a mask. */
static void check_output(int fd) {
    uint8_t seen[65536];
    ssize_t got = recv(fd, seen, sizeof seen, MSG_DONTWAIT);
    if (got <= 0) return;
    if (got < 9 || memcmp(seen, "HTTP/1.1 ", 9) != 0) abort();
    uint8_t *at = memmem(seen, (size_t)got, "\r\n\r\n", 4), *end = seen + got;
    if (at == NULL) abort();
    for (at += 4; memcmp(seen + 9, "101", 3) == 0 && end - at >= 2; at += 2 + at[1])
        if ((at[0] & 0xf0) != 0x80 || at[1] > 125) abort();
    if (at != end) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const websocket_settings settings = {.limits = {.frame_bytes_max = 1 << 16, .message_bytes_max = 1 << 17},
                                                .origins = ""};
    int pair[2];
    stream s;
    if (worker.in == NULL && websockets_open(&worker, &settings) != 0) abort();
    if (size < 2 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) return 0;
    if (!stream_websocket(&s, &worker, stream_socket(pair[0]))) abort();
    size_t piece = 1u + data[1] * 16u;
    uint8_t answer[64] = {0};
    if ((data[0] & 3) != 0) give(&s, opening, sizeof opening - 1);
    for (size_t at = 2; at < size; at += piece) {
        if (stream_available(&s) > 0) break; /* it has ended */
        give(&s, data + at, size - at < piece ? size - at : piece);
        if ((data[0] & 4) != 0 && !s.opening) stream_send_now(&s, answer, sizeof answer);
        stream_look(&s);
    }
    if ((data[0] & 8) != 0) stream_end_output(&s);
    stream_stop(&s);
    check_output(pair[1]);
    s.calls->close(&s, NULL);
    close(pair[1]);
    return 0;
}
