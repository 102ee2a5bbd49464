/* The names in a partition's directory (shardd/log/layout.py has the same rules). */
#include "log/recover_names.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define START_DIGITS 20u

void names_begin(names *list, int directory) {
    list->directory = directory;
    list->failed = false;
    list->at = list->length = 0;
}

const char *names_next(names *list) {
    for (;;) {
        if (list->at == list->length) {
            /* Not the function of glibc, which has it from 2.30 on. */
            ssize_t n = syscall(SYS_getdents64, list->directory, list->buffer, sizeof list->buffer);
            if (n <= 0) {
                list->failed = n < 0;
                return NULL;
            }
            list->at = 0;
            list->length = (size_t)n;
        }
        const struct dirent64 *entry = (const struct dirent64 *)(const void *)(list->buffer + list->at);
        list->at += entry->d_reclen;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) return entry->d_name;
    }
}

/* Reads digits up to something else; how many there were, 0 also when the number is above `max`. */
static size_t parse_number(const char *text, uint64_t max, uint64_t *value) {
    size_t length = 0;
    *value = 0;
    for (; text[length] >= '0' && text[length] <= '9'; length++) {
        uint64_t digit = (uint64_t)(text[length] - '0');
        if (*value > (max - digit) / 10) return 0;
        *value = *value * 10 + digit;
    }
    return length;
}

name_kind names_parse_segment(const char *name, uint64_t *start) {
    uint64_t number;
    if (parse_number(name, UINT64_MAX, start) != START_DIGITS) return NAME_UNKNOWN;
    const char *suffix = name + START_DIGITS;
    if (strcmp(suffix, ".log") == 0) return NAME_LOG;
    if (strcmp(suffix, ".blocks") == 0) return NAME_BLOCKS;
    if (strcmp(suffix, ".index") == 0) return NAME_INDEX;
    if (strcmp(suffix, ".manifest") == 0) return NAME_MANIFEST;
    if (strcmp(suffix, ".manifest.tmp") == 0 || strcmp(suffix, ".blocks.tmp") == 0) return NAME_TEMPORARY;
    if (strncmp(suffix, ".torn", 5) != 0) return NAME_UNKNOWN;
    suffix += 5;
    if (suffix[0] == '.') {
        size_t digits = parse_number(suffix + 1, UINT64_MAX, &number);
        suffix += digits > 0 ? digits + 1 : 0;
    }
    return suffix[0] == '\0' ? NAME_TORN : NAME_UNKNOWN;
}

/* ---- a partition ---- */

enum { HAS_LOG = 1, HAS_INDEX = 2, HAS_MANIFEST = 4, HAS_TWO_LOGS = 8, HAS_TEMPORARY = 16 };

typedef struct segment_name {
    uint64_t start;
    unsigned has;
} segment_name;

typedef struct segment_names {
    segment_name *items;
    size_t count;
} segment_names;

static bool add_name(segment_names *list, uint64_t start, unsigned has) {
    if ((list->count & (list->count - 1)) == 0) { /* grows at powers of two */
        size_t capacity = list->count > 0 ? list->count * 2 : 1;
        segment_name *items = realloc(list->items, capacity * sizeof *items);
        if (items == NULL) return false;
        list->items = items;
    }
    list->items[list->count++] = (segment_name){start, has};
    return true;
}

static int by_start(const void *a, const void *b) {
    const segment_name *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static bool take_name(partition_names *out, segment_names *list, const char *name) {
    uint64_t start;
    switch (names_parse_segment(name, &start)) {
    case NAME_LOG:
    case NAME_BLOCKS: return add_name(list, start, HAS_LOG); /* its manifest has to say which */
    case NAME_INDEX: return add_name(list, start, HAS_INDEX);
    case NAME_MANIFEST: return add_name(list, start, HAS_MANIFEST);
    case NAME_TEMPORARY: return add_name(list, start, HAS_TEMPORARY);
    case NAME_TORN: return true;
    default: break;
    }
    if (strcmp(name, "imported") == 0) return out->imported = true;
    if (strcmp(name, "consumer-offsets") == 0) return out->table = true;
    if (strcmp(name, "offsets") == 0) return out->offsets = true;
    if (strcmp(name, "producers") == 0) return out->producers = true;
    static const char *const others[] = {"incarnation",          "incarnation.tmp",  "imported.tmp",
                                         "consumer-offsets.tmp", "offsets.imported", "producers.unreadable",
                                         "producers.tmp"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i]) == 0) return true;
    return false;
}

/* Every log has its index and its manifest; a manifest alone may only lie behind them all. What a change of a layout
 * had begun is written over, but of a segment before the first one, which was removed: it has to go. */
static bool join(partition_names *out, segment_names *list) {
    qsort(list->items, list->count, sizeof *list->items, by_start);
    out->starts = malloc((list->count + 1) * sizeof *out->starts);
    if (out->starts == NULL) return false;
    for (size_t i = 0; i < list->count && !out->manifest_ahead;) {
        uint64_t start = list->items[i].start;
        unsigned has = 0;
        for (; i < list->count && list->items[i].start == start; i++)
            has |= list->items[i].has & has & HAS_LOG ? HAS_TWO_LOGS : list->items[i].has;
        bool begun = has & HAS_TEMPORARY;
        has &= ~(unsigned)HAS_TEMPORARY;
        if (begun && has == 0) {
            if (out->count == 0 && i < list->count) return false;
        } else if (has == (HAS_LOG | HAS_INDEX | HAS_MANIFEST)) {
            out->starts[out->count++] = start;
        } else if (has == HAS_MANIFEST && i == list->count) {
            out->manifest_ahead = true;
            out->ahead = start;
        } else {
            return false;
        }
    }
    return true;
}

bool partition_names_read(partition_names *out, int directory) {
    *out = (partition_names){0};
    segment_names list = {0};
    names all;
    names_begin(&all, directory);
    bool clean = true;
    for (const char *name; clean && (name = names_next(&all)) != NULL;) clean = take_name(out, &list, name);
    clean = clean && !all.failed && (list.count == 0 || join(out, &list));
    free(list.items);
    return clean;
}

void partition_names_free(partition_names *found) {
    free(found->starts);
    *found = (partition_names){0};
}
