/* Inside of the native engine of one worker: what conn*.c, execute.c, reads.c, forward.c, handover.c, sync.c,
 * partition_table.c and engine.c share.
 *
 * Everything here lives on the worker's loop thread. A request goes through these rooms:
 *   conn_input.c   bytes -> frame                execute.c  frame -> decision (answer, stage, read, forward, Python)
 *   commit.c       one vectored append per partition and turn              reads.c  poll windows: read, verify, send
 *   conn_output.c  answer -> bytes               forward.c  requests to and from other shards
 *   sync.c         background fdatasync, group commit of `durable`
 */
#ifndef SHARDD_ENGINE_H
#define SHARDD_ENGINE_H
#include "net/admission.h"
#include "engine/engine_counters.h"
#include "engine/engine_options.h"
#include "engine/event.h"
#include "core/fence.h"
#include "wire/frame_limits.h"
#include "io/io.h"
#include "peer/links.h"
#include "log/partition.h"
#include "base/pool.h"
#include "wire/request.h"
#include "log/room.h"
#include "core/route.h"
#include "core/seat.h"
#include "net/shares.h"

#define POLL_WINDOW_BYTES (256u << 10) /* read, verified and sent at a time */
#define POLL_HEAD_BYTES 24u            /* response frame header + Polled head */
#define PARTIAL_RECEIVE_BYTES 32768u   /* one receive operation into a private block */
#define PARTIAL_FILL_BYTES 262144u     /* one plain receive into it */
#define MOVE_AFTER_REQUESTS 16u        /* consecutive requests to one other shard move the socket */
#define HELD_REQUEST_US 2000000        /* a request that a dead owner had not taken waits so long */
#define HANDOVER_SESSION_MAX 65536u    /* Python's part of a moving session */
#define HANDOVER_SPACE (HANDOVER_SESSION_MAX + RECEIVE_BUFFER_SIZE)
#define JOURNALS_POOL_SHARE 4u /* all journals of `memory` together: at most a quarter of the pool */
#define JOB_BUCKETS 1024u
#define BULK_BYTES_MIN 65536u /* larger parts of answers are read and sent after the others, in slices */
#define BULK_SLICE_BYTES 262144u
#define SPARE_PLACES 64u         /* in the table of connections: for those that close or are refused */
#define EVENTS_MAX 128u          /* per turn; no further frame is looked at until Python took them */
#define EVENTS_ANONYMOUS_MAX 32u /* requests among them of the crowd without a login */
#define LARGE_REQUESTS_MAX 16u   /* above FRAME_SMALL_MAX that Python has at a time */

enum {
    STATUS_ERROR = 1,
    STATUS_INVALID_COMMAND = 3,
    STATUS_DISCONNECTED = 8,
    STATUS_STALE_CLIENT = 30,
    STATUS_UNAUTHENTICATED = 40,
    STATUS_UNAUTHORIZED = 41,
    STATUS_TOPIC_NOT_FOUND = 2010,
    STATUS_PARTITION_NOT_FOUND = 3007,
    STATUS_NOT_RESOLVED_CONSUMER = 3022,
    STATUS_BAD_CHECKSUM = 4027,
    STATUS_CANNOT_READ = 10002,
    STATUS_CANNOT_WRITE = 10006,
    STATUS_CANNOT_SYNC = 10009,
    STATUS_SHARD_UNREACHABLE = 11001,
    STATUS_TASK_TIMEOUT = 12001
};

typedef struct read_job read_job;
typedef struct held held;

/* Something that could not go on for want of memory or of a free descriptor; tried again in order of arrival. */
typedef struct waiter {
    struct waiter *next, *previous;
    bool (*retry)(struct waiter *); /* true: done with waiting */
    bool queued;
} waiter;

