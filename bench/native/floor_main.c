/* floor: the floor server of native/load/floor.c as a program.
 *
 *   floor --directory DIR [--threads N] [--cpus A,B,...] [--sync] [--offsets]
 *
 * prints "port N"; ends with its parent or on SIGTERM.
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

static int listen_anywhere(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4096) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        perror("floor: listen");
        exit(1);
    }
    printf("port %u\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    static const struct option names[] = {
        {"directory", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 't'},
        {"cpus", required_argument, NULL, 'c'},      {"sync", no_argument, NULL, 's'},
        {"offsets", no_argument, NULL, 'o'},         {NULL, 0, NULL, 0}};
    floor_options options = {.threads = 2};
    char *cpus = NULL;
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (option == 'd') options.directory = optarg;
        else if (option == 't') options.threads = strtol(optarg, NULL, 10);
        else if (option == 'c') cpus = optarg;
        else if (option == 's') options.sync = true;
        else if (option == 'o') options.offsets = true;
        else return 2;
    }
    if (options.directory == NULL || options.threads < 1 || options.threads > FLOOR_THREADS_MAX) {
        fprintf(stderr, "usage: floor --directory DIR [--threads 1..%d] [--cpus A,B,...] [--sync] [--offsets]\n",
                FLOOR_THREADS_MAX);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    char *cpu = cpus == NULL ? NULL : strtok(cpus, ",");
    for (long i = 0; i < options.threads; i++, cpu = cpu == NULL ? NULL : strtok(NULL, ","))
        options.cpus[i] = cpu == NULL ? -1 : atoi(cpu);
    options.listener = listen_anywhere();
    floor_run(&options);
}
