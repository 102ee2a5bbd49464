/* Record scans: lengths, dense offsets, timestamps that never fall, checksums. Memory comes from mmap'ed or pooled
 * buffers at any alignment; integers are read with memcpy (the host is little-endian: x86-64, AArch64). */
#include "log/record.h"

#include "base/bytes.h"
#include "base/checksum.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW_SIZE ((size_t)1 << 20)
#define RECORD_SIZE_MAX ((size_t)RECORD_HEADER_SIZE + PAYLOAD_SIZE_MAX + USER_HEADERS_SIZE_MAX)

uint64_t record_size(const uint8_t *data) {
    uint32_t headers = load_u32(data + 48), payload = load_u32(data + 52);
    if (headers > USER_HEADERS_SIZE_MAX || payload > PAYLOAD_SIZE_MAX) return 0;
    return (uint64_t)RECORD_HEADER_SIZE + payload + headers;
}

uint64_t record_checksum(const uint8_t *data, size_t size) { return checksum_64(data + 8, size - 8); }

/* Verifies one record with `left` bytes from its first byte on, whose offset is the expected one or up to `skips` above
 * it; RECORD_OK and its size, or what is wrong. */
static record_fault record_check(const uint8_t *data, size_t left, uint64_t expected_offset, uint64_t skips,
                                 uint64_t minimum_timestamp, uint64_t *size) {
    if (left < RECORD_HEADER_SIZE) return RECORD_TRUNCATED;
    *size = record_size(data);
    if (*size == 0) return RECORD_BAD_LENGTH;
    if (load_u64(data + 24) - expected_offset > skips) return RECORD_BAD_OFFSET;
    if (load_u64(data + 32) < minimum_timestamp) return RECORD_BAD_TIMESTAMP;
    if (*size > left) return RECORD_TRUNCATED;
    return record_checksum(data, *size) == load_u64(data) ? RECORD_OK : RECORD_BAD_CHECKSUM;
}

record_fault record_scan_sparse(const uint8_t *data, size_t length, uint64_t expected_offset, uint64_t end_offset,
                                uint64_t minimum_timestamp, uint64_t segment_start_offset, uint64_t base_position,
                                index_entry *entries, size_t entries_max, record_scan *out) {
    *out = (record_scan){.next_offset = expected_offset};
    while (out->valid_bytes < length && (entries == NULL || out->count < entries_max)) {
        const uint8_t *record = data + out->valid_bytes;
        uint64_t size;
        uint64_t skips = out->next_offset < end_offset ? end_offset - 1 - out->next_offset : 0;
        out->fault = record_check(record, length - out->valid_bytes, out->next_offset, skips, minimum_timestamp, &size);
        if (out->fault != RECORD_OK) break;
        uint64_t offset = load_u64(record + 24), end = base_position + out->valid_bytes + size;
        uint64_t relative = offset - segment_start_offset;
        if (end > UINT32_MAX || relative > UINT32_MAX) { /* no index entry can name it: not ours */
            out->fault = RECORD_BAD_LENGTH;
            break;
        }
        minimum_timestamp = load_u64(record + 32);
        if (entries != NULL) entries[out->count] = (index_entry){(uint32_t)relative, (uint32_t)end, minimum_timestamp};
        if (out->count == 0) out->first_timestamp = minimum_timestamp;
        out->last_timestamp = minimum_timestamp;
        out->count++;
        out->next_offset = offset + 1;
        out->valid_bytes += size;
    }
    return out->fault;
}

record_fault record_scan_buffer(const uint8_t *data, size_t length, uint64_t expected_offset,
                                uint64_t minimum_timestamp, uint64_t segment_start_offset, uint64_t base_position,
                                index_entry *entries, size_t entries_max, record_scan *out) {
    return record_scan_sparse(data, length, expected_offset, 0, minimum_timestamp, segment_start_offset, base_position,
                              entries, entries_max, out);
}

/* Made twice: where offsets may skip, a small record costs 8 % more instructions. */
static inline __attribute__((always_inline)) uint32_t verify(const uint8_t *data, size_t length, uint64_t next,
                                                             uint64_t absent, uint32_t count, bool dense,
                                                             record_good *out) {
    uint64_t position = 0;
    uint32_t good = 0;
    while (good < count) {
        uint64_t size, skips = dense || good == 0 ? 0 : absent;
        if (record_check(data + position, length - position, next, skips, 0, &size) != RECORD_OK) break;
        if (good + 1 == count && position + size != length)
            break; /* the window does not end where the caller believes: the last record is not trusted */
        uint64_t skipped = dense ? 0 : load_u64(data + position + 24) - next;
        absent -= skipped;
        next += skipped + 1;
        position += size;
        good++;
    }
    *out = (record_good){position, next};
    return good;
}

