/* See links.h. */
#include "io/links.h"
#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define PAGE 4096u
#define COUNTER_SHARD_SHIFT 24u
#define REGION_MAGIC 0x3152534452414853ull /* "SHARDSR1" */

typedef struct region_header {
    uint64_t magic;
    uint32_t shards;
    uint32_t descriptor_size;
    uint64_t seed;
} region_header;

#define CLOCK_AT 64u
_Static_assert(sizeof(region_header) <= CLOCK_AT && CLOCK_AT + sizeof(shared_clock) <= PAGE, "in the header's page");

static size_t pages_offset(void) { return PAGE; }
static size_t counters_offset(uint32_t shards) { return pages_offset() + (size_t)shards * PAGE; }
static size_t addresses_offset(uint32_t shards) { return counters_offset(shards) + SHARED_COUNTERS * sizeof(uint32_t); }
static size_t addresses_bytes(void) { return (size_t)SHARED_ADDRESS_ROWS * SHARED_ADDRESS_COLUMNS * sizeof(uint32_t); }
static size_t logins_offset(uint32_t shards) { return addresses_offset(shards) + shards * addresses_bytes(); }
static size_t stats_offset(uint32_t shards) { return logins_offset(shards) + sizeof(shared_logins); }
static size_t owed_offset(uint32_t shards) {
    return stats_offset(shards) + SHARED_STATS_SLOTS * sizeof(partition_stats);
}
static size_t rings_offset(uint32_t shards) { return owed_offset(shards) + SHARED_STATS_SLOTS * sizeof(int32_t); }
static size_t ring_stride(void) { return (sizeof(link_ring) + PAGE - 1) / PAGE * PAGE; }

size_t links_region_bytes(uint32_t shards) { return rings_offset(shards) + (size_t)shards * shards * ring_stride(); }

int links_region_format(int fd, uint32_t shards) {
    if (shards == 0 || shards > SHARED_SHARDS_MAX) return -EINVAL;
    if (ftruncate(fd, (off_t)links_region_bytes(shards)) != 0) return -errno;
    region_header header = {.magic = REGION_MAGIC, .shards = shards, .descriptor_size = sizeof(descriptor)};
    if (getrandom(&header.seed, sizeof header.seed, 0) != (ssize_t)sizeof header.seed) return -EIO;
    return pwrite(fd, &header, sizeof header, 0) == (ssize_t)sizeof header ? 0 : -EIO;
}

int links_write_clock(int fd, const shared_clock *clock) {
    return pwrite(fd, clock, sizeof *clock, CLOCK_AT) == (ssize_t)sizeof *clock ? 0 : -EIO;
}

static int map_pools(links *l, const int *pool_fds) {
    for (uint32_t peer = 0; peer < l->shards; peer++) {
        if (peer == l->shard) continue;
        void *pool = mmap(NULL, l->pool_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, pool_fds[peer], 0);
        if (pool == MAP_FAILED) return -errno;
        l->peer_pools[peer] = pool;
    }
    return 0;
}

