/* One connection: a stream that is framed by a dialect, and one request at a time, or a window of them. What the files
 * of this folder share.
 *
 *   input.c       bytes -> frame              request.c  frame -> typed request -> core, Python; its answers
 *   translated.c  of streams that translate   limits.c   how long anything may take
 *   output.c      answer -> bytes             queue.c    whose turn it is, closing
 *   window.c      several requests at a time  reader.c   what the client has of its answers
 *   wait.c        polls that wait             conn.c     life
 * net/moving.c: what goes along to another worker
 */
#ifndef SHARDD_CONN_H
#define SHARDD_CONN_H
#include "core/core.h"
#include "net/shares.h"
#include "net/stream.h"
#include "wire/iggy09.h"
#include "wire/iggy09_batch.h"

#define ADDRESS_BYTES 56u
#define BYTES_PER_S_MIN 16384       /* a frame, and an answer, have their timeout and a second for each so many bytes */
#define WINDOW_REQUESTS_MAX 32u     /* in work on one connection */
#define CONN_UNSENT_BYTES (1 << 20) /* that the kernel keeps of what is sent */
#define CONN_UNSENT_ANONYMOUS_BYTES (64 << 10) /* before a login: answers have a few bytes then */

typedef struct net net;
typedef struct window window;
typedef struct conn_wait conn_wait;

typedef enum conn_state {
    CONN_RECEIVING, /* between frames or inside one */
    CONN_WORKING,   /* the core is at it: `work` says where it waits, if it does */
    CONN_WINDOW,    /* several requests are in work or answered: places.h */
    CONN_PYTHON,    /* Python decides */
    CONN_AWAITING,  /* its poll waits for messages (wait.c) */
    CONN_WAITING,   /* for memory or a descriptor */
    CONN_UNPACKING, /* its records become as they are stored, a slice in a turn */
    CONN_REPLYING,  /* output not yet with the kernel */
    CONN_ENTERING,  /* Python says who it is before it is heard, by its process or its certificate */
    CONN_HOLDING,   /* the head of a refusal is with the kernel, its body waits: does this client read one? */
    CONN_MOVING,    /* Python packs the session */
    CONN_LINGERING, /* the last answer is out: what still comes is dropped, so that the close does not overtake it */
} conn_state;

typedef struct conn_input {
    operation operation;
    bool armed, starved, ended;
    uint8_t *bytes; /* unread ones of the provided buffer */
    uint32_t length;
    int32_t buffer; /* its id, -1 none */
    uint8_t *block; /* instead of it: what was parked, was translated, or came with a moved connection */
    int32_t taken;  /* provided buffer with bytes that the stream has to translate, -1 none */
    uint32_t taken_length;
    bool unread; /* the stream can be read without the socket */
    conn *next_starved;
} conn_input;

typedef struct conn_frame { /* in work */
    uint8_t *head_bytes;    /* small_head, or in conn_large */
    uint8_t small_head[DIALECT_HEAD_SMALL];
    uint16_t head_have;
    bool asked_who;                  /* Python looks at its head: nothing behind that was taken */
    bool too_large, large_in_python; /* is refused; is one of LARGE_REQUESTS_MAX */
    uint32_t large_user;             /* whose, while `large_in_python` */
    frame_head head;
    uint32_t keep_length; /* how much of it is kept (less than its length before login) */
    uint8_t *payload;
    uint8_t *block; /* private block of a frame that did not fit its provided buffer */
    uint32_t block_have, block_size;
    uint32_t attempts; /* route misses of this frame */
} conn_frame;

typedef struct conn_output {
    operation operation;
    bool armed, queued;
    bool begun;     /* the answer to the request in work: a status would be read as a part of it */
    bool last;      /* part of it */
    uint8_t *small; /* small_room, or in conn_large: an answer without a payload */
    uint8_t small_room[DIALECT_ANSWER_SMALL];
    const uint8_t *bytes;
    size_t length, sent;
    size_t held;   /* behind them, of a refusal whose body may not be wanted */
    uint8_t *heap; /* malloc'ed: an answer of Python */
    size_t heap_bytes;
    uint8_t *block;        /* of the pool: the last window of a poll */
    uint8_t *made;         /* the same: what was made of a window */
    bool (*more)(conn *c); /* makes more of the window that was not sent whole. False: it was; NULL: it is */
    conn *next_reply;
} conn_output;

typedef struct conn_memory { /* private input memory (shares.h) */
    share *share;            /* whose it is; NULL: there is none */
    uint32_t held_bytes, armed_bytes;
    conn *next_holder, *previous_holder, *next_throttled, *previous_throttled;
    bool throttled; /* waits until its owner may have more */
} conn_memory;

