/* WebSocket over a socket or over TLS as a stream: the request that opens it, then binary messages as one stream of
 * bytes. What the connection sends goes out as messages of one frame, from where it lies.
 *
 * Frames of our own (PONG, CLOSE) go between those of the connection: a PONG for the last PING alone, the CLOSE when
 * the connection ends, so that what was asked before the client's CLOSE is still answered. */
#include "net/stream_feed.h"
#include "net/websocket.h"
#include "net/websocket_upgrade.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOGETHER_BYTES_MAX 16384u /* copied behind its head: one call and one segment */
#define REFILLS_MAX 8u            /* of one call: what brings nothing (PINGs) has to take turns, too */
#define DRAINS_MAX 8u

typedef struct websocket_stream {
    websockets *of;
    stream below;
    upgrade *request; /* NULL: it is open */
    frame_input input;
    stream_feed feed; /* what is not decoded */
    bool broken, said_end;
    bool own_leaves;                 /* by an operation */
    uint8_t own[UPGRADE_ANSWER_MAX]; /* a frame of ours, the head of one of the connection's, or what opens it */
    uint32_t own_length, own_sent;
    uint64_t frame_left; /* bytes of the connection's frame that its head has promised */
} websocket_stream;

int websockets_open(websockets *w, const websocket_settings *settings) {
    w->limits = settings->limits;
    w->origins = strdup(settings->origins != NULL ? settings->origins : "");
    w->in = malloc(FEED_ROOM_BYTES);
    w->out = malloc(WEBSOCKET_ROOM_BYTES);
    return w->origins != NULL && w->in != NULL && w->out != NULL ? 0 : -ENOMEM;
}

void websockets_close(websockets *w) {
    free(w->origins);
    free(w->in);
    free(w->out);
}

/* ---- output ---- */

/* False: it waits for the socket, or that is broken. */
static bool push_own(websocket_stream *t) {
    if (t->own_sent == t->own_length) return true;
    if (t->own_leaves) return false;
    ssize_t sent = stream_send_now(&t->below, t->own + t->own_sent, t->own_length - t->own_sent);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) t->broken = true;
    if (sent > 0) t->own_sent += (uint32_t)sent;
    return t->own_sent == t->own_length;
}

static bool between_frames(const websocket_stream *t) { return t->frame_left == 0 && t->own_sent == t->own_length; }

static void say(websocket_stream *t, size_t length) {
    t->own_length = (uint32_t)length;
    t->own_sent = 0;
    push_own(t);
}

static void pong(websocket_stream *t) {
    if (!t->input.pong_due || t->broken || t->said_end) return;
    push_own(t);
    if (!between_frames(t)) return; /* later: `look` */
    t->input.pong_due = false;
    say(t, frame_put_control(t->own, FRAME_PONG, t->input.pong, t->input.pong_length));
}

static bool is_open(const websocket_stream *t) { return t->request == NULL && !t->broken && !t->said_end; }

/* The refused hear it in the words of HTTP. */
static void refuse(websocket_stream *t, uint32_t status) {
    char answer[UPGRADE_ANSWER_MAX];
    size_t length = upgrade_refusal(status, answer);
    stream_send_now(&t->below, answer, length);
    t->broken = true;
    t->of->counters.refused++;
}

/* Head and all of it in one call. Bytes of the connection that are with the kernel, or -1. */
static ssize_t send_together(websocket_stream *t, const void *data, size_t length) {
    uint8_t *room = t->of->out;
    size_t head = frame_put_head(room, length);
    memcpy(room + head, data, length);
    ssize_t sent = stream_send_now(&t->below, room, head + length);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return -1;
    if (sent < 0) sent = 0; /* what is below may have sealed them: the same bytes have to come again */
    t->frame_left = length;
    if ((size_t)sent > head) {
        t->frame_left -= (size_t)sent - head;
        return (ssize_t)((size_t)sent - head);
    }
    memcpy(t->own, room, head);
    t->own_length = (uint32_t)head;
    t->own_sent = (uint32_t)sent;
    errno = EAGAIN;
    return -1;
}

