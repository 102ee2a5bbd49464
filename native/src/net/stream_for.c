/* See stream_for.h. */
#include "net/stream_for.h"

static const struct layers {
    bool may_encrypt; /* as the settings of the port say */
    tls_port port;
    bool websocket;
} layers_of[LISTENER_KINDS] = {
    [LISTENER_TCP] = {.may_encrypt = true, .port = TLS_OF_TCP},
    [LISTENER_UNIX] = {.may_encrypt = false},
    [LISTENER_WEBSOCKET] = {.may_encrypt = true, .port = TLS_OF_WEBSOCKET, .websocket = true},
};

bool stream_for(listener_kind kind, int fd, tls *t, websockets *w, stream *out) {
    const struct layers *l = &layers_of[kind];
    stream below = stream_socket(fd);
    if (l->may_encrypt && t->ports[l->port].mode != TLS_OFF && !stream_tls(&below, t, l->port, fd)) return false;
    if (l->websocket) return stream_websocket(out, w, below);
    *out = below;
    return true;
}