static int map_region(links *l, int fd) {
    l->region_bytes = links_region_bytes(l->shards);
    void *region = mmap(NULL, l->region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (region == MAP_FAILED) return -errno;
    l->region = region;
    const region_header *header = region;
    if (header->magic != REGION_MAGIC || header->shards != l->shards || header->descriptor_size != sizeof(descriptor))
        return -EPROTO;
    l->counters = (_Atomic uint32_t *)(void *)(l->region + counters_offset(l->shards));
    l->addresses = (_Atomic uint32_t *)(void *)(l->region + addresses_offset(l->shards));
    l->logins = (shared_logins *)(void *)(l->region + logins_offset(l->shards));
    l->clock = (shared_clock *)(void *)(l->region + CLOCK_AT);
    l->seed = header->seed;
    l->stats = (partition_stats *)(void *)(l->region + stats_offset(l->shards));
    l->owed = (_Atomic int32_t *)(void *)(l->region + owed_offset(l->shards));
    return 0;
}

int links_open(links *l, uint32_t shard, uint32_t shards, int region_fd, const int *pool_fds, const int *doorbell_fds,
               size_t pool_bytes) {
    memset(l, 0, sizeof *l);
    if (shards == 0 || shards > SHARED_SHARDS_MAX || shard >= shards) return -EINVAL;
    l->shard = shard;
    l->shards = shards;
    l->pool_bytes = pool_bytes;
    l->peer_pools = calloc(shards, sizeof *l->peer_pools);
    l->doorbells = calloc(shards, sizeof *l->doorbells);
    l->ring_doorbell = calloc(shards, sizeof *l->ring_doorbell);
    int result = l->peer_pools != NULL && l->doorbells != NULL && l->ring_doorbell != NULL ? 0 : -ENOMEM;
    if (result == 0) result = map_region(l, region_fd);
    if (result == 0) result = map_pools(l, pool_fds);
    if (result != 0) {
        links_close(l);
        return result;
    }
    memcpy(l->doorbells, doorbell_fds, shards * sizeof *doorbell_fds);
    worker_page *page = links_page(l, shard);
    l->generation = atomic_fetch_add(&page->generation, 1) + 1;
    atomic_store(&page->sleeping, 0);
    atomic_store(&page->activity, ACTIVITY_STARTING);
    atomic_store(&page->connections, 0); /* those of the predecessor are gone */
    atomic_store(&page->anonymous, 0);
    atomic_store(&page->output_contended, 0);
    memset(l->region + addresses_offset(shards) + shard * addresses_bytes(), 0, addresses_bytes());
    for (uint32_t peer = 0; peer < shards; peer++) /* we have asked nobody before them */
        if (peer != shard) links_admit(l, peer, atomic_load(&links_page(l, peer)->generation));
    return 0;
}

void links_close(links *l) {
    if (l->peer_pools != NULL)
        for (uint32_t peer = 0; peer < l->shards; peer++)
            if (l->peer_pools[peer] != NULL) munmap((void *)(uintptr_t)l->peer_pools[peer], l->pool_bytes);
    if (l->region != NULL) munmap(l->region, l->region_bytes);
    free(l->peer_pools);
    free(l->doorbells);
    free(l->ring_doorbell);
    memset(l, 0, sizeof *l);
}

int links_read_beat(int fd, uint32_t shard, uint64_t *beat, uint32_t *activity) {
    off_t page = (off_t)(pages_offset() + (size_t)shard * PAGE);
    off_t beat_at = page + (off_t)offsetof(worker_page, beat);
    off_t activity_at = page + (off_t)offsetof(worker_page, activity);
    bool whole = pread(fd, beat, sizeof *beat, beat_at) == (ssize_t)sizeof *beat &&
                 pread(fd, activity, sizeof *activity, activity_at) == (ssize_t)sizeof *activity;
    return whole ? 0 : -EIO;
}

worker_page *links_page(const links *l, uint32_t shard) {
    ASSERT(shard < l->shards);
    return (worker_page *)(void *)(l->region + pages_offset() + (size_t)shard * PAGE);
}

link_ring *links_ring(const links *l, uint32_t from, uint32_t to) {
    ASSERT(from < l->shards && to < l->shards);
    return (link_ring *)(void *)(l->region + rings_offset(l->shards) + ((size_t)from * l->shards + to) * ring_stride());
}

bool links_post(links *l, uint32_t to, const descriptor *d, uint64_t *position) {
    ASSERT(to != l->shard);
    link_ring *r = links_ring(l, l->shard, to);
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&r->tail, memory_order_acquire) >= LINK_SLOTS) return false;
    descriptor *slot = &r->slots[head % LINK_SLOTS];
    size_t state_bytes = offsetof(descriptor, operation);
    memcpy((uint8_t *)slot + state_bytes, (const uint8_t *)d + state_bytes, sizeof *d - state_bytes);
    slot->generation = l->generation;
    atomic_store_explicit(&slot->slot_state, SLOT_POSTED, memory_order_release);
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    l->ring_doorbell[to] = true;
    if (position != NULL) *position = head;
    return true;
}

bool links_cancel(links *l, uint32_t to, uint64_t position) {
    link_ring *r = links_ring(l, l->shard, to);
    if (atomic_load_explicit(&r->tail, memory_order_acquire) > position)
        return false; /* the slot may serve another request now */
    uint32_t posted = SLOT_POSTED;
    return atomic_compare_exchange_strong(&r->slots[position % LINK_SLOTS].slot_state, &posted, SLOT_CANCELLED);
}

void links_admit(links *l, uint32_t to, uint32_t generation) {
    ASSERT(to != l->shard);
    atomic_store_explicit(&links_ring(l, l->shard, to)->admitted, generation, memory_order_release);
    l->ring_doorbell[to] = true; /* it may sleep before what it could not take */
}