typedef struct conn_clocks {
    int64_t request_us;   /* when the frame was complete, or when it began to linger */
    int64_t heartbeat_us; /* when it was opened, or sent its last PING (docs/protocol/sessions.md#heartbeat) */
    int64_t progress_us;  /* last progress of a partial frame or of an output */
    int64_t anonymous_us; /* since when it is not logged in */
    int64_t frame_us;     /* first byte of the frame */
    int64_t throttled_us; /* since when it waits for its turn */
    int64_t output_us;    /* when this part of an answer began to leave */
} conn_clocks;

/* What its client has taken (reader.c). */
typedef struct conn_reader {
    int64_t looked_us;
    int64_t since_us;     /* since when it is waited for until all that was left then is taken; 0: nothing is left */
    int64_t moved_us;     /* when the client last took something of it */
    uint64_t taken, goal; /* bytes of the whole connection: at the last look; when that will be taken */
    uint32_t length;      /* so much was left then */
} conn_reader;

/* Of a connection whose dialect has larger heads or answers than others. */
typedef struct conn_large {
    uint8_t head[DIALECT_HEAD_MAX];
    uint8_t answer[DIALECT_ANSWER_MAX];
    iggy09_memory memory;
    struct conn_unpacking *unpacking; /* of a SEND that takes several turns */
    poll_summary polled;              /* of the answer that leaves in batches, ... */
    uint64_t left;                    /* ... so many bytes of them still */
    iggy09_packing packing;           /* of its window that leaves, ... */
    bool last;                        /* ... which is the last one */
    iggy09_part part;                 /* that leaves now */
    uint32_t made_bytes;              /* of output.made */
} conn_large;

struct conn {
    waiter wait; /* first: waiter* converts to conn* */
    net *net;
    core *core;
    stream stream;
    const dialect *dialect;
    uint32_t index, generation;
    conn_state state;
    bool closing, close_after_reply, move_wanted, moved, in_ready;
    bool in_bulk;          /* its turn is one of those who have sent ahead */
    bool has_sent_ahead;   /* it has had a window */
    bool sends_ahead;      /* since its last receive more than one request was there at a time */
    bool lending;          /* its records go to a peer: they are parked, not dropped */
    bool uncounted;        /* admission.h: the shard that it moves to counts it */
    bool unanswered;       /* the core has a request of it whose end it has not heard */
    bool alone_once;       /* its next request is not for a window */
    bool local;            /* over the Unix socket */
    pending *work;         /* where that request waits, or what the output came from */
    window *window;        /* NULL: one request at a time */
    conn_wait *wait_for;   /* messages, for so long; NULL: its poll does not wait */
    conn_large *large;     /* NULL: its dialect needs no more room */
    struct sample *sample; /* its request is traced (samples.h); NULL: it is not */
    conn *next_ready;
    session session;
    conn_input input;
    conn_frame frame;
    conn_output output;
    conn_memory memory;
    conn_clocks clocks;
    conn_reader reader;
    uint64_t network; /* admission.h */
    char address[ADDRESS_BYTES];
};

static inline uint64_t conn_id(const conn *c) { return c->session.connection; }
static inline bool conn_waits_for(const conn *c, pending_wait what) {
    return c->work != NULL && c->work->waits_for == what;
}

/* queue.c */
void conn_ready(conn *c);           /* conn_advance later in this turn */
void conn_ready_again(conn *c);     /* the same for what it has sent ahead: others first */
void conn_close(conn *c);           /* now; freed at the end of the turn, when no caller holds it any more */
void conn_left_python(conn *c);     /* it has answered, or nobody wants the answer */
void conn_release_sources(conn *c); /* lets go of what the output came from */

/* conn.c */
/* `from`: its address, which a proxy has told; NULL: that of the stream. NULL: refused (closed). */
conn *conn_open(net *n, stream s, const dialect *d, const struct sockaddr_storage *from);
/* The same, and tells Python, with what GET_CLIENTS calls the way that it came (docs/protocol/system.md). */
void conn_accept(net *n, stream s, const dialect *d, uint32_t transport, const struct sockaddr_storage *from);
/* Of another shard, which counted it as `network`. NULL: no memory. */
conn *conn_adopt(net *n, stream s, const dialect *d, bool authenticated, uint64_t network);
/* From its next frame on, or from this one, whose head is not complete. False: no memory for it (it closes). */
bool conn_speak(conn *c, const dialect *d);
void conn_set_session(conn *c, uint32_t user_id, bool authenticated);
void conn_uncount(conn *c); /* leaves the counts before its end */
conn *conn_find(const net *n, uint64_t id);
conn *conn_find_closing(const net *n, uint64_t id); /* also one that is closed, as long as it is there */
bool conn_has_left(conn *c); /* the client has ended its half, and nothing more of it is to come */
void conn_try_free(conn *c);

