/* The dialect of Apache Iggy 0.9: batches against recorded ones, numbers of requests, and frames over connections,
 * byte by byte and cut anywhere. */
#include "test_iggy09_support.h"

#define TIMESTAMP 0x000660c019c3dd5aull
#define FAR (41 + (uint64_t)UINT32_MAX)

/* In steps of about `step` bytes. 0, or the status that refuses it. */
static uint32_t unpack(const uint8_t *payload, size_t length, const iggy09_send *s, uint8_t *to, size_t step) {
    iggy09_unpacking u;
    uint32_t status = 0, steps = 0;
    iggy09_unpack_begin(&u, payload, length, s, to);
    while (!iggy09_unpack_part(&u, step, &status)) CHECK(steps++ < s->count);
    return status;
}

static uint32_t check(const uint8_t *payload, size_t length) {
    iggy09_send s;
    uint32_t status = iggy09_send_read(payload, length, &s);
    if (status != 0) return status;
    uint8_t *to = malloc(s.metadata_bytes + s.records_bytes);
    status = unpack(payload, length, &s, to, SIZE_MAX);
    free(to);
    return status;
}

/* All of it, in parts that have so much room. 0: the records are no records. */
static size_t pack(uint32_t partition, const uint8_t *records, size_t length, bool alone, uint8_t *to, size_t room) {
    iggy09_packing p = {.at = records, .end = records + length, .partition = partition, .alone = alone};
    size_t done = 0;
    while (p.at < p.end) {
        iggy09_part part;
        if (!iggy09_pack(&p, to + done, room, &part)) return 0;
        CHECK(part.length > 0 && part.length <= room);
        done += part.length;
        if (part.direct_length > 0) memcpy(to + done, part.direct, part.direct_length);
        done += part.direct_length;
    }
    return done;
}

static void test_a_recorded_batch_becomes_records_and_the_recorded_answer(void) {
    uint8_t payload[512], answer[512], records[512], batches[512];
    size_t length = bytes_of(recorded_send, payload), polled = bytes_of(recorded_poll, answer);
    CHECK_EQUAL(length, 405);
    CHECK_EQUAL(polled, 391);
    iggy09_send s;
    CHECK_EQUAL(iggy09_send_read(payload, length, &s), 0);
    CHECK_EQUAL(s.count, 2);
    CHECK_EQUAL(unpack(payload, length, &s, records, 1), 0);
    size_t size = s.metadata_bytes + s.records_bytes;
    CHECK_EQUAL(unpack(payload, length, &s, payload + length - size, SIZE_MAX), 0); /* in place */
    CHECK(memcmp(payload + length - size, records, size) == 0);
    send_request q;
    CHECK_EQUAL(iggy09_send_request(records, size, &q), 0);
    CHECK(q.messages_length == s.records_bytes && q.count == 2 && q.partitioning == PARTITIONING_PARTITION_ID);
    id_source ids;
    index_entry entries[2];
    id_source_seed_fixed(&ids, 1);
    batch_assign(q.messages, q.messages_length, q.count, 0, TIMESTAMP, 0, 0, &ids, entries);
    CHECK_EQUAL(entries[1].end_position, s.records_bytes);
    CHECK_EQUAL(iggy09_batches_bytes(q.messages, q.messages_length, false), 375);
    CHECK_EQUAL(pack(0, q.messages, q.messages_length, false, batches, sizeof batches), 375);
    iggy09_put_polled(records, &(poll_summary){.current_offset = 1, .total_count = 2});
    CHECK(memcmp(records, answer, 16) == 0 && memcmp(batches, answer + 16, 375) == 0);
}

static void test_every_changed_byte_of_a_batch_is_refused(void) {
    uint8_t good[512], *payload = malloc(405);
    size_t length = bytes_of(recorded_send, good), batch = 4 + 26;
    for (size_t at = batch; at < length; at++) {
        if (at - batch >= 8 && at - batch < 16) continue; /* offset: any, the checksum says so, too */
        memcpy(payload, good, length);
        payload[at] ^= 0x41;
        uint32_t status = check(payload, length);
        CHECK(status == STATUS_INVALID_COMMAND || status == STATUS_INVALID_MESSAGE_CHECKSUM ||
              status == STATUS_INVALID_BATCH_CHECKSUM || status == STATUS_TOO_BIG_MESSAGE_PAYLOAD ||
              status == STATUS_TOO_BIG_USER_HEADERS);
    }
    for (size_t cut = 0; cut < length; cut++) {
        uint8_t *part = malloc(cut + 1);
        memcpy(part, good, cut);
        CHECK(check(part, cut) != 0);
        free(part);
    }
    free(payload);
}

