/* What goes along when a socket moves to another worker: one struct, one way to pack it and one to unpack it. */
#ifndef SHARDD_MOVING_H
#define SHARDD_MOVING_H
#include "net/net.h"

#define MOVING_SESSION_MAX 65536u /* Python's part */
#define MOVING_BYTES_MAX (1024u + MOVING_SESSION_MAX + RECEIVE_BUFFER_SIZE)

typedef struct moving {
    const dialect *dialect;
    uint32_t user_id;
    bool authenticated;
    uint64_t network; /* what its address is counted as */
    char address[ADDRESS_BYTES];
    const uint8_t *session; /* Python's part */
    const uint8_t *unread;  /* bytes of the stream */
    uint32_t session_length, unread_length;
    iggy09_memory memory; /* of its session, with the last answer */
} moving;

/* Bytes written into `out` (MOVING_BYTES_MAX); 0: it is too much. */
size_t moving_pack(const moving *m, uint8_t *out);
/* False: these bytes were not packed here. What `out` points to lies in `bytes`. */
bool moving_unpack(const uint8_t *bytes, size_t length, moving *out);

/* Of a connection between two requests. */
moving conn_moving(const conn *c, const uint8_t *session, size_t session_length);
void conn_moved(conn *c);                            /* its socket lives on elsewhere */
conn *conn_arrived(net *n, int fd, const moving *m); /* tells Python; NULL: no place (closed) */
/* Of a socket that nobody has heard yet, from a listener of that kind: whoever gets it accepts it. */
size_t moving_pack_new(listener_kind kind, uint8_t *out);
bool moving_is_new(const uint8_t *bytes, size_t length, listener_kind *kind);
#endif