static void begin_frame(websocket_stream *t, size_t length) {
    t->own_length = (uint32_t)frame_put_head(t->own, length);
    t->own_sent = 0;
    t->frame_left = length;
}

static ssize_t send_now(stream *s, const void *data, size_t length) {
    websocket_stream *t = s->state;
    if (t->request != NULL && !t->broken) refuse(t, 503); /* it is told before it has asked: there is no place for it */
    errno = EPIPE;
    if (!is_open(t) || length == 0) return -1;
    errno = EAGAIN;
    if (!push_own(t)) return -1;
    if (t->frame_left == 0 && length <= TOGETHER_BYTES_MAX) return send_together(t, data, length);
    if (t->frame_left == 0) begin_frame(t, length);
    errno = EAGAIN;
    if (!push_own(t)) return -1;
    ssize_t sent = stream_send_now(&t->below, data, length < t->frame_left ? length : (size_t)t->frame_left);
    if (sent > 0) t->frame_left -= (size_t)sent;
    return sent;
}

static void send_later(stream *s, io *i, operation *op, const void *data, size_t length) {
    websocket_stream *t = s->state;
    if (!is_open(t)) {
        stream_stop(&t->below); /* the operation tells */
        stream_send(&t->below, i, op, "", 1);
        return;
    }
    if (between_frames(t)) begin_frame(t, length);
    t->own_leaves = t->own_sent < t->own_length;
    if (t->own_leaves) stream_send(&t->below, i, op, t->own + t->own_sent, t->own_length - t->own_sent);
    else stream_send(&t->below, i, op, data, length < t->frame_left ? length : (size_t)t->frame_left);
}

static bool sent(stream *s, io *i, operation *op, int *result) {
    websocket_stream *t = s->state;
    if (!stream_sent(&t->below, i, op, result)) return false;
    bool own = t->own_leaves;
    t->own_leaves = false;
    if (*result <= 0) return true;
    if (own) {
        t->own_sent += (uint32_t)*result;
        *result = 0; /* the connection's follow */
    } else {
        t->frame_left -= (uint32_t)*result;
    }
    return true;
}

static void look(stream *s) {
    websocket_stream *t = s->state;
    stream_look(&t->below);
    pong(t);
}

/* ---- input ---- */

static void recognize(stream *s, const uint8_t *bytes, uint32_t length) {
    stream_recognize(&((websocket_stream *)s->state)->below, bytes, length);
}

static void take(stream *s, const uint8_t *bytes, uint32_t length) {
    websocket_stream *t = s->state;
    if (stream_translates(&t->below)) stream_take(&t->below, bytes, length);
    else feed_take(&t->feed, bytes, length);
}

static bool keep(stream *s) {
    websocket_stream *t = s->state;
    bool kept = !stream_translates(&t->below) || stream_keep(&t->below);
    return feed_keep(&t->feed) && kept;
}

static size_t available(const stream *s) {
    const websocket_stream *t = s->state;
    size_t below = stream_translates(&t->below) ? stream_available(&t->below) : 0;
    bool something = t->feed.length > 0 || t->feed.ended || t->broken || t->input.closed || below > 0;
    return something ? t->feed.length + below + 1 : 0;
}

/* One step: of the stream below, or of what the client asks. */
static void open_further(stream *s) {
    websocket_stream *t = s->state;
    size_t used = 0;
    if (t->below.opening) {
        if (stream_receive_now(&t->below, NULL, 0) < 0 && errno != EAGAIN && errno != EINTR) t->broken = true;
        return;
    }
    if (t->feed.length == 0 && !feed_refill(&t->feed, &t->below, t->of->in, UPGRADE_LINE_BYTES)) return;
    upgrade_result result = upgrade_feed(t->request, t->of->origins, t->feed.bytes, t->feed.length, &used);
    feed_skip(&t->feed, used);
    if (result == UPGRADE_MORE) return;
    if (result == UPGRADE_REFUSED) {
        refuse(t, t->request->status);
        return;
    }
    size_t length = upgrade_answer(t->request, (char *)t->own);
    free(t->request);
    t->request = NULL;
    s->opening = false;
    t->of->counters.opened++;
    say(t, length);
}

