/* libFuzzer: any bytes as frames of a WebSocket client. In pieces, into small rooms, they give the same bytes and the
 * same end as at once; limits hold; a CLOSE is answered with a code that may be said. */
#include <stdlib.h>
#include <string.h>

#include "net/websocket_frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t decode(frame_input *f, const uint8_t *data, size_t size, uint8_t *out, size_t step, size_t room) {
    const frame_limits limits = {.frame_bytes_max = 4096, .message_bytes_max = 6000, .accept_unmasked = true};
    size_t at = 0, have = 0;
    *f = (frame_input){0};
    for (bool moved = true; moved;) {
        size_t part = size - at < step ? size - at : step, space = size - have < room ? size - have : room, used;
        size_t written = frames_decode(f, &limits, data + at, part, &used, out + have, space);
        if (used > part || written > space || written > used || (!f->closed && f->message_bytes > 6000)) abort();
        moved = used > 0 || written > 0;
        at += used;
        have += written;
    }
    if (at < size && !f->closed && have < size) abort(); /* it stands still */
    return have;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    frame_input whole, pieces;
    uint8_t *out = malloc(size + 1), *again = malloc(size + 1), own[WEBSOCKET_CONTROL_OUT_MAX];
    if (out == NULL || again == NULL) abort();
    size_t have = decode(&whole, data, size, out, SIZE_MAX, SIZE_MAX);
    size_t other = decode(&pieces, data, size, again, 1 + (size > 0 ? data[0] % 13u : 0), 1 + size % 7);
    if (have != other || memcmp(out, again, have) != 0) abort();
    if (whole.closed != pieces.closed || whole.close_code != pieces.close_code) abort();
    if (whole.pong_due != pieces.pong_due || whole.pong_length > WEBSOCKET_CONTROL_MAX) abort();
    if (whole.closed && (whole.close_code < 1000 || whole.close_code > 4999)) abort();
    if (whole.closed && frame_put_close(own, whole.close_code) > 4) abort();
    free(out);
    free(again);
    return 0;
}