struct owned { /* a partition of this shard; reference counted: table, routes, jobs, staged batches */
    engine *e;
    partition *p;
    uint64_t ns, incarnation;
    uint32_t references;
    fences fences; /* of the consumer groups */
    bool dirty, poison_reported;
    bool syncing; /* waits for its sync, or it runs */
    bool syncing_by_caller;
    bool sync_everything;               /* the next sync takes the indexes along */
    uint64_t syncs_begun;               /* number of its last sync */
    held *held_first, *held_last;       /* answers that wait for one, ascending by its number */
    uint32_t first_staged, last_staged; /* index + 1 into engine.staged; 0 none */
    struct owned *next_touched, *next_dirty, *next_pending;
};

typedef struct requester { /* who gets the answer: a connection here, or one on another shard */
    conn *c;               /* NULL: remote */
    uint32_t shard, generation;
    uint64_t connection, sequence;
} requester;

typedef struct staged {
    append_batch batch;
    requester from;
    uint8_t *block; /* own copy of a remote batch; NULL for local ones */
    uint32_t next;  /* index + 1 */
} staged;

typedef enum conn_state {
    CONN_RECEIVING, /* between frames or inside one */
    CONN_STAGED,    /* batch waits for the commit of this turn, or its answer for the device */
    CONN_PYTHON,    /* Python decides */
    CONN_READING,   /* poll job at work */
    CONN_FORWARDED, /* at another shard */
    CONN_WAITING,   /* for memory or a descriptor */
    CONN_REPLYING,  /* output not yet with the kernel */
    CONN_MOVING,    /* Python packs the session */
    CONN_LINGERING, /* the last answer is out: what still comes is dropped, so that the close does not overtake it */
} conn_state;

typedef struct conn_queue {
    conn *first, *last;
} conn_queue;

struct conn {
    waiter wait; /* first: waiter* converts to conn* */
    engine *e;
    int fd;
    uint32_t index, generation;
    conn_state state;
    operation receive_operation, send_operation;
    bool receive_armed, send_armed, starved, end_of_input, closing, close_after_reply, authenticated, move_wanted,
        moved;
    bool too_large, large_in_python; /* the frame in work: is refused (frame_limits.h), one of LARGE_REQUESTS_MAX */
    bool answer_begun;               /* of the request in work: a status would be read as a part of it */
    bool uncounted;                  /* admission.h: the shard that it moves to counts it */
    bool group_asked;                /* Python wants to know what comes of this request of a member */
    seat *seats;                     /* what it may do as a member of groups */
    seat_work seat_work;             /* the request of a seat that is under way */
    uint32_t user_id;
    uint64_t network; /* admission.h */
    char address[56];
    /* input */
    uint8_t head[FRAME_HEADER_SIZE];
    uint8_t head_have;
    uint8_t *in; /* unread bytes of the provided buffer */
    uint32_t in_length;
    int32_t in_buffer;             /* its id, -1 none */
    uint8_t *in_block;             /* instead of it: what was parked, or came with a moved connection */
    uint32_t code, payload_length; /* of the frame in work */
    uint32_t keep_length;          /* how much of it is kept (less than payload_length before login) */
    uint8_t *payload;
    uint8_t *block; /* private block of a frame that did not fit its provided buffer */
    uint32_t block_have, block_size;
    uint32_t attempts;  /* route misses of this frame */
    int64_t request_us; /* when the frame was complete, or when it began to linger */
    /* output */
    uint8_t out_small[64];
    const uint8_t *out;
    size_t out_length, out_sent;
    void *out_heap;     /* malloc'ed by an answer of Python */
    uint8_t *out_block; /* pool block of the last window of a poll */
    size_t out_heap_bytes;
    conn *next_reply, *next_ready, *next_starved;
    bool in_replies, in_ready;
    /* private input memory (shares.h) */
    share *share; /* whose it is; NULL: there is none */
    uint32_t held_bytes, armed_bytes;
    conn *next_holder, *previous_holder, *next_throttled, *previous_throttled;
    bool throttled; /* waits until its owner may have more */
    read_job *job;
    held *held; /* its answer waits for the device */
    /* forwarding */
    bool forwarded;              /* a request is out at `forward_shard` */
    bool lease_open, lease_more; /* the output is a window of its pool; another one follows */
    uint32_t forward_shard;
    uint64_t forward_position, sequence, lease_handle;
    int64_t forward_deadline_us; /* 0: the owner lives */
    uint32_t streak_shard, streak;
    int64_t heartbeat_us; /* when it was opened, or sent its last PING (docs/protocol/sessions.md#heartbeat) */
    int64_t progress_us;  /* last progress of a partial frame or of an output */
    int64_t anonymous_us; /* since when it is not logged in */
    int64_t frame_us;     /* first byte of the frame */
    int64_t throttled_us; /* since when it waits for its turn */
    int64_t output_us;    /* when this part of an answer began to leave */
};

