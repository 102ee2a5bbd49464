/* See side.h. */
#include "log/partition/side.h"

#include "base/clock.h"

#include <errno.h>

#define LOOK_AGAIN_US 1000000 /* a device may take its time to say that it cannot read */

bool side_is_due(partition_side *side) {
    int64_t now = clock_monotonic_us();
    if (now < side->next_us) return false;
    side->next_us = now + LOOK_AGAIN_US;
    return true;
}

void side_failed(partition_side *side, int error) {
    side->error = error;
    side->next_us = clock_monotonic_us() + LOOK_AGAIN_US; /* behind it: the attempt itself may have taken long */
}

bool side_passes(int error) {
    return error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM ||
           error == EINTR || error == EAGAIN;
}

bool side_is_foreign(int error) {
    return error == EPROTO || error == ELOOP || error == EISDIR || error == ENOTDIR || error == EACCES ||
           error == EPERM;
}
