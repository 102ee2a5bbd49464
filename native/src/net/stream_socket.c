/* Plain sockets as streams. */
#include "net/stream.h"

#include <errno.h>
#include <unistd.h>

static void receive_provided(stream *s, io *i, operation *op, buffer_set set) {
    io_receive_provided(i, op, s->fd, set);
}

static void receive(stream *s, io *i, operation *op, void *data, uint32_t length) {
    io_receive(i, op, s->fd, data, length);
}

static ssize_t receive_now(stream *s, void *data, size_t length) { return recv(s->fd, data, length, MSG_DONTWAIT); }

static void send_later(stream *s, io *i, operation *op, const void *data, size_t length) {
    io_send(i, op, s->fd, data, length);
}

static ssize_t send_now(stream *s, const void *data, size_t length) {
    return send(s->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool has_ended(stream *s) {
    uint8_t byte;
    ssize_t got = recv(s->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

static void end_output(stream *s) { shutdown(s->fd, SHUT_WR); }

static void stop(stream *s) { shutdown(s->fd, SHUT_RDWR); }

static void close_it(stream *s, io *i) {
    if (i != NULL) io_forget(i, s->fd); /* a moved socket lives on: its events would come here for ever */
    close(s->fd);
}

static bool peer(const stream *s, struct sockaddr_storage *out) {
    socklen_t length = sizeof *out;
    return getpeername(s->fd, (struct sockaddr *)out, &length) == 0;
}

stream stream_socket(int fd) {
    static const stream_calls calls = {.receive_provided = receive_provided,
                                       .receive = receive,
                                       .receive_now = receive_now,
                                       .send = send_later,
                                       .send_now = send_now,
                                       .has_ended = has_ended,
                                       .end_output = end_output,
                                       .stop = stop,
                                       .close = close_it,
                                       .peer = peer};
    return (stream){.calls = &calls, .fd = fd, .movable = true};
}
