/* Recovery of one partition that needs no decision (recover.h). Every surprise, an errno too, makes it return false:
 * the careful way meets it again and says what it is. */
#include "log/recover.h"

#include "base/bytes.h"
#include "log/manifest.h"
#include "log/offsets_table.h"
#include "log/producers.h"
#include "log/recover_names.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST_READ_MAX 4096u /* with sections larger than this it is not a usual one */

typedef struct recovery {
    int directory;
    uint64_t incarnation;
    const uint8_t *boot;
    uint64_t imported_end;      /* below it timestamps may fall */
    uint64_t minimum_timestamp; /* of the next record */
    recovered_partition *out;
} recovery;

static int open_in(int directory, const char *name, int flags) {
    return openat(directory, name, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW); /* may be no file */
}

/* The whole content of a small file; -1 when there is none or it has more than `max` bytes. */
static ssize_t read_small(int directory, const char *name, uint8_t *data, size_t max) {
    int fd = open_in(directory, name, O_RDONLY);
    if (fd < 0) return -1;
    ssize_t length = pread(fd, data, max, 0);
    uint8_t more;
    if (length == (ssize_t)max && pread(fd, &more, 1, (off_t)max) != 0) length = -1;
    close(fd);
    return length;
}

static bool read_marker(int directory, const char *name, const char *magic, uint64_t *value) {
    uint8_t content[16];
    if (read_small(directory, name, content, sizeof content) != sizeof content || memcmp(content, magic, 8) != 0)
        return false;
    *value = load_u64(content + 8);
    return true;
}

/* ---- segments ---- */

static void segment_name(uint64_t start, const char *suffix, char *out, size_t size) {
    snprintf(out, size, "%020" PRIu64 ".%s", start, suffix);
}

static bool read_manifest(const recovery *r, uint64_t start, manifest *m) {
    char name[48];
    uint8_t content[MANIFEST_READ_MAX];
    segment_name(start, "manifest", name, sizeof name);
    ssize_t length = read_small(r->directory, name, content, sizeof content);
    return length > 0 && manifest_decode(content, (size_t)length, m) == MANIFEST_OK &&
           m->incarnation == r->incarnation && m->start_offset == start && !m->others;
}

static bool has_size(int directory, uint64_t start, const char *suffix, uint64_t size) {
    char name[48];
    struct stat st;
    segment_name(start, suffix, name, sizeof name);
    return fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
           (uint64_t)st.st_size == size;
}

static bool is_unknown(const recovery *r, uint64_t start) {
    char name[48];
    uint8_t content[MANIFEST_READ_MAX];
    manifest m;
    segment_name(start, "manifest", name, sizeof name);
    ssize_t length = read_small(r->directory, name, content, sizeof content);
    return length < 0 || manifest_decode(content, (size_t)length, &m) == MANIFEST_UNKNOWN;
}

/* A sealed segment is what its manifest says when log and index have the right length. */
static bool trust_sealed(const recovery *r, const manifest *m, segment_info *info) {
    const manifest_checkpoint *s = &m->sealed;
    *info = (segment_info){m->start_offset,
                           s->log_bytes,
                           s->count,
                           s->first_timestamp,
                           s->last_timestamp,
                           m->sparse ? m->end_offset - m->start_offset - s->count : 0,
                           m->compressed ? &segment_compressed : &segment_plain,
                           m->counted_us};
    return has_size(r->directory, m->start_offset, info->layout->suffix,
                    m->compressed ? m->stored_bytes : s->log_bytes) &&
           has_size(r->directory, m->start_offset, "index", s->count * INDEX_ENTRY_SIZE) &&
           (m->start_offset < r->imported_end || s->first_timestamp >= r->minimum_timestamp);
}

/* The index leads to the checkpoint exactly, as far as its last entry tells; reads verify all that it leads to. */
static bool index_fits(int index, const manifest_checkpoint *c) {
    index_entry entry;
    if (c->count == 0) return true;
    return pread(index, &entry, sizeof entry, (off_t)((c->count - 1) * INDEX_ENTRY_SIZE)) == sizeof entry &&
           entry.relative_offset == c->count - 1 && entry.end_position == c->log_bytes &&
           entry.timestamp == c->last_timestamp;
}

