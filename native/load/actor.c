/* One actor: what it asks next, what it makes of the answers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "dialect.h"
#include "wire.h"

static const uint64_t SECOND_NS = 1000000000u;
/* Statuses of a request whose shard was away, or not back in time (docs/limits.md). */
enum { SHARD_COMMUNICATION_ERROR = 11001, TASK_TIMEOUT = 12001 };

static bool fail(actor *a, const char *what) {
    if (a->run->fault[0] == 0) snprintf(a->run->fault, sizeof a->run->fault, "%s", what);
    return false;
}

bool actor_open(actor *a, const actor_plan *plan, channel *channel, load_run *run, uint64_t seed) {
    *a = (actor){.plan = plan,
                 .run = run,
                 .random = seed,
                 .dialect = dialect_of(plan),
                 .fd = (int)plan->fd,
                 .channel = channel,
                 .session = plan->session,
                 .sends_over = !plan->sends,
                 .polls_over = !plan->polls};
    a->kept_room = plan->sends ? a->dialect->send_room(plan) : 1;
    a->out = malloc(a->kept_room * (size_t)plan->depth);
    a->kept = run->reopens ? malloc(a->kept_room * (size_t)plan->depth) : NULL;
    a->asked = calloc(plan->depth, sizeof *a->asked);
    if (a->out == NULL || a->asked == NULL || (run->reopens && a->kept == NULL))
        return fail(a, "the client has no memory left");
    a->dialect->prepare(a);
    if (plan->dialect == DIALECT_IGGY09 && a->summed == NULL) return fail(a, "the client has no memory left");
    a->dialect->reset(&a->reply);
    return true;
}

void actor_close(actor *a) {
    free(a->out);
    free(a->kept);
    free(a->asked);
    free(a->reply.own.partitions);
    free(a->summed);
    free(a->records.items);
}

/* ---- what may be asked ---- */

static _Atomic int64_t *slot(const actor *a, uint64_t number) { return &a->run->slots[number]; }

/* Takes it from a budget that other actors may share: false when nothing is left. */
static bool spend(actor *a, uint64_t number, uint64_t user_bytes) {
    int64_t cost = a->plan->budget_in_bytes ? (int64_t)user_bytes : 1;
    return atomic_fetch_sub_explicit(slot(a, number), cost, memory_order_relaxed) > 0;
}

/* A token bucket of one second, empty at the start; in an open loop, a timetable that never waits for answers. */
static void pace(actor *a, uint64_t now, uint64_t user_bytes, uint64_t rate) {
    if (rate == 0) return;
    if (!a->plan->open_loop && now > SECOND_NS && a->due_ns < now - SECOND_NS) a->due_ns = now - SECOND_NS;
    a->due_ns += (uint64_t)((double)user_bytes / (double)rate * 1e9);
}

static void end_sends(actor *a) {
    a->sends_over = true;
    atomic_fetch_sub(slot(a, SLOT_SENDERS), 1);
}

static asked *next_place(actor *a, uint64_t now) {
    asked *place = &a->asked[(a->first + a->in_flight) % a->plan->depth];
    *place = (asked){.due_ns = a->plan->open_loop ? a->due_ns : now, .started_ns = now, .measured = a->measures};
    return place;
}

/* The time at which the request was due, as the clock of the origin timestamps says it. */
static uint64_t origin_us(const asked *asked, uint64_t now) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t real_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return (real_ns - (now - asked->due_ns)) / 1000u;
}

/* Where a copy of a request is, as long as it is in flight. */
static uint8_t *kept_of(const actor *a, const asked *asked) {
    return a->kept + (size_t)(asked - a->asked) * a->kept_room;
}

static bool ask_send(actor *a, uint64_t now) {
    asked *place = next_place(a, now);
    size_t before = a->out_length;
    a->sending = a->out;
    a->dialect->send(a, place, origin_us(place, now));
    if (place->measured && !spend(a, a->plan->sends_slot, place->user_bytes)) {
        a->out_length = before;
        end_sends(a);
        return false;
    }
    place->length = a->out_length - before;
    if (a->kept != NULL) memcpy(kept_of(a, place), a->out + before, place->length);
    pace(a, now, place->user_bytes, a->plan->send_rate);
    a->in_flight++;
    return true;
}

static bool ask_poll(actor *a, uint64_t now) {
    if (a->measures && atomic_load_explicit(slot(a, a->plan->polls_slot), memory_order_relaxed) <= 0) {
        a->polls_over = true;
        return false;
    }
    asked *place = next_place(a, now);
    place->poll = true;
    place->messages = random_between(a, a->plan->batch_min, a->plan->batch_max);
    a->dialect->poll(a, place);
    a->sending = a->poll;
    a->out_length = a->poll_length;
    a->in_flight++;
    return true;
}