typedef struct read_line { /* poll jobs, first come first served */
    read_job *first, *last;
} read_line;
enum { READS_WITH_BLOCK, READS_WITHOUT_BLOCK };

struct read_job {
    waiter wait; /* first */
    operation operation;
    engine *e;
    owned *target;
    poll_cursor cursor;
    requester to;
    uint64_t handle; /* for remote requesters */
    uint8_t *block;
    size_t block_size, head_bytes, have;
    poll_window window;
    uint8_t strategy;
    uint64_t value;
    uint32_t count, consumer_id;
    uint64_t assignment; /* as in the descriptor */
    uint8_t consumer_kind;
    bool auto_commit, first_window, reading, held, abandoned;
    bool surveying;   /* waits for a survey of the segment at `doubtful` */
    uint32_t surveys; /* for which it has waited, the last one for that segment */
    uint64_t doubtful;
    bool is_bulk;    /* much is still to come */
    read_line *bulk; /* where it waits for its turn, or for memory */
    bool window_known;
    read_job *next_bulk, *previous_bulk; /* those that do */
    read_job *next, *previous;           /* all jobs of the engine */
    read_job *next_in_bucket;            /* of those for other shards, by handle */
};

struct engine {
    engine_options options;
    io io;
    pool *pool;
    links links;
    route_table routes;
    uint64_t routes_version; /* grows when decisions of Python end; seats of another one do not count */
    id_source ids;
    int *handover_send_fds;
    operation accept_operation, epoll_operation, doorbell_operation, handover_operation;
    int listen_fd, epoll_fd;
    bool accept_armed, epoll_armed, epoll_ready, doorbell_armed, handover_armed, serving;
    int64_t accept_again_us;
    uint32_t stopping_status; /* not 0: what every connection gets when its request is answered */
    uint64_t doorbell_value;
    conn **conns;
    uint32_t *conn_generations;
    uint32_t *free_indexes, free_count, conns_count, conns_capacity;
    owned **partitions; /* open addressing by namespace */
    uint32_t partitions_capacity, partitions_used;
    staged *staged;
    uint32_t staged_count, staged_capacity;
    append_batch *scratch;
    owned *touched, *dirty, *sync_pending, *sync_pending_last;
    bool *peer_is_down;
    /* engine.c: each has its turn. `ready` and `replies` at once, the others a slice of each turn. */
    conn_queue starved[BUFFER_SETS], ready, ready_pipelined, ready_anonymous, replies, bulk_replies;
    read_line bulk_reads[2];     /* READS_WITH_BLOCK, READS_WITHOUT_BLOCK */
    int64_t bulk_reads_again_us; /* the pool had no block for the first of them */
    read_job *jobs_by_handle[JOB_BUCKETS];
    uint32_t check_next; /* connection whose times are looked at next; conns_capacity: all were */
    bool trimming;       /* the pool gives memory back, in slices */
    int64_t next_trim_us;
    waiter *waiters, *waiters_last;
    pot pots[BUFFER_SETS]; /* private input memory: of those logged in, of the others */
    conn *buffer_holders[BUFFERS_IN_ALL];
    uint32_t events_anonymous, large_in_python;
    uint64_t output_bytes;                 /* windows of polls and answers of Python that have not left */
    bool output_refused, output_contended; /* polls wait for that memory, or it is over its budget */
    uint32_t frame_send_max;               /* FRAME_SEND_MAX, less when the pool is small */
    read_job *jobs;
    uint64_t next_handle;
    uint32_t syncs_running;
    event *events;
    uint32_t events_count, events_capacity;
    room room;
    bool room_refusal_reported;
    journal_memory journals;
    worker_page *page; /* ours */
    int64_t pass_us;   /* when this pass of the loop began */
    int64_t now_us, next_sync_us, next_save_us, next_housekeeping_us;
    uint8_t *move_space; /* where a moved connection's session and unread bytes arrive */
    engine_counters counters;
    uint64_t latency[LATENCY_BUCKETS]; /* requests, from the complete frame to the whole answer with the kernel */
};

