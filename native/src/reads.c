/* Poll jobs: the windows of one answer are read, verified and sent one after the other.
 *
 * A window is at most POLL_WINDOW_BYTES (or one larger record), so a slow reader holds a window and not a reply. Cached
 * pages are read at once (RWF_NOWAIT); only what must come from the device goes through the ring. Every record is
 * verified before it is sent: the index led here, but it is no evidence. Damage in the first window shortens the answer
 * (or gives 4027); damage behind it closes the connection, and the next poll ends before the damaged record. */
#include "engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

static void job_free(read_job *job) {
    engine *e = job->e;
    if (job->wait.queued) engine_unwait(e, &job->wait);
    if (job->block != NULL) pool_free(e->pool, job->block);
    partition_cursor_end(&job->cursor);
    owned_release(job->target);
    if (job->to.c != NULL) {
        job->to.c->job = NULL;
        if (job->to.c->closing) conn_ready(job->to.c);
    }
    if (job->next != NULL) job->next->previous = job->previous;
    if (job->previous != NULL) job->previous->next = job->next;
    else e->jobs = job->next;
    free(job);
}

static void put_poll_head(read_job *job, uint8_t *at) {
    uint32_t length = (uint32_t)(16 + job->cursor.total_bytes), count = (uint32_t)job->cursor.total_count;
    uint32_t partition = (uint32_t)(job->target->ns & 0xFFFFF);
    memset(at, 0, 4);
    memcpy(at + 4, &length, 4);
    memcpy(at + 8, &partition, 4);
    memcpy(at + 12, &job->cursor.current_offset, 8);
    memcpy(at + 20, &count, 4);
}

static void answer_status(read_job *job, uint32_t status) {
    engine *e = job->e;
    requester to = job->to;
    if (to.c != NULL) to.c->job = NULL;
    job->to.c = NULL;
    bool abandoned = job->abandoned;
    job_free(job);
    if (abandoned) {
        if (to.c != NULL) conn_ready(to.c);
        return;
    }
    if (to.c != NULL) conn_reply_status(to.c, status);
    else forward_answer_status(e, &to, status, 0);
}

/* The stored offset moves before the last bytes of the answer leave (iggy-protocol 5.2). */
static uint32_t commit_offset(read_job *job) {
    if (!job->auto_commit || job->cursor.total_count == 0) return 0;
    sync_mark_dirty(job->target);
    return partition_offset_store(job->target->p, job->consumer_kind, job->consumer_id, job->cursor.last_offset);
}

/* A part of the answer may be out already: the only honest end is to close. */
static void break_off(read_job *job) {
    if (job->to.c != NULL) {
        conn_close(job->to.c); /* abandons the job */
    } else {
        forward_answer_status(job->e, &job->to, 0, LINK_FLAG_BROKEN);
        job_free(job);
    }
}

static void fail(read_job *job, uint32_t status) {
    if (job->first_window) answer_status(job, status);
    else break_off(job);
}

static void send_window(read_job *job) {
    size_t bytes = job->head_bytes + job->have;
    bool more = job->cursor.remaining > 0;
    job->e->counters.messages_out += job->window.count;
    uint32_t status = more ? 0 : commit_offset(job);
    if (status != 0) {
        fail(job, status);
        return;
    }
    job->first_window = false;
    conn *c = job->to.c;
    if (c == NULL) {
        forward_answer_window(job, bytes, more);
    } else if (more) {
        conn_reply_bytes(c, job->block, bytes);
    } else { /* the connection keeps the last window; the job is done */
        execute_group_polled(c, job->cursor.total_count, job->cursor.last_offset);
        c->out_block = job->block;
        job->block = NULL;
        job_free(job);
        conn_reply_bytes(c, c->out_block, bytes);
    }
}

static bool start_poll(read_job *job, uint32_t *status) {
    *status = partition_poll(job->target->p, job->strategy, job->value, job->count, job->consumer_kind,
                             job->consumer_id, &job->cursor);
    return *status == 0;
}

static void next_window(read_job *job);

/* The record behind the good ones failed its check. */
static void damaged(read_job *job, uint64_t offset) {
    engine *e = job->e;
    e->counters.damaged++;
    partition_mark_damaged(job->target->p, offset);
    engine_event(e, EVENT_DAMAGE, job->target->ns)->number = offset;
    if (!job->first_window) {
        break_off(job);
        return;
    }
    uint64_t first = job->window.first_offset;
    partition_cursor_end(&job->cursor);
    memset(&job->cursor, 0, sizeof job->cursor);
    uint32_t status;
    if (offset == first) answer_status(job, STATUS_BAD_CHECKSUM);
    else if (!start_poll(job, &status)) answer_status(job, status);
    else next_window(job); /* now ends before the damaged record */
}