/* limits.c */
void conn_check_times(conn *c);                         /* closes it when it takes too long */
bool conn_may_be_told(const conn *c);                   /* a status would be no part of an answer */
void conn_was_answered(conn *c);                        /* by Python: that its client waited for us was not silence */
bool conn_is_silent(const conn *c, int64_t since_us);   /* no PING since then, and it could have sent one */
int64_t conn_silence_us(const conn *c, int64_t now_us); /* since its client last gave any sign of life */
void conn_forgive(conn *c, int64_t still_us); /* the loop stood still for so long: that was not the client's doing */

/* reader.c */
uint32_t conn_reader_look(conn *c); /* how much of what was sent its client does not have yet */
bool conn_reader_is_late(conn *c);  /* with what the kernel has for it */
void conn_reset(conn *c);           /* closes it; what its client has not taken is thrown away */

/* input.c */
void conn_arm_receive(conn *c);
void conn_on_receive(conn *c, int result, int32_t buffer);
/* Instead of it, from a stream that has the bytes in memory of its own: they are copied. False: no memory now. */
bool conn_on_bytes(conn *c, const uint8_t *bytes, uint32_t length);
void conn_frame_replace(conn *c, uint8_t *block, uint32_t length); /* the frame is in this block of the pool now */
void conn_frame_release(conn *c);                                  /* the frame's bytes are not needed any more */
void conn_free_input(conn *c);
void conn_return_buffer(conn *c); /* nothing in it is wanted */
bool conn_take_payload(conn *c);  /* takes what is kept and drains what is not; true: the frame is complete */
/* Gives the provided buffer of a connection that waits back; what it still needs goes into a private block. */
bool conn_park(conn *c);
void conn_fill_block(conn *c); /* what the stream has now of the frame that has a block */
void conn_return_taken(conn *c);
void conn_reclaim_buffers(net *n); /* parks who waits with a buffer when a set is nearly used up */

/* translated.c */
void conn_read_stream(conn *c); /* what it can without the socket */

/* advance.c */
void conn_told_who(conn *c); /* the answer to conn_ask_who: its head is judged anew */
void conn_advance(conn *c);  /* runs frames until the connection has to wait */

/* request.c */
void conn_execute(conn *c);                                                          /* the frame in work */
struct sample *conn_sample(conn *c, const frame_head *head, const uint8_t *payload); /* NULL: no place */
/* Who sends this without a login? Python sets session and dialect, and resumes. False: no memory, it closes. */
bool conn_ask_who(conn *c);
bool conn_retry(waiter *w); /* of a connection that waited: its frame again */
void conn_execute_for_group(conn *c, uint32_t owner, partition_request *what); /* of a poll that Python holds */

/* wait.c: a poll that found nothing is asked again when there may be something. */
void conn_wait_wake(conn *c); /* something has changed for it */
void conn_wait_look(conn *c); /* has its client left, behind what it has sent ahead? */
void conn_wait_free(conn *c);

/* packed.c: dialects that remember sessions, and pack records otherwise than they are stored. */
/* The frame in work, REQUEST_PACKED: its kind is known then; or it was answered; or it has to wait for memory. */
typedef enum packed_result { PACKED_READY, PACKED_ENDED, PACKED_NEEDS_PLACE, PACKED_GOES_ON } packed_result;
packed_result conn_open_packed(conn *c);
void conn_packed_forget(conn *c); /* what is half unpacked */
void conn_packed_status(conn *c, uint32_t status);
void conn_packed_window(conn *c, const answer_window *w); /* becomes output; `c` lets go of it as of any window */

/* window.c */
/* A whole frame that begins there was taken from the input. True: it is in work, and what lay behind it, too, or all of
 * them will be in their turn. */
bool conn_window_begin(conn *c, uint8_t *frame);
void conn_window_go_on(conn *c); /* with what has come */

/* output.c */
void conn_queue_reply(conn *c); /* something may leave later in this turn */
void conn_reply_status(conn *c, uint32_t status);
void conn_reply_heap(conn *c, uint8_t *bytes, size_t length);       /* malloc'ed; the connection frees it */
void conn_reply_bytes(conn *c, const uint8_t *data, size_t length); /* data stays valid until the output is done */
void conn_reply_payload(conn *c, uint32_t status, const uint8_t *payload, size_t length); /* is copied */
void conn_flush_reply(conn *c, bool alone);
void conn_on_send(conn *c, int result);
void conn_drop_body(conn *c);                    /* CONN_HOLDING: the client has asked on, it reads no bodies */
void conn_send_body(conn *c);                    /* CONN_HOLDING: it has not */
void conn_linger(conn *c);                       /* its last answer is out: closed when the client has it */
void conn_say_goodbye(conn *c, uint32_t status); /* unsolicited error frame, then close */
void conn_free_output(conn *c);
#endif
