/* See retention.h. */
#include "log/partition/retention.h"

#define SETTLE_US 1000000 /* what was acknowledged within this time is not taken away */

void retention_set_limits(retention *r, const partition_limits *limits) {
    r->limits = *limits;
    r->held = r->limit_held = false;
    r->expires_at_us = limits->expiry_us > 0 ? 0 : UINT64_MAX;
}

void retention_settle(retention *r, int64_t monotonic_us, uint64_t visible_end) {
    const unsigned looks = sizeof(r->settling) / sizeof(r->settling[0]);
    const uint64_t end = visible_end; /* a sync that failed takes it back: later ones have a second anew */
    unsigned oldest = 0;
    int64_t newest_us = 0;
    if (r->settled > end) r->settled = end;
    for (unsigned i = 0; i < looks; i++) {
        if (r->settling[i].end > end) r->settling[i].end = end;
        int64_t at_us = r->settling[i].at_us;
        if (at_us != 0 && monotonic_us - at_us >= SETTLE_US && r->settling[i].end > r->settled)
            r->settled = r->settling[i].end;
        if (at_us < r->settling[oldest].at_us) oldest = i;
        if (at_us > newest_us) newest_us = at_us;
    }
    if (newest_us != 0 && monotonic_us - newest_us < SETTLE_US / (int64_t)looks) return;
    r->settling[oldest].at_us = monotonic_us;
    r->settling[oldest].end = end;
}