/* The measurement begins: a consumer that reads what was there before begins again. */
static void begin_measuring(actor *a) {
    a->measures = true;
    if (!a->plan->from_origin) a->next = (position){0};
}

/* As many new requests as may be in flight now. */
static void fill(actor *a) {
    const actor_plan *plan = a->plan;
    uint64_t now = now_ns();
    a->out_length = a->out_sent = 0;
    a->wake_ns = 0;
    if (!a->measures && now >= a->run->measure_from_ns && a->in_flight == 0) begin_measuring(a);
    if (!a->measures && now >= a->run->measure_from_ns) return; /* what is in flight belongs to the warm-up */
    while (a->in_flight < plan->depth) {
        bool sends = !a->sends_over && !(a->reads_now && !a->polls_over);
        if (!sends && (a->polls_over || a->in_flight > 0)) break;
        if (a->due_ns > now && (sends ? plan->send_rate : plan->poll_rate) != 0) {
            a->wake_ns = a->due_ns;
            break;
        }
        if (!(sends ? ask_send(a, now) : ask_poll(a, now))) continue;
        if (!sends) break;
    }
    a->over = a->sends_over && a->polls_over && a->in_flight == 0;
}

/* ---- what was answered ---- */

static bool record(actor *a, uint64_t now, uint64_t latency_ns, uint64_t service_ns) {
    records *r = &a->records;
    if (r->count == r->room) {
        size_t room = r->room == 0 ? 1024 : r->room * 2;
        load_record *items = r->count < a->plan->records_max ? realloc(r->items, room * sizeof *items) : NULL;
        if (items == NULL) return fail(a, "more requests than one run keeps: let batches be larger, or fewer");
        r->items = items;
        r->room = room;
    }
    a->sums.elapsed_ns = now - a->run->measure_from_ns;
    a->sums.latency_ns = latency_ns;
    a->sums.service_ns = service_ns;
    r->items[r->count++] = a->sums;
    a->run->messages += a->sums.messages;
    a->run->bytes += a->sums.user_bytes;
    if (latency_ns > a->run->worst_ns) a->run->worst_ns = latency_ns;
    a->sums = (load_record){0};
    return true;
}

static void add(actor *a, uint64_t messages, uint64_t user_bytes, uint64_t header_bytes) {
    a->sums.batches++;
    a->sums.messages += messages;
    a->sums.user_bytes += user_bytes;
    a->sums.total_bytes += user_bytes + header_bytes + messages * a->dialect->record_bytes;
}

static bool sent(actor *a, const asked *asked, uint64_t now) {
    a->reads_now = a->plan->polls;
    a->empty_since_ns = 0;
    if (!asked->measured) return true;
    add(a, asked->messages, asked->user_bytes, 0);
    return a->plan->polls || record(a, now, now - asked->due_ns, now - asked->started_ns);
}

static bool polled_nothing(actor *a, uint64_t now) {
    if (a->empty_since_ns == 0) a->empty_since_ns = now;
    if (!a->plan->awaits && !a->sends_over) a->reads_now = false;
    if (a->measures) a->run->empty_polls++;
    bool drawn = a->plan->from_origin && !a->plan->awaits && a->plan->batch_min != a->plan->batch_max;
    bool may_come = atomic_load_explicit(slot(a, SLOT_SENDERS), memory_order_relaxed) > 0 && !a->plan->awaits;
    if (may_come || now - a->empty_since_ns < (drawn ? DRAWN_POLLS_MS : EMPTY_POLLS_MS) * 1000000ull) return true;
    if (!drawn) return fail(a, "there are fewer messages than are to be read");
    a->polls_over = true; /* batches of both sides are drawn: there need not be as many messages as are asked for */
    return true;
}

static uint64_t since_origin_ns(const reply *r) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t real_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    uint64_t origin_ns = r->origin_us * 1000u;
    return real_ns > origin_ns ? real_ns - origin_ns : 0;
}

static bool polled(actor *a, const asked *asked, uint64_t now) {
    const reply *r = &a->reply;
    if (r->assigned) return true;
    if (r->count == 0) return polled_nothing(a, now);
    a->empty_since_ns = 0;
    a->reads_now = false;
    a->next = r->next;
    pace(a, now, r->user_bytes, a->plan->poll_rate);
    if (!asked->measured) return true;
    if (!spend(a, a->plan->polls_slot, r->user_bytes)) {
        a->polls_over = true; /* others have read the last of it */
        return true;
    }
    add(a, r->count, r->user_bytes, r->header_bytes);
    uint64_t service_ns = now - asked->started_ns;
    return record(a, now, a->plan->from_origin ? since_origin_ns(r) : service_ns, service_ns);
}

