/* Buddy allocator. The bookkeeping lives outside the pool memory, in arrays with one element per 4 KiB page of which
 * only those of block heads are touched: neither free pool memory nor its bookkeeping costs anything before its use.
 *
 *   heads[page]   state of the block that starts at this page: 0 no block, FREE | order, USED | order
 *   links[page]   neighbours in the circular free list of its order; links[pages + order] is the list's own head
 *   touched       one bit per page: has been part of an allocated block since it was last given back to the kernel
 */
#include "base/pool.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_SHIFT 12u
#define ORDERS 16u /* 4 KiB << 15 = 128 MiB */
#define CAPACITY_STEP ((size_t)1 << 20)
#define CAPACITY_MIN ((size_t)8 << 20)
#define HEAD_FREE 0x40u
#define HEAD_USED 0x80u
#define HEAD_ORDER 0x0fu

_Static_assert(POOL_BLOCK_MIN == 1u << PAGE_SHIFT, "the smallest block is one page");
_Static_assert(POOL_BLOCK_MAX == POOL_BLOCK_MIN << (ORDERS - 1), "orders cover all block sizes");

typedef struct neighbours {
    uint32_t next;
    uint32_t previous;
} neighbours;

struct pool {
    uint8_t *memory;
    size_t capacity;
    size_t used;
    uint32_t pages;
    uint32_t touched_pages;
    uint32_t nonempty; /* bit i: the free list of order i has blocks */
    int memfd;
    uint8_t *heads;
    neighbours *links;
    uint64_t *touched;
};

static void list_push(pool *p, uint32_t order, uint32_t page) {
    uint32_t list = p->pages + order, first = p->links[list].next;
    p->links[page] = (neighbours){.next = first, .previous = list};
    p->links[first].previous = page;
    p->links[list].next = page;
    p->heads[page] = (uint8_t)(HEAD_FREE | order);
    p->nonempty |= 1u << order;
}

static void list_remove(pool *p, uint32_t order, uint32_t page) {
    uint32_t list = p->pages + order;
    neighbours at = p->links[page];
    p->links[at.previous].next = at.next;
    p->links[at.next].previous = at.previous;
    p->heads[page] = 0;
    if (p->links[list].next == list) p->nonempty &= ~(1u << order);
}

/* Sets or clears the touched bits of `count` pages; returns how many changed. */
static uint32_t touched_change(pool *p, uint32_t page, uint32_t count, bool value) {
    uint32_t changed = 0, end = page + count;
    while (page < end) {
        uint32_t bit = page % 64, bits = 64 - bit < end - page ? 64 - bit : end - page;
        uint64_t mask = (bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1) << bit;
        uint64_t *word = &p->touched[page / 64];
        changed += (uint32_t)__builtin_popcountll((value ? ~*word : *word) & mask);
        *word = value ? *word | mask : *word & ~mask;
        page += bits;
    }
    return changed;
}

static void free_whole_capacity(pool *p) {
    for (uint32_t order = 0; order < ORDERS; order++)
        p->links[p->pages + order] = (neighbours){.next = p->pages + order, .previous = p->pages + order};
    /* From the end, because blocks are pushed in front: low addresses are used first. */
    uint32_t page = p->pages;
    while (page > 0) {
        uint32_t aligned = (uint32_t)__builtin_ctz(page), order = aligned < ORDERS ? aligned : ORDERS - 1;
        page -= 1u << order;
        list_push(p, order, page);
    }
}

pool *pool_create(int memfd, size_t capacity_bytes) {
    size_t capacity = capacity_bytes / CAPACITY_STEP * CAPACITY_STEP;
    if (capacity < CAPACITY_MIN) capacity = CAPACITY_MIN;
    if (capacity >> PAGE_SHIFT > UINT32_MAX - ORDERS) {
        errno = EINVAL;
        return NULL;
    }
    if (ftruncate(memfd, (off_t)capacity) != 0) return NULL;
    pool *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->memfd = memfd;
    p->capacity = capacity;
    p->pages = (uint32_t)(capacity >> PAGE_SHIFT);
    p->heads = calloc(p->pages, 1);
    p->links = calloc((size_t)p->pages + ORDERS, sizeof *p->links);
    p->touched = calloc((size_t)p->pages / 64 + 1, sizeof *p->touched);
    p->memory = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
    if (p->heads == NULL || p->links == NULL || p->touched == NULL || p->memory == MAP_FAILED) {
        int error = p->memory == MAP_FAILED ? errno : ENOMEM;
        pool_destroy(p);
        errno = error;
        return NULL;
    }
    free_whole_capacity(p);
    return p;
}

void pool_destroy(pool *p) {
    if (p == NULL) return;
    if (p->memory != MAP_FAILED) munmap(p->memory, p->capacity);
    free(p->heads);
    free(p->links);
    free(p->touched);
    free(p);
}

static uint32_t order_of(size_t bytes) {
    return bytes <= POOL_BLOCK_MIN ? 0 : 64u - PAGE_SHIFT - (uint32_t)__builtin_clzll(bytes - 1);
}

