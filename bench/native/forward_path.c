/* forward_path MODE [--requests N] [--depth N] [--cpus A,B]: cost of reaching another pinned process.
 *
 *   ring   128-byte descriptors through single-producer single-consumer rings in shared memory, one for each direction;
 *          who finds its ring empty says so in a flag and sleeps in its eventfd, who sees the flag rings the doorbell
 *   spin   the same, but looks for up to 20 us before it sleeps
 *   pass   a TCP socket with 256 bytes of state goes over in one SCM_RIGHTS datagram and comes back in another
 *
 * --depth requests are kept in flight (rings only). Prints one JSON line: microseconds and CPU of both per request. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire.h"

enum { DESCRIPTOR_BYTES = 128, SLOTS = 256, SPIN_NS = 20000, STATE_BYTES = 256, GIVE_UP_S = 120 };

typedef struct channel { /* one direction; the counters are on cache lines of their own */
    _Alignas(64) _Atomic uint32_t head;
    _Alignas(64) _Atomic uint32_t tail;
    _Alignas(64) _Atomic uint32_t sleeping; /* of the consumer */
    _Alignas(64) uint8_t slots[SLOTS][DESCRIPTOR_BYTES];
} channel;

typedef struct shared {
    channel there, back;
    _Atomic uint64_t child_cpu_us;
} shared;

typedef struct end { /* one process's view */
    channel *in, *out;
    int in_bell, out_bell;
    uint64_t spin_ns;
} end;

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "forward_path: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t cpu_us(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    uint64_t seconds = (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec);
    return seconds * 1000000u + (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
}

static void put(end *e, const uint8_t *descriptor) {
    channel *c = e->out;
    uint32_t tail = atomic_load_explicit(&c->tail, memory_order_relaxed);
    memcpy(c->slots[tail % SLOTS], descriptor, DESCRIPTOR_BYTES); /* depth is below SLOTS: there is room */
    /* Sequentially consistent: either the consumer sees the new tail before it sleeps, or we see that it sleeps. */
    atomic_store(&c->tail, tail + 1);
    uint64_t one = 1;
    if (atomic_load(&c->sleeping) != 0 && atomic_exchange(&c->sleeping, 0) != 0 && write(e->out_bell, &one, 8) != 8)
        fail("doorbell");
}

static bool is_empty(channel *c) {
    return atomic_load_explicit(&c->head, memory_order_relaxed) == atomic_load_explicit(&c->tail, memory_order_acquire);
}

static void wait_for_some(end *e) {
    channel *c = e->in;
    if (e->spin_ns > 0) {
        uint64_t until = now_ns() + e->spin_ns;
        while (now_ns() < until)
            for (int i = 0; i < 64; i++)
                if (!is_empty(c)) return;
    }
    while (is_empty(c)) {
        uint64_t rings;
        atomic_store(&c->sleeping, 1);
        if (atomic_load(&c->tail) != atomic_load(&c->head)) {
            atomic_store(&c->sleeping, 0);
            return;
        }
        if (read(e->in_bell, &rings, 8) != 8) fail("eventfd");
    }
}

static void take(end *e, uint8_t *descriptor) {
    wait_for_some(e);
    uint32_t head = atomic_load_explicit(&e->in->head, memory_order_relaxed);
    memcpy(descriptor, e->in->slots[head % SLOTS], DESCRIPTOR_BYTES);
    atomic_store_explicit(&e->in->head, head + 1, memory_order_release);
}

static void ring_serve(end *e, uint64_t requests) {
    uint8_t descriptor[DESCRIPTOR_BYTES];
    for (uint64_t i = 0; i < requests; i++) {
        take(e, descriptor);
        put(e, descriptor);
    }
}

