/* See readiness.h. */
#include "io/readiness.h"

#include "base/assert.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define DESCRIPTORS_FIRST 64u

int readiness_open(readiness *r, io *i) {
    *r = (readiness){.descriptors = calloc(DESCRIPTORS_FIRST, sizeof *r->descriptors),
                     .descriptors_count = DESCRIPTORS_FIRST};
    if (r->descriptors == NULL) return -ENOMEM;
    for (uint16_t id = 0; id < BUFFERS_IN_ALL; id++) readiness_buffer_return(r, i, id);
    return 0;
}

void readiness_close(readiness *r) { free(r->descriptors); }

int readiness_make_room(readiness *r, int fd) {
    uint32_t count = r->descriptors_count;
    if ((uint32_t)fd < count) return 0;
    while (count <= (uint32_t)fd) count *= 2;
    descriptor_state *larger = realloc(r->descriptors, count * sizeof *larger);
    if (larger == NULL) return -ENOMEM;
    memset(larger + r->descriptors_count, 0, (count - r->descriptors_count) * sizeof *larger);
    r->descriptors = larger;
    r->descriptors_count = count;
    return 0;
}

descriptor_state *readiness_of(readiness *r, int fd) {
    ASSERT(fd >= 0 && (uint32_t)fd < r->descriptors_count);
    return &r->descriptors[fd];
}

void readiness_forget(readiness *r, int fd) {
    descriptor_state *d = readiness_of(r, fd);
    *d = (descriptor_state){.life = d->life + 1};
}

static void try_again(readiness *r, operation **place) {
    if (*place == NULL) return;
    io_queue_push(&r->tries, *place);
    *place = NULL;
}

void readiness_mark(readiness *r, int fd, uint32_t events) {
    descriptor_state *d = readiness_of(r, fd);
    if ((events & (POLLRDHUP | POLLHUP | POLLERR)) != 0) d->ended = true;
    if ((events & (POLLIN | POLLRDHUP | POLLHUP | POLLERR)) != 0) {
        d->no_input = false;
        try_again(r, &d->in);
    }
    if ((events & (POLLOUT | POLLHUP | POLLERR)) != 0) try_again(r, &d->out);
}

void readiness_fail(readiness *r, operation *op, int result) {
    op->verb = VERB_CANCELLED;
    op->result = result;
    io_queue_push(&r->tries, op);
}

bool readiness_receive(readiness *r, io *i, operation *op, completion *done) {
    *done = (completion){.op = op, .buffer = -1};
    void *data = op->data;
    if (op->verb == VERB_RECEIVE_PROVIDED) {
        buffer_set set = op->set;
        if (i->free_buffers[set] == 0) {
            done->result = -ENOBUFS;
            return true;
        }
        done->buffer = r->free_ids[(uint32_t)io_first_buffer(set) + i->free_buffers[set] - 1];
        data = io_buffer(i, done->buffer);
    }
    ssize_t got;
    do got = recv(op->fd, data, op->length, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    int error = errno;
    descriptor_state *d = readiness_of(r, op->fd);
    if (got < 0 && error == EAGAIN) {
        d->no_input = true;
        return false;
    }
    if (got > 0 && (size_t)got < op->length && !d->ended) d->no_input = true;
    if (got > 0 && done->buffer >= 0) i->free_buffers[op->set]--;
    else done->buffer = -1;
    done->result = got < 0 ? -error : (int)got;
    return true;
}

void readiness_buffer_return(readiness *r, io *i, int32_t id) {
    buffer_set set = io_buffer_set(id);
    ASSERT(id >= 0 && id < (int32_t)BUFFERS_IN_ALL && i->free_buffers[set] < io_buffers_count(set));
    r->free_ids[(uint32_t)io_first_buffer(set) + i->free_buffers[set]++] = (uint16_t)id;
}
