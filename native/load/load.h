/* The load engine of `shardd bench`: actors on connections that are logged in already, one thread, one epoll. What is
 * shared with other processes of the run is in `slots`. It links nothing of the core. */
#ifndef LOAD_LOAD_H
#define LOAD_LOAD_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel.h"
#include "frames.h"

enum { REPLY_TIMEOUT_MS = 10000, EMPTY_POLLS_MS = 5000, DRAWN_POLLS_MS = 200, TICK_MS = 100, NO_GROUP = 0 };
enum { BREAKS_MAX = 10 }; /* connections that one request may break, one after the other */

/* What each process of a run sees; budgets of actors are behind these. */
enum {
    SLOT_STOP,
    SLOT_START_NS,
    SLOT_READY,
    SLOT_SENDERS,
    SLOT_MESSAGES, /* measured so far, a tick or so late; bytes, too */
    SLOT_BYTES,
    SLOT_WORST_NS, /* since somebody has set it to 0 */
    SLOTS_FIXED
};

/* Who asks, in the framing of 0.9, and how many requests with a number there were before. */
typedef struct session_09 {
    uint64_t client_low, client_high, session, requests;
} session_09;

/* One actor, as shardd/benchmark/engine.py packs it. Fields of 0 and 1 are no and yes. */
typedef struct actor_plan {
    uint64_t fd;
    uint64_t sends, polls; /* both: it reads what it has sent */
    uint64_t stream, topic;
    uint64_t partitioning; /* of frames.h, and TO_RANDOM */
    uint64_t partitions;   /* of TO_RANDOM */
    uint64_t hot_percent;  /* of TO_RANDOM: so many requests go to partition 0 */
    uint64_t group;        /* of its polls: id + 1, or NO_GROUP */
    uint64_t batch_min, batch_max;
    uint64_t payload_min, payload_max;
    uint64_t sends_slot, polls_slot; /* budgets */
    uint64_t budget_in_bytes;        /* else in batches */
    uint64_t send_rate, poll_rate;   /* user bytes per second, 0: no limit */
    uint64_t from_origin;            /* the latency of a poll: since its first message was made; else its round trip */
    uint64_t awaits;                 /* sends no more before it has read something */
    uint64_t depth;                  /* requests in flight of a sender */
    uint64_t open_loop;              /* requests have a time at which they are due, and latencies begin there */
    uint64_t records_max;
    uint64_t dialect; /* dialect.h */
    uint64_t number;  /* among all actors of the run */
    session_09 session;
} actor_plan;

/* One measured batch; counts and bytes since the actor's record before. */
typedef struct load_record {
    uint64_t elapsed_ns, latency_ns, service_ns; /* service: from the send of its request to its answer */
    uint64_t messages, batches, user_bytes, total_bytes;
} load_record;

typedef struct records {
    load_record *items;
    size_t count, room;
} records;

typedef struct load_run {
    _Atomic int64_t *slots;
    const char *payload; /* payload_max bytes of the largest actor */
    uint64_t warmup_ns;
    int64_t parent; /* the run ends when this is no longer the parent; 0: not asked */
    /* A connection that breaks ends the run; or the actor's index (uint32_t) goes into one pipe, and out of the other
     * comes what was opened in its place (both do not block). */
    bool reopens;
    int broken_fd, opened_fd;
    uint64_t measure_from_ns;
    uint64_t progress_ns;                        /* when something was answered */
    uint64_t cpu_ns, wall_ns, waited_ns;         /* of the measurement */
    uint64_t empty_polls;                        /* while measuring */
    uint64_t sent_bytes, received_bytes;         /* while measuring, as actors see them */
    uint64_t broken, refused;                    /* connections; answers that nobody is there */
    uint64_t sent_again, interrupted_ns;         /* requests; the longest time from a break to the next answer */
    uint64_t told_ns, messages, bytes, worst_ns; /* what the slots do not have yet, and when they were told */
    char fault[160];
} load_run;

/* What somebody has opened in place of a broken connection. `channel` as in an actor. */
typedef struct opened {
    uint64_t actor, fd;
    channel *channel;
    session_09 session;
} opened;

