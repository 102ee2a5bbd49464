/* libFuzzer: any bytes as descriptors that a peer posted, and any operations on the rings. What is taken is what was
 * posted, in order, each once; a lease never points outside of the peer's pool. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/links.h"

#define POOL_BYTES 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static links one, two;

static void open_both(void) {
    int region = memfd_create("region", 0), pools[2], bells[2];
    for (int i = 0; i < 2; i++) {
        pools[i] = memfd_create("pool", 0);
        bells[i] = eventfd(0, EFD_NONBLOCK);
        if (ftruncate(pools[i], POOL_BYTES) != 0) abort();
    }
    if (links_region_format(region, 2) != 0 || links_open(&one, 0, 2, region, pools, bells, POOL_BYTES) != 0 ||
        links_open(&two, 1, 2, region, pools, bells, POOL_BYTES) != 0)
        abort();
    links_admit(&one, 1, two.generation);
}

static void check_lease(const descriptor *d) {
    const uint8_t *lease = links_lease(&two, 0, d);
    if (lease == NULL) return;
    const uint8_t *pool = two.peer_pools[0];
    if (lease < pool || d->lease_length > POOL_BYTES || lease + d->lease_length > pool + POOL_BYTES) abort();
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; i < d->lease_length; i += 4096) sum = (uint8_t)(sum + lease[i]);
    if (d->lease_length > 0) sum = (uint8_t)(sum + lease[d->lease_length - 1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (one.region == NULL) open_both();
    static uint64_t posted, taken; /* sequence numbers; cancelled ones are skipped */
    uint64_t last_position = 0;
    bool may_cancel = false;
    descriptor d;
    for (size_t at = 0; at < size; at++) {
        switch (data[at] & 3) {
        case 0:
        case 1: {
            memset(&d, 0, sizeof d);
            size_t part = size - at - 1 < sizeof d ? size - at - 1 : sizeof d;
            memcpy((void *)&d, data + at + 1, part);
            d.sequence = posted + 1;
            if (links_post(&one, 1, &d, &last_position)) {
                posted++;
                may_cancel = true;
            }
            at += part / 2;
            break;
        }
        case 2:
            if (links_take(&two, 0, &d)) {
                if (d.sequence <= taken || d.sequence > posted) abort();
                taken = d.sequence;
                check_lease(&d);
                d.generation = data[at];
                check_lease(&d);
            }
            break;
        default:
            if (may_cancel && links_cancel(&one, 1, last_position)) may_cancel = false;
        }
    }
    while (links_take(&two, 0, &d)) {
        if (d.sequence <= taken || d.sequence > posted) abort();
        taken = d.sequence;
    }
    if (links_waiting(&two)) abort();
    links_ring_doorbells(&one);
    return 0;
}