static size_t put_stored(uint8_t *at, uint64_t offset, uint64_t timestamp, uint64_t origin, uint32_t size) {
    memset(at, 0, RECORD_HEADER_SIZE);
    put_u64(at + 8, offset + 1);
    put_u64(at + 24, offset);
    put_u64(at + 32, timestamp);
    put_u64(at + 40, origin);
    put_u32(at + 52, size);
    memset(at + RECORD_HEADER_SIZE, (int)offset, size);
    return RECORD_HEADER_SIZE + size;
}

/* One batch for neighbours; a new one for another timestamp, a gap, or an origin too far away. */
static void test_records_that_do_not_belong_together_get_batches_of_their_own(void) {
    static const struct {
        uint64_t offset, timestamp, origin;
        bool begins;
    } rows[] = {{0, 10, 50, true},  {1, 10, 40, false}, {2, 10, FAR, true},        {3, 11, FAR, true},
                {5, 11, FAR, true}, {6, 11, 0, true},   {7, 11, UINT32_MAX, false}};
    uint8_t records[1024], out[4096];
    size_t length = 0, count = sizeof rows / sizeof rows[0], begins = 0;
    for (size_t i = 0; i < count; i++) {
        length += put_stored(records + length, rows[i].offset, rows[i].timestamp, rows[i].origin, (uint32_t)i);
        begins += rows[i].begins;
    }
    size_t bytes = iggy09_batches_bytes(records, length, false);
    CHECK_EQUAL(bytes, length - 16 * count + 256 * begins);
    CHECK_EQUAL(pack(3, records, length, false, out, sizeof out), bytes);
    CHECK_EQUAL(load_u64(out + 24), 40); /* the smallest origin */
    CHECK_EQUAL(load_u32(out + 256 + 28), 10);
    CHECK_EQUAL(iggy09_batches_bytes(records, length, true), length + 240 * count);
    poll_summary whole = {.total_bytes = length, .total_count = count};
    CHECK_EQUAL(iggy09_batches_alone(&whole), length + 240 * count);
    CHECK_EQUAL(pack(3, records, length - 1, false, out, sizeof out), 0);
    CHECK_EQUAL(iggy09_batches_bytes(records, length - 1, false), 0);
}

static uint64_t frames_digest(const uint8_t *batch) {
    const uint8_t *at = batch + IGGY09_BATCH_HEAD, *end = batch + load_u64(batch + 32);
    uint8_t *sums = malloc(44 + 8ull * load_u32(batch + 48));
    size_t length = 44;
    memcpy(sums, batch, 40);
    memcpy(sums + 40, batch + 48, 4);
    for (; at < end; length += 8) {
        uint64_t size = IGGY09_FRAME_HEAD + (uint64_t)load_u32(at + 32) + load_u32(at + 36);
        CHECK_EQUAL(load_u64(at), XXH3_64bits(at + 8, size - 8));
        memcpy(sums + length, at, 8);
        at += size;
    }
    uint64_t digest = XXH3_64bits(sums, length);
    free(sums);
    return digest;
}

/* Records of every size, in as little room as may be: what leaves in parts is what was announced, batch by batch right
 * in its checksums, none of several above the bound. */