/* Only zeros from `from` to `end`: space allocated ahead at level durable. Holes are not read. */
static bool tail_is_zero(int log, uint64_t from, uint64_t end) {
    uint8_t part[16384];
    off_t data = lseek(log, (off_t)from, SEEK_DATA);
    if (data < 0) return errno == ENXIO;
    for (uint64_t at = (uint64_t)data; at < end;) {
        size_t wanted = end - at < sizeof part ? (size_t)(end - at) : sizeof part;
        ssize_t n = pread(log, part, wanted, (off_t)at);
        if (n <= 0 || part[0] != 0 || memcmp(part, part + 1, (size_t)n - 1) != 0) return false;
        at += (uint64_t)n;
    }
    return true;
}

static bool scan_open(recovery *r, const manifest *m, int log, int index, bool active, segment_info *info) {
    struct stat st, index_st;
    const manifest_checkpoint *c = &m->checkpoint;
    if (fstat(log, &st) != 0 || fstat(index, &index_st) != 0 || !S_ISREG(st.st_mode) || !S_ISREG(index_st.st_mode))
        return false;
    uint64_t size = (uint64_t)st.st_size, expected = m->start_offset + c->count;
    if (size < c->log_bytes || !index_fits(index, c) || expected < r->imported_end) return false;
    uint64_t minimum = c->count > 0 ? c->last_timestamp : r->minimum_timestamp;
    if (minimum < m->born_at) minimum = m->born_at;
    record_scan scan = {.first_timestamp = minimum, .last_timestamp = minimum};
    if (size > c->log_bytes &&
        record_scan_file(log, c->log_bytes, m->start_offset, expected, minimum, index, &scan) != 0)
        return false;
    if (scan.count == 0) scan.first_timestamp = scan.last_timestamp = minimum; /* zeros, allocated ahead */
    uint64_t end = c->log_bytes + scan.valid_bytes;
    if (end < size && (!active || !tail_is_zero(log, end, size) || ftruncate(log, (off_t)end) != 0))
        return false; /* the cut is synced with the log, by the engine */
    r->out->scanned_bytes += scan.valid_bytes;
    *info = (segment_info){
        m->start_offset,     end, c->count + scan.count, c->count > 0 ? c->first_timestamp : scan.first_timestamp,
        scan.last_timestamp, 0,   &segment_plain,        active ? m->counted_us : 0};
    off_t exact = (off_t)(info->count * INDEX_ENTRY_SIZE); /* durably: entries are proof of where records begin */
    return index_st.st_size <= exact || (ftruncate(index, exact) == 0 && fdatasync(index) == 0);
}

/* Everything behind the checkpoint is verified, and the index made to fit it. */
static bool scan(recovery *r, const manifest *m, bool active, segment_info *info) {
    char name[48];
    segment_name(m->start_offset, "log", name, sizeof name);
    int log = open_in(r->directory, name, active ? O_RDWR : O_RDONLY);
    segment_name(m->start_offset, "index", name, sizeof name);
    int index = log >= 0 ? open_in(r->directory, name, O_RDWR) : -1;
    bool clean = index >= 0 && scan_open(r, m, log, index, active, info);
    if (index >= 0) close(index);
    if (log >= 0) close(log);
    return clean;
}

static bool recover_segments(recovery *r, const uint64_t *starts, size_t count) {
    recovered_partition *out = r->out;
    out->segments = calloc(count + 1, sizeof *out->segments);
    out->sealed = calloc(count + 1, sizeof *out->sealed);
    if (out->segments == NULL || out->sealed == NULL) return false;
    for (size_t i = 0; i < count; i++) {
        manifest m;
        segment_info *info = &out->segments[i];
        if (!read_manifest(r, starts[i], &m)) return false;
        if (m.log_start_offset > out->log_start) out->log_start = m.log_start_offset;
        if (m.checkpoint.count > 0 && m.sealed.count == 0) /* sealing syncs its own segment only */
            out->durable_end = m.start_offset + m.checkpoint.count;
        bool active = i + 1 == count;
        out->sealed[i] = m.sealed.count > 0;
        if (active && out->sealed[i]) return false; /* the segments behind it are gone */
        if (!(out->sealed[i] ? trust_sealed(r, &m, info) : scan(r, &m, active, info))) return false;
        if (!active && starts[i] + info->count + info->absent != starts[i + 1]) return false;
        r->minimum_timestamp = info->last_timestamp;
        out->segments_count++;
    }
    return true;
}

/* ---- stored offsets ---- */

