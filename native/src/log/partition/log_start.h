/* Where the log begins for everybody (docs/adr/0040-the-log-start.md), and how much is served from there on. */
#ifndef SHARDD_PARTITION_LOG_START_H
#define SHARDD_PARTITION_LOG_START_H
#include <stdint.h>

typedef struct log_start {
    uint64_t offset;                       /* 0, or the log start: what lies before it is gone, or waits for that */
    uint32_t hidden;                       /* segments wholly before it */
    uint64_t hidden_bytes, hidden_records; /* before it in its own segment */
    uint64_t written, synced;              /* as the manifests have it; on the device */
    uint64_t sync_target;                  /* `synced` when the running sync succeeds */
    uint64_t served_bytes, served_messages;
} log_start;
#endif