uint32_t record_verify(const uint8_t *data, size_t length, uint64_t first_offset, uint64_t end_offset, uint32_t count,
                       record_good *out) {
    uint64_t absent = end_offset - first_offset - count;
    return absent == 0 ? verify(data, length, first_offset, 0, count, true, out)
                       : verify(data, length, first_offset, absent, count, false, out);
}

/* ---- files ---- */

/* Reads up to `length` bytes; fewer only at the end of the file. -1 with errno. */
static ssize_t read_fully(int fd, uint8_t *data, size_t length, uint64_t position) {
    size_t done = 0;
    while (done < length) {
        ssize_t n = pread(fd, data + done, length - done, (off_t)(position + done));
        if (n == 0) break;
        if (n < 0 && errno != EINTR) return -1;
        if (n > 0) done += (size_t)n;
    }
    return (ssize_t)done;
}

static int write_fully(int fd, const void *data, size_t length, uint64_t position) {
    size_t done = 0;
    while (done < length) {
        ssize_t n = pwrite(fd, (const uint8_t *)data + done, length - done, (off_t)(position + done));
        if (n < 0 && errno != EINTR) return -1;
        if (n > 0) done += (size_t)n;
    }
    return 0;
}

/* Adds the result of one window to the whole. */
static void scan_join(record_scan *whole, const record_scan *part) {
    if (part->count > 0) {
        if (whole->count == 0) whole->first_timestamp = part->first_timestamp;
        whole->last_timestamp = part->last_timestamp;
    }
    whole->valid_bytes += part->valid_bytes;
    whole->count += part->count;
    whole->next_offset = part->next_offset;
    whole->fault = part->fault;
}

typedef struct scan_window {
    uint8_t *data;
    size_t size;
    index_entry *entries; /* as many as records fit into WINDOW_SIZE; a scan stops when they are full */
    size_t entries_max;
} scan_window;

static int window_init(scan_window *window) {
    window->size = WINDOW_SIZE;
    window->entries_max = WINDOW_SIZE / RECORD_HEADER_SIZE;
    window->data = malloc(window->size);
    window->entries = malloc(window->entries_max * sizeof *window->entries);
    if (window->data != NULL && window->entries != NULL) return 0;
    errno = ENOMEM;
    return -1;
}

/* Makes room for the record that starts in the full window but does not end in it. */
static int window_grow(scan_window *window) {
    size_t size = window->size * 2 < RECORD_SIZE_MAX ? window->size * 2 : RECORD_SIZE_MAX;
    uint8_t *data = realloc(window->data, size);
    if (data == NULL) return -1;
    window->data = data;
    window->size = size;
    return 0;
}

/* Writes only what differs: most indexes are right. */
static int put_entries(scan_window *window, int index_fd, size_t length, uint64_t position) {
    uint8_t present[16384];
    const uint8_t *entries = (const uint8_t *)window->entries;
    for (size_t at = 0; at < length;) {
        size_t part = length - at < sizeof(present) ? length - at : sizeof(present);
        ssize_t n = read_fully(index_fd, present, part, position + at);
        if (n < 0) return -1;
        if ((size_t)n != part || memcmp(present, entries + at, part) != 0)
            return write_fully(index_fd, entries + at, length - at, position + at);
        at += part;
    }
    return 0;
}

static int scan_windows(scan_window *window, int log_fd, uint64_t from_position, uint64_t segment_start_offset,
                        uint64_t minimum_timestamp, int index_fd, record_scan *out) {
    for (;;) {
        uint64_t position = from_position + out->valid_bytes;
        ssize_t n = read_fully(log_fd, window->data, window->size, position);
        if (n < 0) return -1;
        record_scan part;
        uint64_t minimum = out->count > 0 ? out->last_timestamp : minimum_timestamp;
        record_scan_buffer(window->data, (size_t)n, out->next_offset, minimum, segment_start_offset, position,
                           window->entries, window->entries_max, &part);
        uint64_t index_position = INDEX_ENTRY_SIZE * (out->next_offset - segment_start_offset);
        if (index_fd >= 0 && part.count > 0 &&
            put_entries(window, index_fd, part.count * INDEX_ENTRY_SIZE, index_position) != 0)
            return -1;
        scan_join(out, &part);
        bool whole_window = (size_t)n == window->size;
        if (part.fault != RECORD_OK && !(part.fault == RECORD_TRUNCATED && whole_window))
            return 0; /* damaged, or cut by the end of the file */
        if (part.fault == RECORD_OK && part.valid_bytes == (uint64_t)n && !whole_window) return 0;
        if (part.count == 0 && window_grow(window) != 0) return -1;
    }
}

