/* See file_cache.h. */
#include "log/file_cache.h"

#include "base/assert.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#define SEGMENT_PAIRS_MIN 16u
#define OFFSET_FILES_MIN 16u
#define OFFSETS_SHARE 8u /* of the files of the log */
#define SYNCS_SHARE 16u  /* of all: so many partitions sync at once, each with so many files at most */
#define SYNCS_MIN 4u
#define INTRODUCTIONS_SHARE 16u /* of all */
#define INTRODUCTIONS_MIN 16u
#define RELEASED_AT_ONCE 16u

/* ---- lists ---- */

void file_list_add(file_list *list, cached_file *file) {
    ASSERT(file->newer == NULL && list->newest != file);
    file->older = list->newest;
    *(list->newest != NULL ? &list->newest->newer : &list->oldest) = file;
    list->newest = file;
    list->count++;
}

void file_list_remove(file_list *list, cached_file *file) {
    ASSERT(list->count > 0);
    *(file->newer != NULL ? &file->newer->older : &list->newest) = file->older;
    *(file->older != NULL ? &file->older->newer : &list->oldest) = file->newer;
    file->newer = file->older = NULL;
    list->count--;
}

void file_list_use(file_list *list, cached_file *file) {
    if (list->newest == file) return;
    file_list_remove(list, file);
    file_list_add(list, file);
}

bool file_list_give_up(file_list *list) {
    for (cached_file *file = list->oldest, *newer; file != NULL; file = newer) {
        newer = file->newer;
        if (file->give_up(file)) return true;
    }
    return false;
}

/* ---- budget ---- */

static uint32_t plan_introductions(uint64_t limit, uint32_t wanted) {
    uint64_t share = limit / INTRODUCTIONS_SHARE;
    if (share < INTRODUCTIONS_MIN) share = INTRODUCTIONS_MIN;
    return share < wanted ? (uint32_t)share : wanted;
}

descriptor_budget file_budget_plan(uint64_t limit, uint64_t connections, uint32_t introductions) {
    uint32_t introduced = plan_introductions(limit, introductions);
    uint64_t others = connections + DESCRIPTORS_RESERVED + introduced;
    uint64_t files = limit > others ? limit - others : 0;
    uint64_t offset_files = files / OFFSETS_SHARE;
    if (offset_files > OFFSET_FILES_MAX) offset_files = OFFSET_FILES_MAX;
    uint64_t pairs = (files - offset_files) / 2;
    if (pairs > SEGMENT_PAIRS_MAX) pairs = SEGMENT_PAIRS_MAX;
    uint64_t syncs = limit / SYNCS_SHARE;
    if (syncs > SYNCS_MAX) syncs = SYNCS_MAX;
    if (syncs < SYNCS_MIN) syncs = SYNCS_MIN;
    return (descriptor_budget){.syncs = (uint32_t)syncs,
                               .sync_files = (uint32_t)syncs,
                               .introductions = introduced,
                               .segment_pairs = pairs < SEGMENT_PAIRS_MIN ? SEGMENT_PAIRS_MIN : (uint32_t)pairs,
                               .offset_files = offset_files < OFFSET_FILES_MIN ? OFFSET_FILES_MIN
                                                                               : (uint32_t)offset_files};
}

void file_cache_open(file_cache *c, descriptor_budget budget) {
    ASSERT(budget.offset_files > 0 && budget.segment_pairs > 0);
    *c = (file_cache){.budget = budget};
    unpacked_open(&c->unpacked);
}

void file_cache_open_for(file_cache *c, uint64_t connections, uint32_t introductions) {
    struct rlimit files;
    bool known = getrlimit(RLIMIT_NOFILE, &files) == 0;
    descriptor_budget largest = FILE_BUDGET_LARGEST;
    largest.introductions = introductions;
    file_cache_open(c, known ? file_budget_plan(files.rlim_cur, connections, introductions) : largest);
    file_cache_spares_keep(c);
}

void file_cache_close(file_cache *c) {
    ASSERT(c->pairs.count == 0 && c->offset_files.count == 0);
    unpacked_close(&c->unpacked);
    index_pages_close(&c->indexes);
    while (c->spares_count > 0) close(c->spares[--c->spares_count]);
}

/* ---- when there is none left ---- */

static bool release_file(file_cache *c) {
    if (file_list_give_up(&c->pairs)) return true;
    c->pairs_short = true;
    return file_list_give_up(&c->offset_files);
}

bool file_cache_release_one(file_cache *c) {
    if (release_file(c)) return true;
    bool any = c->spares_lent && c->spares_count > 0;
    if (any) close(c->spares[--c->spares_count]);
    return any;
}

bool file_cache_release_some(file_cache *c) {
    uint32_t released = 0;
    while (released < RELEASED_AT_ONCE && release_file(c)) released++;
    return released > 0;
}

bool file_cache_was_short(file_cache *c) {
    bool result = c->pairs_short;
    c->pairs_short = false;
    return result;
}

void file_cache_spares_keep(file_cache *c) {
    while (c->spares_count < SPARE_DESCRIPTORS) {
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0) break;
        c->spares[c->spares_count++] = fd;
    }
}

void file_cache_spares_lend(file_cache *c) { c->spares_lent = true; }

void file_cache_spares_end(file_cache *c) { c->spares_lent = false; }
