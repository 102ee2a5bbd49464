/* Which dialect a connection speaks: told by its first bytes, wherever they are cut. */
#include "test_net_support.h"

/* The first bytes decide, wherever they are cut; until then nothing is kept but them. */
static void test_the_first_bytes_decide_what_a_connection_speaks(void) {
    for (uint32_t step = 1; step <= 20; step++) {
        open_net(LEVEL_WRITTEN);
        memory_stream *m = dial(&dialect_undecided, true, true);
        CHECK(m->c->dialect == &dialect_undecided && m->c->large == NULL);
        uint8_t ping[8] = {4, 0, 0, 0, 1, 0, 0, 0}, twice[16];
        memcpy(twice, ping, 8);
        memcpy(twice + 8, ping, 8);
        feed(m, twice, 16, step);
        await_output(m, 16);
        CHECK(m->c->dialect == &dialect_classic && m->c->large == NULL);
        CHECK_EQUAL(k->counters.frames, 2);
        hang_up(m);
        close_net();
    }
}

/* A dialect whose heads are longer than what told it, and longer than the room that every connection has. */
static bool long_read_head(const uint8_t *head, frame_head *out) {
    *out = (frame_head){.code = head[200], .kind = REQUEST_PING, .drained_max = 10};
    return head[100] == 'x';
}
static size_t long_status(const uint8_t *head, uint8_t *at, uint32_t status) {
    memset(at, (int)status, 256);
    if (head != NULL) at[0] = head[200];
    return 256;
}
static const dialect long_heads = {.name = "long",
                                   .number = 201,
                                   .one_at_a_time = true,
                                   .head_bytes = 256,
                                   .answer_bytes = 256,
                                   .send_bytes_max = 1000,
                                   .read_head = long_read_head,
                                   .put_status = long_status};
static const dialect *choose_long(const uint8_t *first) { return first[0] == 0 ? &long_heads : &dialect_classic; }

static void test_a_dialect_with_long_heads_gets_room_when_it_is_decided(void) {
    dialect choosing = dialect_undecided;
    choosing.choose = choose_long;
    for (uint32_t step = 1; step <= 600; step += step < 20 ? 1 : 37) {
        open_net(LEVEL_WRITTEN);
        memory_stream *m = dial(&choosing, true, true);
        uint8_t frames[768] = {0};
        for (int i = 0; i < 3; i++) {
            frames[256 * i + 100] = 'x';
            frames[256 * i + 200] = (uint8_t)(7 + i);
        }
        feed(m, frames, 4, 4);
        CHECK(m->c->large == NULL);
        feed(m, frames + 4, sizeof frames - 4, step);
        await_output(m, 768);
        for (int i = 0; i < 3; i++) CHECK_EQUAL(m->output[256 * i], 7 + i);
        CHECK(m->c->dialect == &long_heads && m->c->large != NULL);
        hang_up(m);
        close_net();
    }
}

static void test_every_dialect_fits_the_room_that_it_gets(void) {
    CHECK(dialect_undecided.head_bytes == DIALECT_FIRST_BYTES);
    for (unsigned number = 0; number < 256; number++) {
        const dialect *d = dialect_of((uint8_t)number);
        if (d == NULL || d->read_head == NULL) continue;
        CHECK(d->head_bytes >= DIALECT_FIRST_BYTES && d->head_bytes <= DIALECT_HEAD_MAX);
        CHECK(d->answer_bytes <= DIALECT_ANSWER_MAX && d->number == number);
        CHECK(d->one_at_a_time || d->answer_bytes <= DIALECT_ANSWER_SMALL);
        CHECK(dialect_legacy(d->number) == d || dialect_named(d->name) == d);
        CHECK(d->poll_number == d->number || d->poll_number == DIALECT_VALUES);
    }
    CHECK(dialect_named("auto") == &dialect_undecided && dialect_named("values") == NULL);
}

/* ---- a refusal with a body, of which nobody knows whether the client reads it ---- */

enum { UNVERSIONED = 21, READS_NO_BODIES = 19 };

static const uint8_t bad_frame[8] = {3, 0, 0, 0, 1, 0, 0, 0}, ping[8] = {4, 0, 0, 0, 1, 0, 0, 0};

/* Its head is out, and tells of a body of 4 bytes. */
static memory_stream *refused_one(void) {
    open_net(LEVEL_WRITTEN);
    memory_stream *m = dial(dialect_legacy(UNVERSIONED), true, true);
    feed(m, bad_frame, 8, 8);
    await_output(m, 8);
    for (int i = 0; i < 10; i++) pump(m);
    CHECK_EQUAL(m->output_length, 8);
    CHECK_EQUAL(m->output[0], STATUS_INVALID_COMMAND);
    CHECK_EQUAL(m->output[4], 4);
    CHECK(m->c->state == CONN_HOLDING && !conn_may_be_told(m->c));
    conn_check_times(m->c);
    pump(m);
    CHECK_EQUAL(m->output_length, 8); /* it has just begun to wait */
    return m;
}

static void test_who_waits_for_the_body_of_a_refusal_gets_it(void) {
    memory_stream *m = refused_one();
    m->c->clocks.progress_us -= 1000000;
    conn_check_times(m->c);
    await_output(m, 12);
    CHECK(m->output[8] == 0 && m->output[11] == 0);
    feed(m, ping, 8, 3);
    await_output(m, 20);
    CHECK_EQUAL(m->c->dialect->number, UNVERSIONED);
    CHECK_EQUAL(k->counters.bytes_out, 20);
    hang_up(m);
    close_net();
}