static void ring_ask(end *e, uint64_t requests, uint64_t depth) {
    uint8_t descriptor[DESCRIPTOR_BYTES] = {0};
    uint64_t sent = 0;
    for (uint64_t received = 0; received < requests; received++) {
        for (; sent < requests && sent - received < depth; sent++) {
            put_u64(descriptor, sent);
            put(e, descriptor);
        }
        take(e, descriptor);
        if (get_u64(descriptor) != received) {
            errno = EPROTO;
            fail("answer out of order");
        }
    }
}

static void pass_descriptor(int over, int fd) {
    uint8_t state[STATE_BYTES] = {1};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {.iov_base = state, .iov_len = sizeof state};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&m);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(over, &m, MSG_NOSIGNAL) != STATE_BYTES) fail("sendmsg");
    close(fd);
}

static int receive_descriptor(int over) {
    uint8_t state[STATE_BYTES];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {.iov_base = state, .iov_len = sizeof state};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd;
    if (recvmsg(over, &m, MSG_CMSG_CLOEXEC) != STATE_BYTES || CMSG_FIRSTHDR(&m) == NULL) fail("recvmsg");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

static void pass_ask(int over, uint64_t requests) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail("socket");
    for (uint64_t i = 0; i < requests; i++) {
        pass_descriptor(over, fd);
        fd = receive_descriptor(over);
    }
    close(fd);
}

static void pass_serve(int over, uint64_t requests) {
    for (uint64_t i = 0; i < requests; i++) pass_descriptor(over, receive_descriptor(over));
}

int main(int argc, char **argv) {
    uint64_t requests = 100000, depth = 1;
    int cpus[2] = {0, 1}, pair[2];
    const char *mode = argc > 1 ? argv[1] : "";
    bool rings = strcmp(mode, "ring") == 0 || strcmp(mode, "spin") == 0, bad = !rings && strcmp(mode, "pass") != 0;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--requests") == 0) requests = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--depth") == 0) depth = strtoull(argv[i + 1], NULL, 10);
        else bad |= strcmp(argv[i], "--cpus") != 0 || sscanf(argv[i + 1], "%d,%d", &cpus[0], &cpus[1]) != 2;
    }
    if (bad || requests < 1 || depth < 1 || depth > SLOTS || (!rings && depth != 1)) {
        fprintf(stderr, "usage: forward_path ring|spin|pass [--requests N] [--depth 1..%d] [--cpus A,B]\n", SLOTS);
        return 2;
    }
    alarm(GIVE_UP_S); /* a lost wake-up must not hang the caller */
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int here_bell = eventfd(0, EFD_CLOEXEC), there_bell = eventfd(0, EFD_CLOEXEC);
    bool made = socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) == 0;
    if (!made || s == MAP_FAILED || here_bell < 0 || there_bell < 0) fail("set-up");
    uint64_t spin_ns = strcmp(mode, "spin") == 0 ? SPIN_NS : 0;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(cpus[1]);
        end e = {.in = &s->there, .out = &s->back, .in_bell = there_bell, .out_bell = here_bell, .spin_ns = spin_ns};
        if (rings) ring_serve(&e, requests);
        else pass_serve(pair[1], requests);
        atomic_store(&s->child_cpu_us, cpu_us());
        _exit(0);
    }
    pin(cpus[0]);
    uint64_t cpu_before = cpu_us(), started = now_ns();
    end e = {.in = &s->back, .out = &s->there, .in_bell = here_bell, .out_bell = there_bell, .spin_ns = spin_ns};
    if (rings) ring_ask(&e, requests, depth);
    else pass_ask(pair[0], requests);
    double us = (double)(now_ns() - started) / 1e3;
    uint64_t cpu = cpu_us() - cpu_before;
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) fail("child");
    cpu += atomic_load(&s->child_cpu_us);
    printf("{\"way\": \"%s\", \"depth\": %llu, \"requests\": %llu, \"us_per_request\": %.3f, "
           "\"cpu_us_per_request\": %.3f}\n",
           mode, (unsigned long long)depth, (unsigned long long)requests, us / (double)requests,
           (double)cpu / (double)requests);
    return 0;
}
