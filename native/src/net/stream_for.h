/* The kinds of listeners, and the layers of the stream that each of them begins. */
#ifndef SHARDD_STREAM_FOR_H
#define SHARDD_STREAM_FOR_H
#include "net/tls.h"
#include "net/websocket.h"

typedef enum listener_kind { LISTENER_TCP, LISTENER_UNIX, LISTENER_WEBSOCKET, LISTENER_KINDS } listener_kind;

/* The stream of a socket that a listener of this kind has accepted. False: no memory, the socket is closed. */
bool stream_for(listener_kind kind, int fd, tls *t, websockets *w, stream *out);
#endif
