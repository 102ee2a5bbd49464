/* A file system for power cuts: it keeps everything in memory, and apart what a device would have (model: store.h).
 *
 *   forgetful FROM MOUNT [--names strict|ext4] [--sync-delay-us N] [--seed N]
 *
 * The tree FROM is there at first, durable. Syncs take a random time, N us in the middle. Commands are lines on stdin:
 *
 *   cut SEED DIR             the power goes now: every later call gets EIO; what survives is written into DIR (empty)
 *   arm KINDS N SEED DIR     the same just before the N-th operation from now on whose kind is in KINDS, a word of
 *                            w (write, truncate, fallocate), s (sync begins), e (sync ends), n (change of names)
 *   lie                      syncs succeed from now on and do nothing
 *   fail N                   the next N syncs fail with EIO, and their pages count as clean
 *   quit                     unmount, end; so does the end of stdin
 *
 * Answers are lines on stdout: "ready" once mounted, "ok", for each cut one line "cut name=number ...", "error TEXT".
 * One thread does everything in order; a second cut is refused. Needs the right to mount. */
#include "forgetful.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SYNCS_MAX 1024
#define PATH_BYTES 1000

typedef struct {
    fuse_req_t request;
    sync_run run;
    uint64_t due_us;
} waiting_sync;

store memory;
bool frozen;
static waiting_sync waiting[SYNCS_MAX];
static size_t waiting_count;
static uint64_t sync_delay_us, operations;
static bool ended;
static struct {
    char kinds[8], directory[PATH_BYTES];
    uint64_t left, seed;
} armed;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void cut_power(uint64_t seed, const char *directory) {
    cut_result r;
    frozen = true;
    armed.left = 0;
    for (size_t i = 0; i < waiting_count; i++) {
        fuse_reply_err(waiting[i].request, EIO);
        sync_drop(&waiting[i].run);
    }
    size_t syncs = waiting_count;
    waiting_count = 0;
    int problem = store_cut(&memory, seed, directory, &r);
    if (problem != 0) {
        printf("error %s: %s\n", directory, strerror(-problem));
        return;
    }
    printf("cut operations=%" PRIu64 " syncs=%zu pages=%" PRIu64 " kept=%" PRIu64 " torn=%" PRIu64 " lengths=%" PRIu64
           " short=%" PRIu64 " names=%" PRIu64 " kept_names=%" PRIu64 "\n",
           operations, syncs, r.dirty_pages, r.kept_pages, r.torn_pages, r.lengths, r.short_lengths, r.names,
           r.kept_names);
}

bool powered(char kind) {
    operations += !frozen;
    if (!frozen && armed.left > 0 && strchr(armed.kinds, kind) != NULL && --armed.left == 0)
        cut_power(armed.seed, armed.directory);
    return !frozen;
}

void start_sync(fuse_req_t request, uint32_t number) {
    if (waiting_count == SYNCS_MAX) {
        fuse_reply_err(request, EBUSY);
        return;
    }
    waiting_sync *w = &waiting[waiting_count++];
    w->request = request;
    w->due_us = now_us() + (sync_delay_us > 0 ? store_random(&memory, 2 * sync_delay_us) : 0);
    sync_begin(&memory, number, &w->run);
}

/* ---- the loop ---- */

/* Ends the syncs that are due; milliseconds until the next one, -1: none. */
static int end_syncs(void) {
    for (size_t i = 0; i < waiting_count;) {
        if (waiting[i].due_us > now_us()) {
            i++;
            continue;
        }
        if (!powered('e')) return -1; /* the cut has answered all of them */
        int result = sync_end(&memory, &waiting[i].run);
        fuse_reply_err(waiting[i].request, -result);
        waiting[i] = waiting[--waiting_count];
    }
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < waiting_count; i++) next = waiting[i].due_us < next ? waiting[i].due_us : next;
    if (next == UINT64_MAX) return -1;
    uint64_t now = now_us();
    return next <= now ? 0 : (int)((next - now + 999) / 1000);
}

static void command(const char *line) {
    uint64_t seed;
    char directory[PATH_BYTES];
    if (strcmp(line, "quit") == 0) {
        ended = true;
    } else if (strcmp(line, "lie") == 0) {
        memory.lying = true;
        puts("ok");
    } else if (sscanf(line, "fail %u", &memory.failing) == 1) {
        puts("ok");
    } else if (sscanf(line, "cut %" SCNu64 " %999s", &seed, directory) == 2) {
        if (frozen) puts("error the power is off");
        else cut_power(seed, directory);
    } else if (sscanf(line, "arm %7s %" SCNu64 " %" SCNu64 " %999s", armed.kinds, &armed.left, &armed.seed,
                      armed.directory) == 4) {
        puts("ok");
    } else {
        printf("error unknown command: %s\n", line);
    }
}

static void read_commands(void) {
    static char bytes[4 * PATH_BYTES];
    static size_t length;
    ssize_t got = read(STDIN_FILENO, bytes + length, sizeof(bytes) - length);
    if (got <= 0) ended = true;
    if (got > 0) length += (size_t)got;
    for (char *end; (end = memchr(bytes, '\n', length)) != NULL;) {
        *end = '\0';
        command(bytes);
        length -= (size_t)(end + 1 - bytes);
        memmove(bytes, end + 1, length);
    }
}

static void serve(struct fuse_session *session) {
    struct fuse_buf buffer = {0};
    struct pollfd files[2] = {{.fd = fuse_session_fd(session), .events = POLLIN},
                              {.fd = STDIN_FILENO, .events = POLLIN}};
    fcntl(files[0].fd, F_SETFL, fcntl(files[0].fd, F_GETFL) | O_NONBLOCK);
    while (!ended && !fuse_session_exited(session)) {
        if (poll(files, 2, end_syncs()) < 0 && errno != EINTR) break;
        if (files[1].revents != 0) read_commands();
        if (files[0].revents != 0 && fuse_session_receive_buf(session, &buffer) > 0)
            fuse_session_process_buf(session, &buffer);
    }
    free(buffer.mem);
}

int main(int count, char **words) {
    names_mode mode = NAMES_STRICT;
    uint64_t seed = 1;
    for (int i = 3; i + 1 < count; i += 2) {
        if (strcmp(words[i], "--names") == 0) mode = strcmp(words[i + 1], "ext4") == 0 ? NAMES_EXT4 : NAMES_STRICT;
        if (strcmp(words[i], "--sync-delay-us") == 0) sync_delay_us = strtoull(words[i + 1], NULL, 10);
        if (strcmp(words[i], "--seed") == 0) seed = strtoull(words[i + 1], NULL, 10);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count < 3 || count % 2 == 0) {
        puts("error usage: forgetful FROM MOUNT [--names strict|ext4] [--sync-delay-us N] [--seed N]");
        return 2;
    }
    store_init(&memory, mode, seed);
    int problem = store_load(&memory, words[1]);
    char *options[] = {words[0], "-o", "fsname=forgetful", NULL};
    struct fuse_args arguments = FUSE_ARGS_INIT(3, options);
    struct fuse_session *session = problem == 0 ? fuse_session_new(&arguments, &calls, sizeof(calls), NULL) : NULL;
    if (session == NULL || fuse_session_mount(session, words[2]) != 0) {
        printf("error %s\n", problem != 0 ? strerror(-problem) : "cannot mount");
        return 1;
    }
    fuse_set_signal_handlers(session); /* an end that is not asked for unmounts, too */
    puts("ready");
    serve(session);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    return 0;
}