void *pool_alloc(pool *p, size_t bytes) { return pool_alloc_reserving(p, bytes, 0); }

void *pool_alloc_reserving(pool *p, size_t bytes, size_t reserve_bytes) {
    if (bytes == 0 || bytes > POOL_BLOCK_MAX) return NULL;
    uint32_t order = order_of(bytes);
    size_t size = (size_t)POOL_BLOCK_MIN << order, free_bytes = p->capacity - p->used;
    uint32_t fitting = p->nonempty >> order << order;
    if (fitting == 0 || free_bytes < size || free_bytes - size < reserve_bytes) return NULL;
    uint32_t from = (uint32_t)__builtin_ctz(fitting), page = p->links[p->pages + from].next;
    list_remove(p, from, page);
    while (from > order) { /* keep the lower half, free the upper one */
        from--;
        list_push(p, from, page + (1u << from));
    }
    p->heads[page] = (uint8_t)(HEAD_USED | order);
    p->used += size;
    p->touched_pages += touched_change(p, page, 1u << order, true);
    return p->memory + ((size_t)page << PAGE_SHIFT);
}

/* Page of an allocated block. A pointer that is not one (freed twice, or foreign) means that memory is being corrupted.
 * No client causes it: pointers come from pool_alloc, what peers say is an offset that links_lease checks. */
static uint32_t page_of(const pool *p, const void *block) {
    size_t offset = (size_t)((uintptr_t)block - (uintptr_t)p->memory);
    uint32_t page = (uint32_t)(offset >> PAGE_SHIFT);
    ASSERT_ALWAYS(offset < p->capacity && offset % POOL_BLOCK_MIN == 0 && (p->heads[page] & HEAD_USED));
    return page;
}

void pool_free(pool *p, void *block) {
    if (block == NULL) return;
    uint32_t page = page_of(p, block), order = p->heads[page] & HEAD_ORDER;
    ASSERT(p->used >= (size_t)POOL_BLOCK_MIN << order);
    p->used -= (size_t)POOL_BLOCK_MIN << order;
    p->heads[page] = 0;
    while (order < ORDERS - 1) {
        uint32_t buddy = page ^ (1u << order);
        if (buddy >= p->pages || p->heads[buddy] != (HEAD_FREE | order)) break;
        list_remove(p, order, buddy);
        page &= ~(1u << order);
        order++;
    }
    list_push(p, order, page);
}

size_t pool_block_size(const pool *p, const void *block) {
    return (size_t)POOL_BLOCK_MIN << (p->heads[page_of(p, block)] & HEAD_ORDER);
}

size_t pool_capacity(const pool *p) { return p->capacity; }

size_t pool_used(const pool *p) { return p->used; }

size_t pool_resident(const pool *p) { return (size_t)p->touched_pages << PAGE_SHIFT; }

uint64_t pool_offset(const pool *p, const void *address) { return (uint64_t)((const uint8_t *)address - p->memory); }

/* True when some page of the block has its bit set. */
static bool block_touched(const pool *p, uint32_t page, uint32_t count) {
    if (count < 64) return (p->touched[page / 64] >> page % 64 & (((uint64_t)1 << count) - 1)) != 0;
    for (uint32_t word = page / 64; word < (page + count) / 64; word++)
        if (p->touched[word] != 0) return true;
    return false;
}

#define TRIM_STEP_PAGES 256u /* at a time of a large block */

/* Gives the touched parts of a free block back, `left` pages at most. False when the kernel refuses. */
static bool trim_block(pool *p, uint32_t page, uint32_t count, uint32_t keep_pages, int64_t *left) {
    uint32_t step = count < TRIM_STEP_PAGES ? count : TRIM_STEP_PAGES;
    for (uint32_t at = page; at < page + count; at += step) {
        if (*left <= 0 || p->touched_pages - (p->used >> PAGE_SHIFT) <= keep_pages) return true;
        if (!block_touched(p, at, step)) continue;
        if (fallocate(p->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at << PAGE_SHIFT,
                      (off_t)step << PAGE_SHIFT) != 0)
            return false; /* the memory stays accounted as resident; the next trim tries again */
        p->touched_pages -= touched_change(p, at, step, false);
        *left -= step;
    }
    return true;
}

bool pool_trim(pool *p, size_t keep_bytes, size_t slice_bytes) {
    int64_t left = (int64_t)(slice_bytes >> PAGE_SHIFT);
    for (uint32_t order = ORDERS; order-- > 0;) {
        uint32_t list = p->pages + order, count = 1u << order;
        /* From the end: the front of a list was used last and is used next. */
        for (uint32_t page = p->links[list].previous; page != list; page = p->links[page].previous) {
            if (pool_resident(p) - p->used <= keep_bytes) return false;
            if (left <= 0) return true;
            if (!block_touched(p, page, count)) continue;
            if (!trim_block(p, page, count, (uint32_t)(keep_bytes >> PAGE_SHIFT), &left)) return false;
        }
    }
    return false;
}
