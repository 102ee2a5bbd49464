/* write_path DIR [--rounds N] [--quick]: measures the ways to a file on the file system of DIR, alternating them round
 * by round. Prints one JSON object per measurement and round; `python -m bench.write_path` makes the tables. */
#include "write_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Noreturn void fail(const char *what, int error) {
    fprintf(stderr, "write_path: %s: %s\n", what, strerror(error));
    exit(1);
}

static void print(const char *operation, const char *way, uint32_t bytes, uint32_t files, result r) {
    printf("{\"operation\": \"%s\", \"way\": \"%s\", \"bytes\": %u, \"files\": %u, \"us_per_op\": %.3f, "
           "\"cpu_us_per_op\": %.3f, \"refused_share\": %.4f}\n",
           operation, way, bytes, files, r.us_per_op, r.cpu_us_per_op, r.refused_share);
    fflush(stdout);
}

static void open_all(bench *b) {
    for (uint32_t i = 0; i < FILES_MAX; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/write_path-%d-%u", b->directory, (int)getpid(), i);
        b->fds[i] = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (b->fds[i] < 0) fail(path, errno);
        unlink(path); /* nothing stays behind, however the program ends */
    }
    struct io_uring_params parameters = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    int error = io_uring_queue_init_params(RING_ENTRIES, &b->ring, &parameters);
    if (error == -EINVAL) { /* kernels before 6.1 */
        parameters = (struct io_uring_params){0};
        error = io_uring_queue_init_params(RING_ENTRIES, &b->ring, &parameters);
    }
    if (error < 0) fail("io_uring_queue_init_params", -error);
    error = io_uring_register_files(&b->ring, b->fds, FILES_MAX);
    if (error < 0) fail("io_uring_register_files", -error);
    b->data = aligned_alloc(4096, WRITE_MAX);
    if (b->data == NULL) fail("aligned_alloc", ENOMEM);
    memset(b->data, 'x', WRITE_MAX);
}

/* One measurement of each way, the first of them alternating. The pass before them is not counted: it leaves recycled
 * pages to both. (Guests with free page reporting lose free pages again within seconds.) */
static void run_append(bench *b, uint32_t bytes, uint32_t files, bool ring_first) {
    append_syscall(b, bytes, files);
    for (int turn = 0; turn < 2; turn++) {
        if ((turn == 0) == ring_first) print("append", "ring", bytes, files, append_ring(b, bytes, files));
        else print("append", "pwritev", bytes, files, append_syscall(b, bytes, files));
    }
}

static void run_round(bench *b, bool ring_first) {
    static const uint32_t append_bytes[] = {164, 4096, 65536, WRITE_MAX};
    for (size_t i = 0; i < sizeof append_bytes / sizeof *append_bytes; i++)
        for (uint32_t files = 1; files <= FILES_MAX; files += FILES_MAX - 1)
            run_append(b, append_bytes[i], files, ring_first);
    static const uint32_t read_bytes[] = {4096, 65536, WRITE_MAX};
    for (int cold = 0; cold <= 1; cold++)
        for (size_t i = 0; i < sizeof read_bytes / sizeof *read_bytes; i++) {
            const char *operation = cold ? "read cold" : "read cached";
            print(operation, "preadv2 NOWAIT", read_bytes[i], 1, read_nowait(b, read_bytes[i], cold));
            print(operation, "ring", read_bytes[i], 1, read_ring(b, read_bytes[i], cold));
        }
    for (uint32_t files = 1; files <= FILES_MAX; files += FILES_MAX - 1) {
        print("append and fdatasync", "fdatasync", 65536, files, sync_syscall(b, 65536, files));
        print("append and fdatasync", "ring", 65536, files, sync_ring(b, 65536, files));
    }
}

int main(int argc, char **argv) {
    bench b = {0};
    long rounds = 5;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) b.quick = true;
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) rounds = strtol(argv[++i], NULL, 10);
        else b.directory = argv[i];
    }
    if (b.directory == NULL || rounds < 1 || rounds > 1000) {
        fprintf(stderr, "usage: write_path DIR [--rounds 1..1000] [--quick]\n");
        return 2;
    }
    open_all(&b);
    for (long round = 0; round < rounds; round++) run_round(&b, round % 2 == 1);
    io_uring_queue_exit(&b.ring);
    free(b.data);
    return 0;
}