typedef struct asked {
    uint64_t due_ns, started_ns;
    uint64_t messages, user_bytes; /* of a send; of a poll how many messages it wants */
    size_t length;                 /* of a send */
    bool poll, measured;
    bool ends;    /* its answer ends with a word, also when it has all messages */
    bool assigns; /* it is no poll yet: a member asks for its partitions */
} asked;

/* The partitions of a member of a group that names them in its polls (iggy09.c). */
typedef struct assignment {
    uint32_t *partitions;
    uint32_t count, room, next; /* next: its turn */
    uint64_t since_ns;          /* of the first poll by it; 0: there was none */
    bool known;
} assignment;

/* Where a reader is in a log: an offset, or an id of two numbers. */
typedef struct position {
    uint64_t first, second;
} position;

/* The state of a parser of lines and of counted bytes (redis.c, nats.c). */
typedef struct text_state {
    uint64_t left;                      /* of counted bytes */
    int64_t pending;                    /* elements that are still to come */
    uint64_t head_length, whole_length; /* of what is coming */
    uint32_t have, items;
    bool counted, ended;
    const char *wrong;
    char kept[512]; /* a line, or the first of counted bytes */
} text_state;

typedef struct reply {
    uint32_t status; /* of the dialects of Apache Iggy */
    bool assigned;   /* partitions, instead of messages */
    assignment own;  /* stays from one answer to the next */
    uint64_t received, user_bytes, header_bytes, count;
    uint64_t origin_us;  /* of the first message */
    position next;       /* behind the last message */
    uint64_t lengths_at; /* of the next record: where its lengths are */
    uint32_t lengths_have;
    uint8_t lengths[8];
    uint8_t head[8 + 16 + 64]; /* of the answer, of a poll, of the first record */
    text_state text;
} reply;

typedef struct dialect dialect;

enum { PREFIX_MAX = 160, POLL_REQUEST_MAX = 512 };

typedef struct actor {
    const actor_plan *plan;
    const dialect *dialect;
    int fd;
    channel *channel; /* NULL: the socket itself */
    session_09 session;
    load_run *run;
    bool broken;             /* its connection: it waits for another one */
    uint32_t breaks;         /* since the last answer */
    uint64_t interrupted_ns; /* since then it has had no answer; 0: it is not interrupted */
    bool sends_over, polls_over, over;
    bool reads_now; /* of one that does both */
    uint8_t *out;
    const uint8_t *sending; /* `out`, or `poll` */
    size_t out_length, out_sent;
    uint8_t *kept; /* requests in flight at their places of the ring, where connections are opened again */
    size_t kept_room;
    uint32_t head_length, frame_length; /* of sends that are all alike; frame_length 0: they are not */
    uint8_t poll[POLL_REQUEST_MAX];
    uint32_t poll_length;
    uint8_t prefix[PREFIX_MAX]; /* of each message, in dialects of text */
    uint32_t prefix_length;
    position next;
    uint8_t *summed; /* of iggy09.c */
    bool measures;   /* has begun to */
    asked *asked;    /* ring of `depth` */
    uint32_t first, in_flight;
    reply reply;
    uint64_t due_ns, wake_ns; /* the next request is due; wake_ns 0: nobody waits for that */
    uint64_t empty_since_ns;
    uint64_t random;
    load_record sums; /* since the last record */
    records records;
} actor;

/* actor.c: false, with a fault in the run, when memory is short. */
bool actor_open(actor *a, const actor_plan *plan, channel *channel, load_run *run, uint64_t seed);
void actor_close(actor *a);
/* Sends and receives until the socket would block, or until its next request is due. False with a fault. */
bool actor_advance(actor *a, uint8_t *scratch, size_t room);
/* Goes on over another connection: what was not answered is to be sent again. */
void actor_reopened(actor *a, const opened *opened);

/* run.c: connects nothing, waits for SLOT_START_NS, runs all actors to their ends. False with a fault. */
bool load_run_actors(load_run *run, actor *actors, size_t count);
#endif