static ssize_t receive_now(stream *s, void *data, size_t length) {
    websocket_stream *t = s->state;
    size_t got = 0;
    if (t->request != NULL && !t->broken) open_further(s);
    for (unsigned refills = 0; t->request == NULL && !t->broken && !t->input.closed && got < length;) {
        size_t used = 0;
        got += frames_decode(&t->input, &t->of->limits, t->feed.bytes, t->feed.length, &used, (uint8_t *)data + got,
                             length - got);
        feed_skip(&t->feed, used);
        if (t->feed.length > 0 || got == length) break;
        if (refills > 0 && !t->feed.full) break; /* the stream below has no more, or its share of a turn is over */
        if (refills++ == REFILLS_MAX || !feed_refill(&t->feed, &t->below, t->of->in, length - got)) break;
    }
    if (t->feed.broken || !feed_settle(&t->feed)) t->broken = true;
    if (t->input.closed) t->feed.length = 0;
    if (t->input.broken && !t->broken && got == 0) {
        t->of->counters.broken++;
        errno = EPROTO;
        return -1;
    }
    pong(t);
    if (got > 0) return (ssize_t)got;
    errno = t->broken ? EPROTO : EAGAIN;
    return (t->feed.ended || t->input.closed) && !t->broken ? 0 : -1;
}

static void receive_provided(stream *s, io *i, operation *op, buffer_set set) {
    stream_receive_provided(&((websocket_stream *)s->state)->below, i, op, set);
}

static bool has_ended(stream *s) {
    websocket_stream *t = s->state;
    return t->feed.ended || t->broken || t->input.closed || stream_has_ended(&t->below);
}

/* ---- its end ---- */

static void say_end(websocket_stream *t) {
    if (!is_open(t)) return;
    push_own(t);
    if (!between_frames(t)) return; /* inside a frame nothing can be said */
    t->said_end = true;
    say(t, frame_put_close(t->own, t->input.closed ? t->input.close_code : CLOSE_GOING_AWAY));
}

/* A close with input that nobody has read is a reset, which may overtake what was said. */
static void drain(websocket_stream *t) {
    for (unsigned i = 0; i < DRAINS_MAX; i++)
        if (stream_receive_now(&t->below, t->of->in, FEED_ROOM_BYTES) < (ssize_t)FEED_ROOM_BYTES) return;
}

static void end_output(stream *s) {
    websocket_stream *t = s->state;
    say_end(t);
    stream_end_output(&t->below);
}

static void stop(stream *s) {
    websocket_stream *t = s->state;
    say_end(t);
    drain(t);
    stream_stop(&t->below);
}

static void close_it(stream *s, io *i) {
    websocket_stream *t = s->state;
    stream_close(&t->below, i);
    free(t->request);
    free(t->feed.kept);
    free(t);
}

static bool peer(const stream *s, struct sockaddr_storage *out) {
    return stream_peer(&((const websocket_stream *)s->state)->below, out);
}

static char *names(const stream *s) { return stream_names(&((const websocket_stream *)s->state)->below); }

bool stream_websocket(stream *out, websockets *w, stream below) {
    static const stream_calls calls = {.receive_provided = receive_provided,
                                       .receive_now = receive_now,
                                       .send = send_later,
                                       .send_now = send_now,
                                       .has_ended = has_ended,
                                       .end_output = end_output,
                                       .stop = stop,
                                       .close = close_it,
                                       .peer = peer,
                                       .recognize = recognize,
                                       .take = take,
                                       .keep = keep,
                                       .available = available,
                                       .sent = sent,
                                       .look = look,
                                       .names = names};
    websocket_stream *state = calloc(1, sizeof *state);
    upgrade *request = calloc(1, sizeof *request);
    if (state == NULL || request == NULL) {
        free(state);
        free(request);
        stream_close(&below, NULL);
        return false;
    }
    state->of = w;
    state->below = below;
    state->request = request;
    *out = (stream){.calls = &calls, .fd = below.fd, .state = state, .opening = true};
    return true;
}