/* The connection is of no use any more. What is in flight waits for another one, if this run has others. */
static bool interrupt(actor *a, const char *why) {
    if (!a->run->reopens || ++a->breaks > BREAKS_MAX) return fail(a, why);
    a->broken = true;
    a->channel = NULL; /* it ends with the connection */
    a->out_length = a->out_sent = 0;
    a->wake_ns = 0;
    if (a->interrupted_ns == 0) a->interrupted_ns = now_ns();
    return true;
}

static bool broken(actor *a, const char *why) {
    a->run->broken++;
    return interrupt(a, why);
}

static bool refused(actor *a, const char *why) {
    if (a->reply.status != SHARD_COMMUNICATION_ERROR && a->reply.status != TASK_TIMEOUT) return fail(a, why);
    a->run->refused++;
    return interrupt(a, why);
}

/* It is answered again. */
static void resume(actor *a, uint64_t now) {
    a->breaks = 0;
    if (a->interrupted_ns == 0) return;
    uint64_t lasted_ns = now - a->interrupted_ns;
    if (lasted_ns > a->run->interrupted_ns) a->run->interrupted_ns = lasted_ns;
    a->interrupted_ns = 0;
}

static bool finish(actor *a) {
    const asked *oldest = &a->asked[a->first];
    const char *wrong = a->dialect->settle(&a->reply, oldest);
    uint64_t now = now_ns();
    if (wrong != NULL) return refused(a, wrong);
    a->run->progress_ns = now;
    resume(a, now);
    if (!(oldest->poll ? polled(a, oldest, now) : sent(a, oldest, now))) return false;
    a->first = (uint32_t)((a->first + 1) % a->plan->depth);
    a->in_flight--;
    a->dialect->reset(&a->reply);
    return true;
}

static bool take(actor *a, const uint8_t *bytes, size_t length) {
    for (size_t at = 0; at < length && !a->broken;) {
        const asked *asked = a->in_flight > 0 ? &a->asked[a->first] : NULL;
        if (asked == NULL && !a->dialect->speaks_unasked) return fail(a, "the server sent more than the answers");
        at += a->dialect->take(&a->reply, asked, bytes + at, length - at);
        if (asked == NULL && a->reply.text.wrong != NULL) return fail(a, a->reply.text.wrong);
        if (asked != NULL && a->dialect->complete(&a->reply, asked) && !finish(a)) return false;
    }
    return true;
}

/* ---- the socket ---- */

static bool failed(actor *a, const char *call) {
    char text[120];
    snprintf(text, sizeof text, "%s: %s", call, strerror(errno));
    return broken(a, text);
}

static bool flush(actor *a) {
    while (a->out_sent < a->out_length) {
        const uint8_t *from = a->sending + a->out_sent;
        size_t left = a->out_length - a->out_sent;
        ssize_t n = a->channel == NULL ? send(a->fd, from, left, MSG_NOSIGNAL) : channel_send(a->channel, from, left);
        if (n < 0 && errno == EAGAIN) return true;
        if (n < 0 && errno != EINTR) return failed(a, "send");
        if (n <= 0) continue;
        a->out_sent += (size_t)n;
        if (a->measures) a->run->sent_bytes += (uint64_t)n;
    }
    return true;
}

bool actor_advance(actor *a, uint8_t *scratch, size_t room) {
    while (!a->broken) {
        if (a->out_sent == a->out_length) fill(a);
        if (a->in_flight == 0) return true; /* over, or nothing is due */
        if (!flush(a)) return false;
        if (a->broken) return true;
        ssize_t n = a->channel == NULL ? recv(a->fd, scratch, room, 0) : channel_receive(a->channel, scratch, room);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return true;
        if (n < 0) return failed(a, "recv");
        if (n == 0) return broken(a, "the server closed a connection");
        if (a->measures) a->run->received_bytes += (uint64_t)n;
        if (!take(a, scratch, (size_t)n)) return false;
    }
    return true;
}

static void ask_again(actor *a, asked *asked) {
    if (asked->poll) {
        asked->assigns = false;
        a->dialect->poll(a, asked);
        a->sending = a->poll;
        a->out_length = a->poll_length;
        return;
    }
    uint8_t *request = a->out + a->out_length;
    memcpy(request, kept_of(a, asked), asked->length);
    if (a->dialect->renew != NULL) a->dialect->renew(a, request);
    a->sending = a->out;
    a->out_length += asked->length;
}

void actor_reopened(actor *a, const opened *opened) {
    a->fd = (int)opened->fd;
    a->channel = opened->channel;
    a->session = opened->session;
    a->broken = false;
    a->reply.own.known = false;
    a->dialect->reset(&a->reply);
    for (uint32_t i = 0; i < a->in_flight; i++) ask_again(a, &a->asked[(a->first + i) % a->plan->depth]);
    a->run->sent_again += a->in_flight;
    a->run->progress_ns = now_ns();
}
