/* See descriptors.h. */
#include "descriptors.h"

#include "offsets.h"
#include "segment.h"

#include <sys/resource.h>

#define SEGMENT_PAIRS_MIN 16u
#define SEGMENT_PAIRS_MAX 8192u
#define OFFSET_FILES_MIN 16u
#define OFFSETS_SHARE 8u /* of the files of the log */

descriptor_budget descriptors_plan(uint64_t limit, uint64_t connections)
{
    uint64_t others = connections + DESCRIPTORS_RESERVED;
    uint64_t files = limit > others ? limit - others : 0;
    uint64_t offset_files = files / OFFSETS_SHARE;
    if (offset_files > OFFSET_FILES_MAX)
        offset_files = OFFSET_FILES_MAX;
    uint64_t pairs = (files - offset_files) / 2;
    if (pairs > SEGMENT_PAIRS_MAX)
        pairs = SEGMENT_PAIRS_MAX;
    return (descriptor_budget){
        .segment_pairs = pairs < SEGMENT_PAIRS_MIN ? SEGMENT_PAIRS_MIN : (uint32_t)pairs,
        .offset_files = offset_files < OFFSET_FILES_MIN ? OFFSET_FILES_MIN : (uint32_t)offset_files};
}

void descriptors_limit(uint64_t connections)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return;
    descriptor_budget budget = descriptors_plan(files.rlim_cur, connections);
    segment_files_max = budget.segment_pairs;
    offset_files_max = budget.offset_files;
}

bool descriptors_release_one(void)
{
    return segment_files_release_one() || offset_files_release_one();
}
