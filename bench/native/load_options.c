#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "wire.h"

static const char usage[] =
    "usage: load --port N --mode send|poll|commit|store [options]\n"
    "  --host ADDRESS        IPv4 address (127.0.0.1)\n"
    "  --unix PATH           a Unix socket instead of host and port\n"
    "  --websocket           over WebSocket, at host and port\n"
    "  --connections N       1..4096 (1)\n"
    "  --threads N           1..64 (1)\n"
    "  --depth N             requests in flight on each connection, 1..1024 (1)\n"
    "  --batch N             messages per request (1)\n"
    "  --payload N           payload bytes of a message (100)\n"
    "  --streams A,B,...     numeric stream ids, dealt to the connections (0)\n"
    "  --topic N             numeric topic id (0)\n"
    "  --partition N         partition id (0)\n"
    "  --keyed               send with a random key instead of the partition id\n"
    "  --group N             poll as a member of that consumer group, over all its partitions, with auto-commit\n"
    "  --cpu N               run on this CPU only\n"
    "  --tls                 TLS, whoever answers\n"
    "  --balanced            send to whatever partition the server chooses\n"
    "  --login               log in as iggy/iggy first\n"
    "  --poll-messages N     messages in each partition (polls go round over them)\n"
    "  --verify-offsets      check the offset of the first polled message\n"
    "  --duration-ms N       measure so long\n"
    "  --requests N          measure so many requests over all connections\n"
    "  --requests-each N     measure so many requests on each connection\n"
    "  --warmup-ms N         run so long before measuring (0)\n";

const char *const load_mode_names[] = {
    [MODE_SEND] = "send", [MODE_POLL] = "poll", [MODE_COMMIT] = "commit", [MODE_STORE] = "store"};

static int mode_of(const char *name) {
    for (int mode = MODE_SEND; mode <= MODE_STORE; mode++)
        if (strcmp(name, load_mode_names[mode]) == 0) return mode;
    return -1;
}

static _Noreturn void refuse(const char *what) {
    fprintf(stderr, "load: %s\n%s", what, usage);
    exit(2);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *text == '-' || value < least || value > most) {
        fprintf(stderr, "load: '%s' is not a number in %llu..%llu\n", text, (unsigned long long)least,
                (unsigned long long)most);
        exit(2);
    }
    return value;
}

static void parse_streams(char *list, load_options *o) {
    o->streams_count = 0;
    for (char *item = strtok(list, ","); item != NULL; item = strtok(NULL, ",")) {
        if (o->streams_count == LOAD_CONNECTIONS_MAX) refuse("too many streams");
        o->streams[o->streams_count++] = (uint32_t)number(item, 0, UINT32_MAX);
    }
    if (o->streams_count == 0) refuse("--streams is empty");
}

static const struct option names[] = {
    {"host", required_argument, NULL, 'h'},
    {"port", required_argument, NULL, 'p'},
    {"mode", required_argument, NULL, 'm'},
    {"connections", required_argument, NULL, 'c'},
    {"threads", required_argument, NULL, 't'},
    {"depth", required_argument, NULL, 'D'},
    {"batch", required_argument, NULL, 'b'},
    {"payload", required_argument, NULL, 's'},
    {"streams", required_argument, NULL, 'S'},
    {"topic", required_argument, NULL, 'T'},
    {"partition", required_argument, NULL, 'P'},
    {"keyed", no_argument, NULL, 'k'},
    {"balanced", no_argument, NULL, 'B'},
    {"login", no_argument, NULL, 'l'},
    {"tls", no_argument, NULL, 'L'},
    {"poll-messages", required_argument, NULL, 'M'},
    {"verify-offsets", no_argument, NULL, 'v'},
    {"duration-ms", required_argument, NULL, 'd'},
    {"requests", required_argument, NULL, 'r'},
    {"requests-each", required_argument, NULL, 'e'},
    {"warmup-ms", required_argument, NULL, 'w'},
    {"cpu", required_argument, NULL, 'C'},
    {"group", required_argument, NULL, 'g'},
    {"unix", required_argument, NULL, 'u'},
    {"websocket", no_argument, NULL, 'W'},
    {NULL, 0, NULL, 0},
};

static void apply(int option, load_options *o, int *mode) {
    switch (option) {
    case 'h': o->host = optarg; break;
    case 'u': o->local = optarg; break;
    case 'W': o->websocket = true; break;
    case 'p': o->port = (uint16_t)number(optarg, 1, 65535); break;
    case 'm': *mode = mode_of(optarg); break;
    case 'c': o->connections = (uint32_t)number(optarg, 1, LOAD_CONNECTIONS_MAX); break;
    case 't': o->threads = (uint32_t)number(optarg, 1, LOAD_THREADS_MAX); break;
    case 'D': o->depth = (uint32_t)number(optarg, 1, LOAD_DEPTH_MAX); break;
    case 'b': o->batch = (uint32_t)number(optarg, 1, 1000000); break;
    case 's': o->payload_bytes = (uint32_t)number(optarg, 0, 64000000); break;
    case 'S': parse_streams(optarg, o); break;
    case 'T': o->topic = (uint32_t)number(optarg, 0, UINT32_MAX); break;
    case 'P': o->partition = (uint32_t)number(optarg, 0, UINT32_MAX); break;
    case 'k': o->keyed = true; break;
    case 'B': o->balanced = true; break;
    case 'l': o->login = true; break;
    case 'L': o->tls = true; break;
    case 'M': o->poll_messages = number(optarg, 1, UINT64_MAX); break;
    case 'v': o->verify_offsets = true; break;
    case 'd': o->duration_ms = number(optarg, 1, 86400000); break;
    case 'r': o->requests = number(optarg, 1, UINT64_MAX); break;
    case 'e': o->requests_each = number(optarg, 1, UINT64_MAX); break;
    case 'g': o->group = (int)number(optarg, 0, INT32_MAX); break;
    case 'C': o->cpu = (int)number(optarg, 0, 1023); break;
    case 'w': o->warmup_ms = number(optarg, 0, 86400000); break;
    default: refuse("unknown option");
    }
}

void load_options_parse(int argc, char **argv, load_options *options) {
    *options = (load_options){.host = "127.0.0.1",
                              .connections = 1,
                              .threads = 1,
                              .depth = 1,
                              .batch = 1,
                              .payload_bytes = 100,
                              .streams_count = 1,
                              .group = -1,
                              .cpu = -1};
    int mode = -1;
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;) apply(option, options, &mode);
    if (optind != argc) refuse("surplus argument");
    if (mode < 0) refuse("--mode must be send, poll, commit or store");
    options->mode = (load_mode)mode;
    if (options->port == 0 && options->local == NULL) refuse("--port or --unix is missing");
    if (options->requests == 0 && options->requests_each == 0 && options->duration_ms == 0)
        refuse("one of --duration-ms, --requests and --requests-each is needed");
    if (options->threads > options->connections) refuse("more threads than connections");
    if (options->mode != MODE_SEND && options->poll_messages < options->batch)
        refuse("--poll-messages must be at least --batch");
    if (options->keyed && options->balanced) refuse("--keyed and --balanced exclude each other");
    if (options->group >= 0 && (options->mode != MODE_POLL || !options->login))
        refuse("--group goes with --mode poll --login");
    if ((uint64_t)options->depth * options->batch * (RECORD_HEAD + INDEX_ENTRY + (uint64_t)options->payload_bytes) >
        1u << 30)
        refuse("the requests of a connection would be larger than 1 GiB");
}
