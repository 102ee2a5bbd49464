/* The manifest of a segment (table in shardd/log/manifest.py and docs/formats.md): what the engine writes of it, what a
 * recovery reads of it. Sections are written by Python, but for `counted`. */
#ifndef SHARDD_MANIFEST_H
#define SHARDD_MANIFEST_H
#include "io/disk.h"
#include "log/file_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MANIFEST_BIRTH_SIZE 192u /* head and two empty checkpoint slots */
#define MANIFEST_LAYOUT_PLAIN 0u
#define MANIFEST_LAYOUT_COMPRESSED 1u /* the log is in a file of blocks (log/blocks.h) */
#define MANIFEST_LAYOUT_SPARSE 8u     /* offsets of the log may skip */

typedef struct manifest_checkpoint { /* the first records of a log; count 0: none */
    uint64_t log_bytes, count;
    uint64_t first_timestamp, last_timestamp;
} manifest_checkpoint;

typedef struct manifest {
    uint64_t incarnation, start_offset;
    uint64_t born_at;          /* no record is older; 0: not known */
    uint64_t log_start_offset; /* of the partition, as far as its slots know it */
    manifest_checkpoint checkpoint;
    manifest_checkpoint sealed; /* count 0: not sealed */
    uint64_t end_offset;        /* of the segment; 0: not known */
    bool sparse;                /* the log has no record for some of its offsets */
    bool compressed;            /* it is sealed, and its file of blocks has `stored_bytes` */
    uint64_t stored_bytes;
    uint64_t counted_us; /* as in segment.h */
    bool others;         /* sections that only Python deals with */
} manifest;

/* MANIFEST_UNKNOWN: whole, but of a version or layout, or with a section, that this program may not pass over. */
typedef enum manifest_fault { MANIFEST_OK, MANIFEST_DAMAGED, MANIFEST_UNKNOWN } manifest_fault;

manifest_fault manifest_decode(const uint8_t *data, size_t length, manifest *out);
/* Makes the file of a segment that is being made; what a failed attempt has left is replaced. 0 or -1. */
int manifest_make(const disk *d, file_cache *cache, const char *path, const manifest *m);
/* Writes checkpoint and log start into the older slot of the manifest of that segment; count 0: the checkpoint that is
 * there. 0, or -1 (the other slot stays). */
int manifest_put_checkpoint(const disk *d, file_cache *cache, const char *path, const manifest *m);
#endif