static void test_parts_are_the_batches_that_were_announced(void) {
    static const uint32_t sizes[] = {0, 1, 100, 3000, IGGY09_DIRECT_BYTES - 48, IGGY09_DIRECT_BYTES, 90000, 300000};
    enum { RECORDS = 600, BYTES = 12 << 20 };
    uint8_t *records = malloc(BYTES), *out = malloc(BYTES);
    for (int alone = 0; alone < 2; alone++) {
        size_t length = 0, done = 0, count = 0;
        for (uint32_t i = 0; i < RECORDS; i++) {
            uint32_t size = i % 9 == 8 ? sizes[i / 9 % 8] : i % 5;
            length += put_stored(records + length, i, 7 + i / 200, 50, size);
        }
        size_t bytes = iggy09_batches_bytes(records, length, alone == 1);
        CHECK(bytes > 0 && bytes <= BYTES && bytes <= IGGY09_PACKED_MAX(length));
        CHECK_EQUAL(pack(3, records, length, alone == 1, out, IGGY09_PART_BYTES), bytes);
        for (; done < bytes; done += load_u64(out + done + 32)) {
            uint32_t several = load_u32(out + done + 48);
            CHECK_EQUAL(load_u64(out + done + 8), count);
            CHECK_EQUAL(load_u64(out + done + 40), frames_digest(out + done));
            CHECK(several == 1 || (alone == 0 && load_u64(out + done + 32) <= IGGY09_PART_BYTES));
            count += several;
        }
        CHECK(done == bytes && count == RECORDS);
    }
    free(records);
    free(out);
}

static const dialect *chosen(const uint8_t *first) { return dialect_undecided.choose(first); }

/* PING, SEND and POLL as recorded, in pieces of every size: the answers are the same bytes. */
static void test_recorded_frames_are_answered_however_they_are_cut(void) {
    for (uint32_t step = 1; step < 1400; step += step < 60 ? 1 : 97) {
        open_net(LEVEL_WRITTEN);
        memory_stream *m = dial(&dialect_undecided, true, true);
        uint8_t frames[2048], body[512];
        size_t length = put_frame(frames, IGGY09_NON_REPLICATED, 1, 1, NULL, 0);
        feed(m, frames, length, step);
        await_output(m, 256);
        CHECK(m->c->dialect == &dialect_iggy09 && chosen(frames) == &dialect_iggy09);
        open_orders(m);
        length = put_frame(frames, IGGY09_SEND, 0, 1, body, bytes_of(recorded_send, body));
        length += put_poll(frames + length, 10);
        feed(m, frames, length, step);
        await_output(m, 256 + 256 + 256 + 391);
        const uint8_t *sent = m->output + 256, *polled = m->output + 512;
        CHECK(load_u32(sent + 48) == 256 && sent[60] == 8 && sent[208] == IGGY09_SEND && load_u32(sent + 216) == 0);
        CHECK(sent[160] == 0x77 && load_u64(sent + 200) == 1);
        CHECK(load_u32(polled + 48) == 256 + 391 && polled[208] == 2 && load_u64(polled + 200) == 2);
        uint8_t wanted[512];
        bytes_of(recorded_poll, wanted);
        memcpy(wanted + 16 + 16, polled + 256 + 32, 8); /* the timestamp, and with it the checksum */
        memcpy(wanted + 16 + 40, polled + 256 + 56, 8);
        CHECK(memcmp(polled + 256, wanted, 391) == 0);
        hang_up(m);
        close_net();
    }
}

static uint32_t status_of(memory_stream *m, const uint8_t *frame, size_t length) {
    size_t before = m->output_length;
    feed(m, frame, length, 100);
    for (int i = 0; i < 100 && m->output_length < before + 256; i++) pump(m);
    const uint8_t *answer = m->output + before;
    if (m->output_length < before + 256) return 0xDEAD;
    return answer[60] == 13 ? IGGY09_EVICTION(answer[255]) : load_u32(answer + 216);
}