int record_scan_file(int log_fd, uint64_t from_position, uint64_t segment_start_offset, uint64_t expected_offset,
                     uint64_t minimum_timestamp, int index_fd, record_scan *out) {
    *out = (record_scan){.next_offset = expected_offset};
    scan_window window = {0};
    int result = window_init(&window);
    if (result == 0)
        result = scan_windows(&window, log_fd, from_position, segment_start_offset, minimum_timestamp, index_fd, out);
    free(window.data);
    free(window.entries);
    return result;
}

/* ---- a later record behind damage ---- */

typedef struct later_search {
    int fd;
    uint64_t at_least_offset, offsets_span;
    uint64_t minimum_timestamp;
    uint64_t end_position; /* of starts */
    uint64_t hash_budget;  /* bytes that may still be hashed */
    uint8_t *chunk;        /* WINDOW_SIZE bytes for records that leave the window */
    record_found *out;
} later_search;

/* Hashes a record that is longer than what the window holds. 1 right, 0 wrong, -1 errno. */
static int long_record_matches(later_search *search, uint64_t position, uint64_t size, uint64_t checksum) {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (uint64_t done = 8; done < size;) {
        size_t part = size - done < WINDOW_SIZE ? (size_t)(size - done) : WINDOW_SIZE;
        ssize_t n = read_fully(search->fd, search->chunk, part, position + done);
        if (n < 0) return -1;
        if ((size_t)n < part) return 0; /* the file has become shorter */
        checksum_update(&state, search->chunk, part);
        done += part;
    }
    return XXH3_64bits_digest(&state) == checksum;
}

/* Does a valid record start at data[0]? `left` bytes are here, the file has `file_left`. 1 yes, 0 no, -1 errno. */
static int later_candidate(later_search *search, const uint8_t *data, size_t left, uint64_t position,
                           uint64_t file_left) {
    /* A relative offset has 32 bits, and the id of a stored record is never 0 (zero-filled space ends here). */
    if (load_u64(data + 24) - search->at_least_offset > search->offsets_span ||
        (load_u64(data + 8) | load_u64(data + 16)) == 0)
        return 0;
    uint64_t size = record_size(data);
    if (size == 0 || size > file_left || load_u64(data + 32) < search->minimum_timestamp) return 0;
    search->out->position = position;
    search->out->offset = load_u64(data + 24);
    if (size > search->hash_budget) {
        search->out->position = UINT64_MAX;
        return 1;
    }
    search->hash_budget -= size;
    if (size <= left) return record_checksum(data, size) == load_u64(data);
    return long_record_matches(search, position, size, load_u64(data));
}

static int search_windows(later_search *search, uint8_t *window, uint64_t position, uint64_t file_size) {
    while (position + RECORD_HEADER_SIZE <= file_size && position < search->end_position) {
        ssize_t n = read_fully(search->fd, window, 2 * WINDOW_SIZE, position);
        if (n < 0) return -1;
        if ((size_t)n < RECORD_HEADER_SIZE) return 0;
        /* Candidates start in the first half while the file goes on, so that most records are whole in the window. */
        size_t starts = (size_t)n == 2 * WINDOW_SIZE ? WINDOW_SIZE : (size_t)n - RECORD_HEADER_SIZE + 1;
        for (size_t i = 0; i < starts && position + i < search->end_position; i++) {
            int match = later_candidate(search, window + i, (size_t)n - i, position + i, file_size - position - i);
            if (match != 0) return match;
        }
        position += starts;
    }
    return 0;
}

/* Payload bytes that look like many long headers could make this quadratic. The bytes hashed are therefore limited to
 * 16 times the searched range plus 1 GiB; beyond that the answer is "found", on which nothing is ever cut. */
int record_find_later(int log_fd, const record_wanted *wanted, record_found *out) {
    *out = (record_found){0};
    uint64_t from_position = wanted->from_position, span = wanted->at_most_offset - wanted->at_least_offset;
    if (wanted->at_most_offset < wanted->at_least_offset) return 0;
    off_t end = lseek(log_fd, 0, SEEK_END);
    if (end < 0) return -1;
    if ((uint64_t)end <= from_position) return 0;
    later_search search = {
        .fd = log_fd,
        .at_least_offset = wanted->at_least_offset,
        .offsets_span = span < UINT32_MAX ? span : UINT32_MAX,
        .minimum_timestamp = wanted->minimum_timestamp,
        .end_position = wanted->end_position,
        .hash_budget = 16 * ((uint64_t)end - from_position) + ((uint64_t)1 << 30),
        .chunk = malloc(WINDOW_SIZE),
        .out = out,
    };
    uint8_t *window = malloc(2 * WINDOW_SIZE);
    int result = -1;
    if (search.chunk != NULL && window != NULL) result = search_windows(&search, window, from_position, (uint64_t)end);
    else errno = ENOMEM;
    free(search.chunk);
    free(window);
    if (result == 1) out->found = true;
    else *out = (record_found){0};
    return result < 0 ? -1 : 0;
}
