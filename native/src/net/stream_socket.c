/* Plain sockets as streams. */
#include "net/stream.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
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

/* The kernel tells who it was at the time of the connect, whoever has the socket now. */
static bool local(const stream *s, struct sockaddr_storage *out) {
    struct ucred who;
    socklen_t length = sizeof who;
    struct stat about;
    if (getsockopt(s->fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 || fstat(s->fd, &about) != 0) return false;
    local_peer found = {.family = AF_UNIX, .uid = who.uid, .socket = about.st_ino};
    memcpy(out, &found, sizeof found);
    return true;
}

static bool peer(const stream *s, struct sockaddr_storage *out) {
    socklen_t length = sizeof *out;
    if (getpeername(s->fd, (struct sockaddr *)out, &length) != 0) return false;
    return out->ss_family != AF_UNIX || local(s, out);
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