/* engine.c */
uint32_t latency_bucket(int64_t us); /* engine_gauges.c */
int64_t clock_monotonic_us(void);
event *engine_event(engine *e, event_kind kind, uint64_t connection); /* never NULL; valid until the next call */
bool engine_events_full(const engine *e, const conn *c);              /* for a frame of this connection */
void engine_wait(engine *e, waiter *w, bool (*retry)(waiter *));
void engine_unwait(engine *e, waiter *w);
void *engine_allocate(engine *e, size_t bytes, bool partial_frame);

/* commit.c */
void engine_stage(engine *e, owned *target, const append_batch *batch, const requester *from, uint8_t *block);
void engine_answer(engine *e, const requester *to, uint32_t status);
void engine_commit(engine *e);
void engine_report_room(engine *e); /* tells Python when there is room on the disk again, or none any more */

/* partition_table.c */
owned *engine_owned(engine *e, uint64_t ns);
void owned_release(owned *o);
void drop_route_partition(route_partition *r);

/* conn.c */
conn *conn_open(engine *e, int fd);                      /* NULL: refused (fd closed) */
conn *conn_adopt(engine *e, int fd, bool authenticated); /* from another shard; NULL: no memory (fd closed) */
void conn_set_session(conn *c, uint32_t user_id, bool authenticated);
void conn_uncount(conn *c); /* leaves the counts before its end */
conn *conn_find(engine *e, uint64_t id);
uint64_t conn_id(const conn *c);
bool conn_has_left(const conn *c); /* the client has ended its half, and nothing more of it is to come */
void conn_ready(conn *c);          /* conn_advance later in this turn */
void conn_ready_again(conn *c);    /* the same for what it has sent ahead: others first */
void conn_close(conn *c);
void conn_try_free(conn *c);
void conn_release_sources(conn *c); /* lets go of what the output came from */

/* conn_limits.c */
void conn_check_times(conn *c);               /* closes it when it takes too long */
void conn_forgive(conn *c, int64_t still_us); /* the loop stood still for so long: that was not the client's doing */

/* conn_input.c */
void conn_arm_receive(conn *c);
void conn_on_receive(conn *c, int result, int32_t buffer);
void conn_advance(conn *c);       /* runs frames until the connection has to wait */
void conn_frame_release(conn *c); /* the frame's bytes are not needed any more */
void conn_free_input(conn *c);
/* Gives the provided buffer of a connection that waits back; what it still needs goes into a private block. */
bool conn_park(conn *c);
void conn_reclaim_buffers(engine *e); /* parks who waits with a buffer when a set is nearly used up */

/* conn_output.c */
void conn_reply_status(conn *c, uint32_t status);
void conn_reply_bytes(conn *c, const uint8_t *data, size_t length); /* data stays valid until the output is done */
void conn_flush_reply(conn *c, bool alone);
void conn_on_send(conn *c, int result);
void conn_frame_done(conn *c);                   /* the answer is with the kernel */
void conn_linger(conn *c);                       /* the last answer is with the kernel */
void conn_say_goodbye(conn *c, uint32_t status); /* unsolicited error frame, then close */
void conn_free_output(conn *c);