static bool is_admitted(const links *l, const link_ring *r) {
    return atomic_load_explicit(&r->admitted, memory_order_acquire) == l->generation;
}

bool links_take(links *l, uint32_t from, descriptor *out) {
    link_ring *r = links_ring(l, from, l->shard);
    if (!is_admitted(l, r)) return false;
    for (;;) {
        uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
        if (tail == atomic_load_explicit(&r->head, memory_order_acquire)) return false;
        descriptor *slot = &r->slots[tail % LINK_SLOTS];
        uint32_t posted = SLOT_POSTED;
        bool taken = atomic_compare_exchange_strong(&slot->slot_state, &posted, SLOT_TAKEN);
        if (taken) memcpy((void *)out, (const void *)slot, sizeof *out);
        atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
        if (taken) return true;
    }
}

static bool ring_has_work(const links *l, uint32_t from) {
    link_ring *r = links_ring(l, from, l->shard);
    return is_admitted(l, r) &&
           atomic_load_explicit(&r->tail, memory_order_relaxed) != atomic_load_explicit(&r->head, memory_order_acquire);
}

uint64_t links_depth(const links *l, uint32_t from, uint32_t to) {
    link_ring *r = links_ring(l, from, to);
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire); /* first: it never passes the head */
    return atomic_load_explicit(&r->head, memory_order_acquire) - tail;
}

bool links_waiting(const links *l) {
    for (uint32_t from = 0; from < l->shards; from++)
        if (from != l->shard && ring_has_work(l, from)) return true;
    return false;
}

bool links_lease_valid(const links *l, uint32_t from, uint32_t generation) {
    return atomic_load(&links_page(l, from)->generation) == generation;
}

const uint8_t *links_lease(const links *l, uint32_t from, const descriptor *d) {
    if (from == l->shard || !links_lease_valid(l, from, d->generation)) return NULL;
    if (d->lease_offset > l->pool_bytes || d->lease_length > l->pool_bytes - d->lease_offset) return NULL;
    return l->peer_pools[from] + d->lease_offset;
}

void links_ring_doorbells(links *l) {
    for (uint32_t peer = 0; peer < l->shards; peer++) {
        if (!l->ring_doorbell[peer]) continue;
        l->ring_doorbell[peer] = false;
        atomic_thread_fence(memory_order_seq_cst); /* our posts before the look at its flag; pairs with links_sleep */
        if (atomic_exchange(&links_page(l, peer)->sleeping, 0) == 0) continue;
        uint64_t one = 1;
        while (write(l->doorbells[peer], &one, sizeof one) < 0 && errno == EINTR) continue;
    }
}

bool links_sleep(links *l) {
    atomic_store(&links_page(l, l->shard)->sleeping, 1);
    atomic_thread_fence(memory_order_seq_cst);
    if (!links_waiting(l)) return true;
    links_wake(l);
    return false;
}

void links_wake(links *l) { atomic_store_explicit(&links_page(l, l->shard)->sleeping, 0, memory_order_relaxed); }

uint32_t links_balance(links *l, uint32_t counter, uint32_t partitions, bool *after_us) {
    ASSERT(partitions > 0 && partitions <= BALANCED_PARTITIONS_MAX);
    _Atomic uint32_t *place = &l->counters[counter % SHARED_COUNTERS];
    uint32_t seen = atomic_load(place), value, shard = l->shard << COUNTER_SHARD_SHIFT;
    do {
        value = seen & BALANCED_PARTITIONS_MAX;
        if (value >= partitions) value = 0; /* partitions were deleted: a counter beyond the end counts as 0 */
    } while (!atomic_compare_exchange_weak(place, &seen, (value + 1) % partitions | shard));
    if (after_us != NULL) *after_us = (seen & ~BALANCED_PARTITIONS_MAX) == shard;
    return value;
}

void links_mark_output_contended(links *l, bool contended) {
    _Atomic uint32_t *mark = &links_page(l, l->shard)->output_contended;
    if (atomic_load_explicit(mark, memory_order_relaxed) != contended) atomic_store(mark, contended);
}

bool links_output_contended(const links *l, uint32_t shard) {
    return atomic_load_explicit(&links_page(l, shard)->output_contended, memory_order_relaxed) != 0;
}