static void window_read(read_job *job) {
    uint64_t good_bytes;
    uint32_t good = record_verify(job->block + job->head_bytes, job->have, job->window.first_offset, job->window.count,
                                  &good_bytes);
    if (good < job->window.count) damaged(job, job->window.first_offset + good);
    else send_window(job);
}

static void read_more(read_job *job) {
    engine *e = job->e;
    struct iovec part = {job->block + job->head_bytes + job->have, job->window.length - job->have};
    while (part.iov_len > 0) {
        off_t position = (off_t)(job->window.position + job->have);
        ssize_t got = preadv2(job->window.fd, &part, 1, position, RWF_NOWAIT);
        if (got < 0 && errno == EOPNOTSUPP)
            got = preadv(job->window.fd, &part, 1, position); /* tmpfs: always in memory */
        if (got <= 0) break;
        job->have += (size_t)got;
        part.iov_base = (uint8_t *)part.iov_base + got;
        part.iov_len -= (size_t)got;
    }
    if (part.iov_len == 0) {
        e->counters.reads_cached++;
        window_read(job);
        return;
    }
    e->counters.reads_ring++;
    io_read(&e->io, &job->operation, job->window.fd, part.iov_base, (uint32_t)part.iov_len,
            job->window.position + job->have);
    job->reading = true;
}

void reads_on_read(read_job *job, int result) {
    job->reading = false;
    if (job->abandoned) {
        job_free(job);
        return;
    }
    if (result > 0) job->have += (size_t)result;
    if (result > 0 && job->have == job->window.length) window_read(job);
    else if (result > 0 || result == -EINTR || result == -EAGAIN) read_more(job);
    else if (result == 0) damaged(job, job->window.first_offset); /* the file is shorter than its index says */
    else fail(job, STATUS_CANNOT_READ);
}

static bool retry_window(waiter *w);

static bool ensure_room(read_job *job) {
    size_t wanted = job->head_bytes + job->window.length;
    if (job->block_size >= wanted) return true;
    if (job->block != NULL) pool_free(job->e->pool, job->block);
    job->block = engine_allocate(job->e, wanted, false);
    job->block_size = job->block != NULL ? pool_block_size(job->e->pool, job->block) : 0;
    return job->block != NULL;
}

static void window_known(read_job *job) {
    if (!ensure_room(job)) {
        engine_wait(job->e, &job->wait, retry_window);
        return;
    }
    job->have = 0;
    if (job->head_bytes > 0) put_poll_head(job, job->block);
    if (job->window.length == 0) send_window(job);
    else read_more(job);
}

static bool retry_window(waiter *w) {
    read_job *job = (read_job *)w;
    if (!ensure_room(job)) return false;
    window_known(job);
    return true;
}

static void next_window(read_job *job) {
    uint32_t status = 0;
    job->head_bytes = job->first_window ? POLL_HEAD_BYTES : 0;
    memset(&job->window, 0, sizeof job->window);
    bool any = partition_cursor_next(&job->cursor, POLL_WINDOW_BYTES - POLL_HEAD_BYTES, &job->window, &status);
    if (status != 0) {
        fail(job, status);
    } else if (any || job->first_window) {
        window_known(job);
    } else { /* a remote job whose last window was sent */
        assert(job->to.c == NULL);
        job_free(job);
    }
}

void reads_next_window(read_job *job) { next_window(job); }

void reads_start(engine *e, owned *target, const requester *to, uint8_t strategy, uint64_t value, uint32_t count,
                 uint8_t consumer_kind, uint32_t consumer_id, bool auto_commit) {
    read_job *job = calloc(1, sizeof *job);
    if (job == NULL) abort();
    job->e = e;
    job->operation = (operation){OPERATION_READ, job};
    job->target = target;
    target->references++;
    job->to = *to;
    job->strategy = strategy;
    job->value = value;
    job->count = count;
    job->consumer_kind = consumer_kind;
    job->consumer_id = consumer_id;
    job->auto_commit = auto_commit;
    job->first_window = true;
    job->handle = ++e->next_handle;
    job->next = e->jobs;
    if (job->next != NULL) job->next->previous = job;
    e->jobs = job;
    if (to->c != NULL) to->c->job = job;
    uint32_t status;
    if (start_poll(job, &status)) next_window(job);
    else answer_status(job, status);
}

void reads_abandon(read_job *job) {
    job->abandoned = true;
    if (!job->reading) job_free(job);
}