static int add_group(void *context, uint32_t place, const offsets_place *what) {
    recovered_partition *out = context;
    (void)place;
    if (what->kind != OFFSET_GROUP) return 0;
    if ((out->groups_count & (out->groups_count - 1)) == 0) { /* grows at powers of two */
        size_t capacity = out->groups_count > 0 ? out->groups_count * 2 : 1;
        uint32_t *groups = realloc(out->groups, capacity * sizeof *groups);
        if (groups == NULL) return -1;
        out->groups = groups;
    }
    out->groups[out->groups_count++] = what->id;
    return 0;
}

/* Nothing in it is damaged or of an earlier version, and it is not mostly free places. */
static bool read_table(const recovery *r) {
    offsets_scan scan;
    struct stat st;
    int fd = open_in(r->directory, "consumer-offsets", O_RDONLY);
    if (fd < 0) return false;
    bool whole = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                 offsets_scan_file(&disk_system, fd, r->incarnation, &scan, add_group, r->out) == 0;
    close(fd);
    return whole && scan.head == OFFSETS_HEAD_WHOLE && scan.hurt == 0 && scan.timeless == 0 &&
           scan.entry_bytes == OFFSETS_ENTRY_BYTES && !offsets_scan_is_sparse(&scan);
}

/* ---- idempotent producers ---- */

/* No batch of theirs is there in part, and nothing has to be cut after a power loss. */
static bool whole_batches(const recovery *r) {
    struct stat st;
    int fd = open_in(r->directory, "producers", O_RDONLY);
    if (fd < 0) return false;
    size_t size = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? (size_t)st.st_size : 0;
    uint8_t *content = size > 0 && size <= PRODUCERS_FILE_READ_MAX ? malloc(size) : NULL;
    const segment_info *last = r->out->segments_count > 0 ? &r->out->segments[r->out->segments_count - 1] : NULL;
    uint64_t end = last != NULL ? last->start_offset + last->count : 0;
    bool whole = content != NULL && pread(fd, content, size, 0) == (ssize_t)size && last != NULL &&
                 !producers_end_inside(content, size, r->incarnation, end) &&
                 producers_proven_end(content, size, r->incarnation, r->boot, end, false) == end;
    free(content);
    close(fd);
    return whole;
}

/* ---- the directory ---- */

static bool recover_found(recovery *r, const partition_names *found) {
    uint64_t incarnation;
    if (found->offsets) return false; /* of format version 1: they have to be taken over */
    if (!read_marker(r->directory, "incarnation", "SHRDINC1", &incarnation) || incarnation != r->incarnation)
        return false;
    if (found->imported &&
        (!read_marker(r->directory, "imported", "SHRDIMP1", &r->imported_end) || r->imported_end == UINT64_MAX))
        return false;
    if (!recover_segments(r, found->starts, found->count)) return false;
    if (found->manifest_ahead) { /* of a segment whose birth was cut short */
        const segment_info *last = found->count > 0 ? &r->out->segments[found->count - 1] : NULL;
        if (found->ahead != (last != NULL ? last->start_offset + last->count : 0)) return false;
        if (is_unknown(r, found->ahead))
            return false; /* its records are elsewhere; the next segment would write it over */
    }
    return (!found->table || read_table(r)) && (!found->producers || whole_batches(r));
}

#define LEVELS 5u /* of directories above a partition up to the data directory, which a link may lead to */

/* Whether a directory on the way is a symbolic link; the last one is opened without following links. */
static bool leads_through_link(const char *directory) {
    char path[4096];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s", directory) >= sizeof path) return true;
    for (unsigned level = 0; level < LEVELS; level++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path) return false;
        *slash = '\0';
        if (lstat(path, &st) != 0 || S_ISLNK(st.st_mode)) return true;
    }
    return false;
}

bool recover_partition(const char *directory, uint64_t incarnation, const uint8_t boot[PRODUCERS_BOOT_BYTES],
                       recovered_partition *out) {
    *out = (recovered_partition){0};
    recovery r = {.incarnation = incarnation, .boot = boot, .out = out};
    r.directory = open_in(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
    if (r.directory < 0) return false;
    if (leads_through_link(directory)) {
        close(r.directory);
        return false;
    }
    partition_names found;
    bool clean = partition_names_read(&found, r.directory) && recover_found(&r, &found);
    partition_names_free(&found);
    close(r.directory);
    if (!clean) recover_free(out);
    return clean;
}

void recover_free(recovered_partition *found) {
    free(found->segments);
    free(found->sealed);
    free(found->groups);
    *found = (recovered_partition){0};
}
