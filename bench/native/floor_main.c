/* floor: the floor server of native/load/floor.c as a program, or that of floor_ring.c.
 *
 *   floor --directory DIR [--threads N] [--cpus A,B,...] [--sync] [--offsets] [--ring [--without FEATURE]...]
 *
 * prints "port N", and behind it what the ring has; ends with its parent or on SIGTERM.
 */
#include <arpa/inet.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "floor.h"
#include "floor_ring.h"

static unsigned feature_named(const char *name) {
    for (unsigned i = 0; i < RING_FEATURES; i++)
        if (strcmp(name, ring_feature_names[i]) == 0) return 1u << i;
    fprintf(stderr, "floor: no feature is called %s\n", name);
    exit(2);
}

/* What the kernel has of `wanted`. */
static unsigned probe(unsigned wanted) {
    int found = ring_probe(wanted);
    if (found >= 0) return (unsigned)found;
    fprintf(stderr, "floor: io_uring with provided buffers (Linux 5.19) cannot be used: %s\n", strerror(-found));
    exit(1);
}

static int listen_anywhere(unsigned features) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4096) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        perror("floor: listen");
        exit(1);
    }
    printf("port %u", ntohs(address.sin_port));
    for (unsigned i = 0; i < RING_FEATURES; i++)
        if (features & 1u << i) printf(" %s", ring_feature_names[i]);
    printf("\n");
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    static const struct option names[] = {
        {"directory", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 't'},
        {"cpus", required_argument, NULL, 'c'},      {"sync", no_argument, NULL, 's'},
        {"offsets", no_argument, NULL, 'o'},         {"ring", no_argument, NULL, 'r'},
        {"without", required_argument, NULL, 'w'},   {NULL, 0, NULL, 0}};
    floor_options options = {.threads = 2};
    unsigned features = (1u << RING_FEATURES) - 1;
    bool ring = false;
    char *cpus = NULL;
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (option == 'd') options.directory = optarg;
        else if (option == 't') options.threads = strtol(optarg, NULL, 10);
        else if (option == 'c') cpus = optarg;
        else if (option == 's') options.sync = true;
        else if (option == 'o') options.offsets = true;
        else if (option == 'r') ring = true;
        else if (option == 'w') features &= ~feature_named(optarg);
        else return 2;
    }
    if (options.directory == NULL || options.threads < 1 || options.threads > FLOOR_THREADS_MAX) {
        fprintf(stderr,
                "usage: floor --directory DIR [--threads 1..%d] [--cpus A,B,...] [--sync] [--offsets]"
                " [--ring [--without FEATURE]...]\n",
                FLOOR_THREADS_MAX);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    char *cpu = cpus == NULL ? NULL : strtok(cpus, ",");
    for (long i = 0; i < options.threads; i++, cpu = cpu == NULL ? NULL : strtok(NULL, ","))
        options.cpus[i] = cpu == NULL ? -1 : atoi(cpu);
    features = ring ? probe(features) : 0;
    options.listener = listen_anywhere(features);
    if (ring) floor_ring_run(&options, features);
    floor_run(&options);
}
