/* What a stream that translates has of the stream below it and has not translated yet: lent to it for a turn (`take`),
 * or read into room that all streams of the worker share. What outlives the turn is copied. */
#ifndef SHARDD_STREAM_FEED_H
#define SHARDD_STREAM_FEED_H
#include "net/stream.h"

#define FEED_ROOM_BYTES 65536u /* of the shared room */

typedef struct stream_feed {
    const uint8_t *bytes;
    uint32_t length;
    uint8_t *kept; /* those of them that outlive the turn */
    bool borrowed; /* `bytes` are not in `kept` */
    bool taking;   /* nothing is read but what was lent */
    bool ended;    /* the stream below has */
    bool broken;   /* or has failed */
    bool full;     /* the last refill brought all that it had room for */
} stream_feed;

void feed_take(stream_feed *f, const uint8_t *bytes, uint32_t length);
bool feed_keep(stream_feed *f);   /* what was lent goes. False: no memory for what is left of it */
bool feed_settle(stream_feed *f); /* the same for the shared room, while nothing is lent */
/* More of the stream below, for somebody who wants so many bytes. False: there is nothing now. */
bool feed_refill(stream_feed *f, stream *below, uint8_t room[FEED_ROOM_BYTES], size_t wanted);

static inline void feed_skip(stream_feed *f, size_t used) {
    f->bytes += used;
    f->length -= (uint32_t)used;
}
#endif