static void test_a_number_is_carried_out_once(void) {
    open_net(LEVEL_WRITTEN);
    memory_stream *m = dial(&dialect_iggy09, true, true);
    uint8_t frame[1024], body[512];
    size_t size = bytes_of(recorded_send, body), length = put_frame(frame, IGGY09_SEND, 0, 5, body, size);
    open_orders(m);
    CHECK_EQUAL(status_of(m, frame, length), 0);
    CHECK_EQUAL(status_of(m, frame, length), 0);
    CHECK(memcmp(m->output, m->output + 256, 256) == 0);
    partition *p = core_owned(k, NS_HERE)->p;
    CHECK_EQUAL(partition_next_offset(p), 2);
    put_u64(frame + 168, 4);
    CHECK_EQUAL(status_of(m, frame, length), STATUS_REQUEST_ALREADY_APPLIED);
    put_u64(frame + 168, 5);
    frame[176] = IGGY09_STORE;
    CHECK_EQUAL(status_of(m, frame, length), STATUS_INVALID_FORMAT);
    frame[176] = IGGY09_SEND;
    put_u64(frame + 168, 7); /* gaps are allowed */
    CHECK_EQUAL(status_of(m, frame, length), 0);
    CHECK_EQUAL(partition_next_offset(p), 4);
    put_u64(frame + 168, 8);
    put_u64(frame + 184, 8);
    CHECK_EQUAL(status_of(m, frame, length), IGGY09_EVICTION(IGGY09_SESSION_TOO_LOW));
    put_u64(frame + 184, 10);
    CHECK_EQUAL(status_of(m, frame, length), STATUS_INVALID_SESSION);
    put_u64(frame + 184, 0);
    CHECK_EQUAL(status_of(m, frame, length), STATUS_INVALID_COMMAND);
    put_u64(frame + 184, 9);
    frame[144] = 1; /* a checksum that is wrong */
    CHECK_EQUAL(status_of(m, frame, length), STATUS_INVALID_FORMAT);
    frame[144] = frame[128] = 0;
    CHECK_EQUAL(status_of(m, frame, length), STATUS_INVALID_COMMAND);
    CHECK_EQUAL(partition_next_offset(p), 4);
    hang_up(m);
    close_net();
}

/* Of a connection that is closed, for the next one of its client. */
static void test_the_last_answer_outlives_its_connection(void) {
    open_net(LEVEL_WRITTEN);
    partition *p = core_owned(k, NS_HERE)->p;
    memory_stream *m = dial(&dialect_undecided, true, true);
    uint8_t frame[1024], body[512], kept[IGGY09_MEMORY_MAX];
    size_t size = bytes_of(recorded_send, body), length = put_frame(frame, IGGY09_NON_REPLICATED, 1, 0, NULL, 0);
    CHECK_EQUAL(status_of(m, frame, length), 0);
    open_orders(m);
    CHECK_EQUAL(iggy09_pack_memory(&m->c->large->memory, kept), 0); /* no number was used */
    length = put_frame(frame, IGGY09_SEND, 0, 7, body, size);
    CHECK_EQUAL(status_of(m, frame, length), 0);
    uint64_t after = partition_next_offset(p);
    CHECK(after > 0);
    events_clear(&k->events);
    hang_up(m);
    const event *v = NULL;
    for (uint32_t i = 0; i < k->events.count; i++)
        if (k->events.list[i].kind == EVENT_CLOSED) v = &k->events.list[i];
    REQUIRE(v != NULL && v->data_length > 0 && v->data_length <= sizeof kept);
    memcpy(kept, v->data, size = v->data_length);
    for (uint64_t session = 10; session < 13; session++) {
        m = dial(&dialect_undecided, true, true);
        CHECK_EQUAL(status_of(m, frame, put_frame(frame, IGGY09_NON_REPLICATED, 1, 0, NULL, 0)), 0);
        CHECK(iggy09_unpack_memory(&m->c->large->memory, kept, size));
        m->c->large->memory.session = session;
        length = put_frame(frame, IGGY09_SEND, 0, 7, body, bytes_of(recorded_send, body));
        put_u64(frame + 184, session);
        CHECK_EQUAL(status_of(m, frame, length), 0);
        put_u64(frame + 168, 6);
        CHECK_EQUAL(status_of(m, frame, length), STATUS_REQUEST_ALREADY_APPLIED);
        hang_up(m);
    }
    CHECK_EQUAL(partition_next_offset(p), after); /* it was stored once */
    close_net();
}