/* execute.c */
void execute_frame(conn *c);
bool execute_retry(waiter *w);           /* of a connection that waited: its frame again */
void execute_left_python(conn *c);       /* Python has answered, or nobody wants the answer */
void execute_unknown_partition(conn *c); /* the owner does not know it: Python decides again */
/* A poll whose partition and consumer Python chose; `d` says what and how. EVENT_GROUP_POLLED comes with its answer. */
void execute_group_poll(conn *c, uint32_t owner, descriptor *d);
/* A poll was answered with messages, or any request with a status; nothing happens for those of no member. */
void execute_polled(conn *c, uint64_t count, uint64_t last_offset);
void execute_replied(conn *c, uint32_t status);
/* Answers with the owner's status; to who lost the partition: a poll is empty, a commit gets 3022. */
void execute_answer(conn *c, uint32_t status);
uint32_t execute_store(owned *target, const descriptor *d); /* kind, consumer, value, assignment -> status */

/* reads.c */
void reads_start(engine *e, owned *target, const requester *to, const descriptor *d); /* d: the poll */
void reads_next_window(read_job *job);                                                /* the last window was sent */
void reads_look_at_output(engine *e); /* now and then: do polls wait for memory? */
void reads_on_read(read_job *job, int result);
void reads_abandon(read_job *job);                        /* nobody wants the answer any more */
bool reads_may_go_on(const engine *e);                    /* reads_run_bulk would do something */
void reads_run_bulk(engine *e, int64_t until_us);         /* large windows: one slice at least */
void reads_offset_stored(read_job *job, uint32_t status); /* sync_hold_poll is over */
void reads_surveyed(owned *o, uint64_t segment); /* polls that wait for it start again; UINT64_MAX: for any segment */

/* forward.c */
void forward_request(conn *c, uint32_t shard, descriptor *d);
void forward_serve(engine *e, int64_t until_us); /* takes what peers posted, until that time */
void forward_answer_status(engine *e, const requester *to, uint32_t status, uint8_t flags);
void forward_answer_window(read_job *job, size_t bytes, bool more);
void forward_output_done(conn *c);
void forward_peer_down(engine *e, uint32_t shard);
void forward_peer_up(engine *e, uint32_t shard);
void forward_give_up(conn *c); /* held too long for a dead owner */

/* handover.c */
bool handover_send(conn *c, uint32_t shard, const uint8_t *session, size_t session_length); /* false: stays here */
void handover_receive(engine *e);

/* sync.c */
void sync_mark_dirty(owned *o);
void sync_lost(owned *o, int error); /* a sync of its files failed outside the engine: as if one of ours had */
void sync_level_changed(owned *o);   /* to `durable`: what is there is synced at once */
void sync_tick(engine *e);
/* At the end of a turn: starts what waits, first come first served, as far as the number of running syncs allows. True
 * when one had nothing to do and answers may have to go out. */
bool sync_begin_pending(engine *e);
void sync_save_tick(engine *e); /* the message saver: the journals of `memory` */
void sync_report_poison(owned *o, int error);
/* Answers a request whose write has returned with `status`: at once, or at `durable` when the device has it. */
void sync_answer(owned *o, const requester *from, uint32_t status);
/* At `durable`: reads_offset_stored comes when what is stored now is on the device. False: nothing to wait for. */
bool sync_hold_poll(owned *o, read_job *job);
void sync_report(owned *o, uint64_t token);     /* EVENT_SYNCED when all there is now is on the device; any level */
void sync_drop_held(owned *o, uint32_t status); /* the partition goes: whoever waits gets `status` */
void sync_leave(conn *c);                       /* it closes and wants its held answer no more */
void sync_free_held(owned *o);                  /* the process ends: nobody gets anything */
void sync_close(engine *e);                     /* lets go of the partitions that wait for a sync */
/* A sync that the caller does itself while `syncing` is false: descriptors as partition_sync_begin. */
size_t sync_begin_by_caller(owned *o, int *fds, size_t max);
void sync_end_by_caller(owned *o, int error);
void sync_on_complete(operation *op, int result);
#endif
