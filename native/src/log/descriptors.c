/* See descriptors.h. */
#include "log/descriptors.h"

#include "log/offsets.h"
#include "log/segment.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#define SEGMENT_PAIRS_MIN 16u
#define SEGMENT_PAIRS_MAX 8192u
#define OFFSET_FILES_MIN 16u
#define OFFSETS_SHARE 8u /* of the files of the log */
#define SYNCS_SHARE 16u  /* of all: so many partitions sync at once, each with so many files at most */
#define SYNCS_MIN 4u
#define SYNCS_MAX 64u
#define RELEASED_AT_ONCE 16u
#define SPARES 8u

uint32_t syncs_running_max = SYNCS_MAX, sync_files_max = SYNCS_MAX;

/* A worker has one engine; the tests have several in one process. */
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;
static int spares[SPARES];
static uint32_t spares_count;
static bool spares_lent;

descriptor_budget descriptors_plan(uint64_t limit, uint64_t connections) {
    uint64_t others = connections + DESCRIPTORS_RESERVED;
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
                               .segment_pairs = pairs < SEGMENT_PAIRS_MIN ? SEGMENT_PAIRS_MIN : (uint32_t)pairs,
                               .offset_files = offset_files < OFFSET_FILES_MIN ? OFFSET_FILES_MIN
                                                                               : (uint32_t)offset_files};
}

void descriptors_limit(uint64_t connections) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    descriptor_budget budget = descriptors_plan(files.rlim_cur, connections);
    segment_files_max = budget.segment_pairs;
    offset_files_max = budget.offset_files;
    syncs_running_max = budget.syncs;
    sync_files_max = budget.sync_files;
    descriptors_spares_keep();
}

bool descriptors_release_one(void) {
    if (segment_files_release_one() || offset_files_release_one()) return true;
    pthread_mutex_lock(&spares_lock);
    bool any = spares_lent && spares_count > 0;
    if (any) close(spares[--spares_count]);
    pthread_mutex_unlock(&spares_lock);
    return any;
}

bool descriptors_release_some(void) {
    uint32_t released = 0;
    while (released < RELEASED_AT_ONCE && (segment_files_release_one() || offset_files_release_one())) released++;
    return released > 0;
}

bool descriptors_short(void) {
    bool result = segment_files_short;
    segment_files_short = false;
    return result;
}

void descriptors_spares_keep(void) {
    pthread_mutex_lock(&spares_lock);
    while (spares_count < SPARES) {
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0) break;
        spares[spares_count++] = fd;
    }
    pthread_mutex_unlock(&spares_lock);
}

void descriptors_spares_lend(void) {
    pthread_mutex_lock(&spares_lock);
    spares_lent = true;
    pthread_mutex_unlock(&spares_lock);
}

void descriptors_spares_end(void) {
    pthread_mutex_lock(&spares_lock);
    spares_lent = false;
    pthread_mutex_unlock(&spares_lock);
}