/* They come from another process. */
static void test_bytes_that_no_session_has_packed_are_refused(void) {
    iggy09_memory m = {.session = 1, .request = 2, .operation = 128, .answered = true, .answer_length = 300}, got;
    uint8_t packed[IGGY09_MEMORY_MAX + 1] = {0};
    memset(m.answer, 7, sizeof m.answer);
    size_t length = iggy09_pack_memory(&m, packed);
    CHECK_EQUAL(length, sizeof m - IGGY09_KEPT_MAX + 300);
    REQUIRE(iggy09_unpack_memory(&got, packed, length));
    CHECK(memcmp(&got, &m, length) == 0 && got.answer[300] == 0);
    for (size_t other = 0; other <= sizeof packed; other++)
        CHECK(iggy09_unpack_memory(&got, packed, other) == (other == length));
    for (size_t at = 0; at < sizeof m - IGGY09_KEPT_MAX; at++)
        for (unsigned value = 0; value < 256; value++) {
            uint8_t changed[IGGY09_MEMORY_MAX];
            memcpy(changed, packed, length);
            changed[at] = (uint8_t)value;
            if (iggy09_unpack_memory(&got, changed, length)) CHECK(got.answer_length <= IGGY09_KEPT_MAX);
        }
    m.answered = false;
    m.answer_length = 0;
    length = iggy09_pack_memory(&m, packed);
    CHECK(length == sizeof m - IGGY09_KEPT_MAX && iggy09_unpack_memory(&got, packed, length) && !got.answered);
}

static void test_without_a_login_changes_are_evicted(void) {
    open_net(LEVEL_WRITTEN);
    memory_stream *m = dial(&dialect_undecided, true, false);
    uint8_t frame[1024], body[512];
    size_t size = bytes_of(recorded_send, body);
    CHECK_EQUAL(status_of(m, frame, put_frame(frame, IGGY09_SEND, 0, 1, body, size)),
                IGGY09_EVICTION(IGGY09_NO_SESSION));
    CHECK_EQUAL(status_of(m, frame, put_frame(frame, IGGY09_NON_REPLICATED, 1, 0, NULL, 0)), 0);
    hang_up(m);
    close_net();
}

/* Nothing is known to follow it. */
static void test_what_is_no_request_ends_the_connection(void) {
    static const struct {
        size_t at;
        uint32_t value;
    } wrong[] = {{60, 8}, {60, 0}, {48, 255}, {48, 0}, {48, (64u << 20) + 1}, {48, UINT32_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        open_net(LEVEL_WRITTEN);
        memory_stream *m = dial(&dialect_undecided, true, true);
        uint8_t frame[256];
        put_frame(frame, IGGY09_NON_REPLICATED, 1, 1, NULL, 0);
        if (wrong[i].at == 60) frame[60] = (uint8_t)wrong[i].value;
        else put_u32(frame + wrong[i].at, wrong[i].value);
        CHECK_EQUAL(status_of(m, frame, 256), STATUS_INVALID_COMMAND);
        for (int turns = 0; turns < 100 && m->c->state != CONN_LINGERING; turns++) pump(m);
        CHECK(m->c->state == CONN_LINGERING);
        hang_up(m);
        close_net();
    }
}

/* No frame of one is taken for the other's: eight zeros are no classic head, and nothing else is of 0.9. */
static void test_first_bytes_are_ambiguous_for_nobody(void) {
    uint8_t first[8];
    uint64_t seed = 88172645463325252ull;
    for (int i = 0; i < 1000000; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        uint64_t value = i % 2 == 0 ? seed : seed >> (seed % 64);
        memcpy(first, &value, 8);
        frame_head head;
        bool classic = dialect_classic.read_head(first, &head);
        CHECK(!(classic && chosen(first) == &dialect_iggy09));
        CHECK((value == 0) == (chosen(first) == &dialect_iggy09));
    }
}

int main(void) {
    RUN(test_a_recorded_batch_becomes_records_and_the_recorded_answer);
    RUN(test_every_changed_byte_of_a_batch_is_refused);
    RUN(test_records_that_do_not_belong_together_get_batches_of_their_own);
    RUN(test_parts_are_the_batches_that_were_announced);
    RUN(test_recorded_frames_are_answered_however_they_are_cut);
    RUN(test_a_number_is_carried_out_once);
    RUN(test_the_last_answer_outlives_its_connection);
    RUN(test_bytes_that_no_session_has_packed_are_refused);
    RUN(test_without_a_login_changes_are_evicted);
    RUN(test_what_is_no_request_ends_the_connection);
    RUN(test_first_bytes_are_ambiguous_for_nobody);
    return check_report();
}