static void test_who_asks_on_reads_no_bodies(void) {
    for (uint32_t step = 1; step <= 8; step++) {
        memory_stream *m = refused_one();
        feed(m, ping, 8, step);
        await_output(m, 16);
        CHECK_EQUAL(m->output[8], 0);
        CHECK_EQUAL(m->c->dialect->number, READS_NO_BODIES);
        feed(m, bad_frame, 8, step);
        await_output(m, 24);
        CHECK_EQUAL(m->output[20], 0); /* no body is told of any more */
        CHECK(m->c->state == CONN_RECEIVING);
        CHECK_EQUAL(k->counters.bytes_out, 24);
        hang_up(m);
        close_net();
    }
}

static void test_who_has_asked_on_before_the_refusal_reads_no_bodies(void) {
    open_net(LEVEL_WRITTEN);
    memory_stream *m = dial(dialect_legacy(UNVERSIONED), true, true);
    uint8_t both[16];
    memcpy(both, bad_frame, 8);
    memcpy(both + 8, ping, 8);
    feed(m, both, 16, 16);
    await_output(m, 16);
    CHECK_EQUAL(m->c->dialect->number, READS_NO_BODIES);
    hang_up(m);
    close_net();
}

static void test_a_stopping_server_holds_no_body_back(void) {
    memory_stream *m = refused_one();
    net_close_all(&n, STATUS_DISCONNECTED);
    await_output(m, 24); /* and says goodbye */
    CHECK_EQUAL(m->output[12], STATUS_DISCONNECTED);
    CHECK(m->c->closing);
    hang_up(m);
    close_net();
}

static void test_who_goes_instead_is_let_go(void) {
    memory_stream *m = refused_one();
    m->receiving = false;
    m->ended = true;
    conn_on_receive(m->c, 0, -1);
    for (int i = 0; i < 10 && !m->closed; i++) pump(m);
    CHECK(m->closed);
    CHECK_EQUAL(m->output_length, 8);
    free(m);
    close_net();
}

/* PING of 0.0.1: a length of 1 and a code of one byte. */
static void test_a_client_before_all_dialects_is_closed(void) {
    open_net(LEVEL_WRITTEN);
    static const uint8_t first[5] = {1, 0, 0, 0, 1};
    memory_stream *m = dial(&dialect_undecided, true, false);
    feed(m, first, 5, 5);
    for (int i = 0; i < 10; i++) pump(m);
    conn_check_times(m->c);
    CHECK(!m->c->closing); /* the rest may be on its way */
    m->c->clocks.progress_us -= 1000000;
    conn_check_times(m->c);
    CHECK(m->c->closing);
    CHECK_EQUAL(m->output_length, 0);
    hang_up(m);
    close_net();
}

/* ---- a listener whose clients may act as a user without a login ---- */

static const uint8_t send_head[8] = {104, 0, 0, 0, 101, 0, 0, 0};

/* Python is asked by the head alone; what it says decides what becomes of the rest. */
static void test_who_sends_without_a_login_is_asked_for_before_anything_is_taken(void) {
    for (int known = 0; known < 2; known++) {
        open_net(LEVEL_WRITTEN);
        memory_stream *m = dial(dialect_named("auto-unnamed"), true, false);
        uint8_t frames[8 + 100 + 8] = {0};
        memcpy(frames, send_head, 8);
        memcpy(frames + 108, ping, 8);
        feed(m, frames, 8, 3);
        for (int i = 0; i < 10; i++) pump(m);
        CHECK(m->c->dialect->number == DIALECT_UNNAMED && m->c->state == CONN_PYTHON && m->c->frame.asked_who);
        CHECK(m->output_length == 0 && k->events.count == 1);
        events_clear(&k->events);
        CHECK(conn_speak(m->c, known ? dialect_legacy(16) : &dialect_classic));
        if (known) conn_set_session(m->c, 7, true);
        conn_told_who(m->c);
        feed(m, frames + 8, known ? 100 : 108, 11);
        for (int i = 0; i < 10; i++) pump(m);
        if (known) { /* Python has the whole of it */
            CHECK(m->c->state == CONN_PYTHON && k->events.count == 1 && m->output_length == 0);
            CHECK_EQUAL(m->c->frame.head.length, 100);
            events_clear(&k->events);
        } else { /* 40, and the next request is found behind it */
            CHECK_EQUAL(m->output_length, 16);
            CHECK(m->output[0] == STATUS_UNAUTHENTICATED && m->output[8] == 0);
            CHECK_EQUAL(k->counters.frames, 2);
        }
        hang_up(m);
        close_net();
    }
}

int main(void) {
    RUN(test_a_client_before_all_dialects_is_closed);
    RUN(test_who_sends_without_a_login_is_asked_for_before_anything_is_taken);
    RUN(test_who_waits_for_the_body_of_a_refusal_gets_it);
    RUN(test_who_asks_on_reads_no_bodies);
    RUN(test_who_has_asked_on_before_the_refusal_reads_no_bodies);
    RUN(test_a_stopping_server_holds_no_body_back);
    RUN(test_who_goes_instead_is_let_go);
    RUN(test_the_first_bytes_decide_what_a_connection_speaks);
    RUN(test_a_dialect_with_long_heads_gets_room_when_it_is_decided);
    RUN(test_every_dialect_fits_the_room_that_it_gets);
    return check_report();
}
