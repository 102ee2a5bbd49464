/* See stream_feed.h. */
#include "net/stream_feed.h"

#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define READ_AHEAD_BYTES 512u /* heads of records and frames, beside what they hold */

void feed_take(stream_feed *f, const uint8_t *bytes, uint32_t length) {
    ASSERT(f->length == 0);
    f->bytes = bytes;
    f->length = length;
    f->taking = f->borrowed = true;
}

static bool keep_rest(stream_feed *f) {
    uint8_t *copy = NULL;
    if (f->length > 0) {
        if (!f->borrowed) return true;
        copy = malloc(f->length);
        if (copy == NULL) return false;
        memcpy(copy, f->bytes, f->length);
    }
    free(f->kept);
    f->kept = copy;
    f->bytes = copy;
    f->borrowed = false;
    return true;
}

bool feed_keep(stream_feed *f) {
    f->taking = false;
    return keep_rest(f);
}

bool feed_settle(stream_feed *f) { return f->taking || !f->borrowed || keep_rest(f); }

bool feed_refill(stream_feed *f, stream *below, uint8_t room[FEED_ROOM_BYTES], size_t wanted) {
    if (f->taking || f->length > 0) return false;
    size_t length = wanted < FEED_ROOM_BYTES - READ_AHEAD_BYTES ? wanted + READ_AHEAD_BYTES : FEED_ROOM_BYTES;
    ssize_t got = stream_receive_now(below, room, length);
    if (got == 0) f->ended = true;
    if (got < 0 && errno != EAGAIN && errno != EINTR) f->broken = true;
    if (got <= 0) return false;
    f->bytes = room;
    f->length = (uint32_t)got;
    f->full = (size_t)got == length;
    f->borrowed = true;
    return true;
}
