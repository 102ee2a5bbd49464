/* Where the log begins for everybody (docs/adr/0040-the-log-start.md), and how much is served from there on. */
#ifndef SHARDD_PARTITION_LOG_START_H
#define SHARDD_PARTITION_LOG_START_H
#include <stdbool.h>
#include <stdint.h>

typedef struct log_start {
    uint64_t offset;                       /* 0, or the log start: what lies before it is gone, or waits for that */
    uint32_t hidden;                       /* segments wholly before it */
    uint64_t hidden_bytes, hidden_records; /* before it in its own segment */
    uint64_t written, synced;              /* as the manifests have it; on the device */
    uint64_t sync_target;                  /* `synced` when the running sync succeeds */
    uint64_t served_bytes, served_messages;
} log_start;

/* The first message that is served, where the first segment begins at `first`. */
static inline uint64_t log_start_first(const log_start *ls, uint64_t first) {
    return ls->offset > first ? ls->offset : first;
}
/* What a manifest may name: never above what the device has, or a power loss would hide messages. */
static inline uint64_t log_start_known(const log_start *ls, uint64_t first, uint64_t durable_end) {
    uint64_t known = ls->offset < durable_end ? ls->offset : durable_end;
    return known > first ? known : first;
}
static inline uint32_t log_start_hidden(const log_start *ls) { return ls->hidden; }
static inline uint64_t log_start_hidden_bytes(const log_start *ls) { return ls->hidden_bytes; }
static inline uint64_t log_start_served_bytes(const log_start *ls) { return ls->served_bytes; }
static inline uint64_t log_start_served_messages(const log_start *ls) { return ls->served_messages; }
/* The log has grown. */
static inline void log_start_grew(log_start *ls, uint64_t bytes, uint64_t records) {
    ls->served_bytes += bytes;
    ls->served_messages += records;
}
/* All of its segment, so many bytes and records, is hidden: the next one holds the log start. */
static inline void log_start_passes_segment(log_start *ls, uint64_t bytes, uint64_t records) {
    ls->served_bytes -= bytes - ls->hidden_bytes;
    ls->served_messages -= records - ls->hidden_records;
    ls->hidden_bytes = ls->hidden_records = 0;
    ls->hidden++;
}
/* So much of its segment is hidden. False: more is hidden already. */
static inline bool log_start_passes(log_start *ls, uint64_t bytes, uint64_t records) {
    if (bytes < ls->hidden_bytes) return false;
    ls->served_bytes -= bytes - ls->hidden_bytes;
    ls->served_messages -= records - ls->hidden_records;
    ls->hidden_bytes = bytes;
    ls->hidden_records = records;
    return true;
}
static inline void log_start_moves(log_start *ls, uint64_t offset) {
    if (offset > ls->offset) ls->offset = offset;
}
static inline bool log_start_is_at(const log_start *ls, uint64_t offset) { return ls->offset == offset; }
/* The first `count` segments, all of them hidden, are gone. */
static inline void log_start_segments_removed(log_start *ls, uint32_t count) { ls->hidden -= count; }
/* A manifest names it. */
static inline void log_start_written(log_start *ls, uint64_t offset) { ls->written = offset; }
static inline uint64_t log_start_manifest(const log_start *ls) { return ls->written; }
static inline bool log_start_is_unwritten(const log_start *ls) { return ls->written < ls->offset; }
/* A sync begins; `complete`: the manifests of now are in it. */
static inline void log_start_sync_begins(log_start *ls, bool complete) {
    ls->sync_target = complete ? ls->written : ls->synced;
}
static inline void log_start_sync_ends(log_start *ls) { ls->synced = ls->sync_target; }
static inline uint64_t log_start_synced(const log_start *ls) { return ls->synced; }
#endif
